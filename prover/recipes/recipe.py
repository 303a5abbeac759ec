"""What a recipe is, and the training loop that all recipes share.

The loop is the one of the README: it runs the same with a Recorder and without one, so that a declared and an
undeclared run differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from prover import Recorder
from weighbridge.core.errors import UsageError
from weighbridge.transcript.data import DataCommitment, OrderSeed, permutation

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Training:
    """What a recipe builds: everything that one update needs.

    Attributes:
        model: The model, in training mode.
        optimizer: Its optimizer.
        schedule: Learning-rate schedule; it changes only numbers of the optimizer, never a tensor.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler


class Recipe(Protocol):
    """One kind of training on one data set."""

    @property
    def name(self) -> str:
        """Short name."""
        ...

    @property
    def batch_size(self) -> int:
        """Records in a batch, of all processes together."""
        ...

    @property
    def share(self) -> tuple[int, int]:
        """Which records of a batch this process trains on, (first, stride): all, or those of one rank of a job."""
        ...

    def count(self) -> int:
        """Returns the number of records of the data set."""
        ...

    def batch(self, ids: Sequence[int]) -> Batch:
        """Returns the records `ids` as a batch of fresh tensors, stacked along dimension 0."""
        ...

    def build(self) -> Training:
        """Builds model, optimizer and schedule, drawing from torch's default generator."""
        ...

    def formulas(self) -> dict[str, str]:
        """Returns the formulas to declare: how numbers that change from step to step follow from its number."""
        ...

    def update(self, training: Training, batch: Batch) -> Tensor:
        """Does one update; returns the loss (a tensor with one element)."""
        ...


def epochs(recipe: Recipe, steps: int) -> int:
    """Returns how many epochs `steps` batches touch."""
    return -(-steps * recipe.batch_size // recipe.count())


def batches(recipe: Recipe, *, seed: int, steps: int) -> Iterator[list[int]]:
    """Yields the record ids of this process in each of `steps` batches: a fresh permutation of all every epoch.

    Raises:
        UsageError: `steps` is not positive.
    """
    if steps < 1:
        raise UsageError(f"cannot train for {steps} steps; give a positive number")
    first, stride = recipe.share
    order = np.concatenate([permutation(seed, epoch, recipe.count()) for epoch in range(epochs(recipe, steps))])
    for step in range(steps):
        yield order[step * recipe.batch_size : (step + 1) * recipe.batch_size][first::stride].tolist()


def commit(recipe: Recipe, *, seed: int, steps: int) -> DataCommitment:
    """Commits to the recipe's data set and to the order in which `steps` batches of this process will use it."""
    records = ({name: rows[0] for name, rows in recipe.batch([i]).items()} for i in range(recipe.count()))
    if recipe.share == (0, 1):
        return DataCommitment.over(records, OrderSeed(seed, epochs(recipe, steps)))
    return DataCommitment.over(records, [i for ids in batches(recipe, seed=seed, steps=steps) for i in ids])


def train(
    recipe: Recipe,
    recorder: Recorder | None,
    *,
    steps: int,
    seed: int,
    on_model: Callable[[nn.Module], None] | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> nn.Module:
    """Trains, recorded or not.

    Args:
        recipe: What to train.
        recorder: An entered Recorder, or None for an undeclared run.
        steps: Number of updates.
        seed: Fixes the order of the data and, without a Recorder, torch's generator (a Recorder has its own seed).
        on_model: Called once with the model when it exists, e.g. to tell a chip which memory holds the weights.
        on_step: Called after every update with its number, counted from 1, and its loss.

    Returns:
        The trained model.
    """
    if recorder is None:
        torch.manual_seed(seed)
    with recorder.initialisation() if recorder is not None else nullcontext():
        training = recipe.build()
    if recorder is not None:
        recorder.attach(training.model, training.optimizer)
    if on_model is not None:
        on_model(training.model)
    for number, ids in enumerate(batches(recipe, seed=seed, steps=steps), 1):
        batch = recipe.batch(ids)
        scope: AbstractContextManager[object]
        scope = recorder.step(batch, records=ids) if recorder is not None else nullcontext()
        with scope:
            loss = recipe.update(training, batch)
        training.schedule.step()
        if on_step is not None:
            on_step(number, float(loss.detach()))
    return training.model
