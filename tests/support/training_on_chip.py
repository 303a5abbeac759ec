"""A very small recorded training on a chip, step by step in this process, which leaves a Verifier nothing to ask.

Its data are committed to, its numbers follow from declared formulas, and all of its memory is on its tapes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from support.train_job import FORMULAS, batch_of, build, update
from torch import Tensor

from firmware_sim import Shim
from prover import Recorder
from weighbridge.attest.chip_link import ChipLink
from weighbridge.transcript.data import DataCommitment

ROWS = 16
STEPS = 4


def nothing() -> None:
    """What most steps do besides."""


class TrainingOnChip:
    """One run as a context manager; `begin` makes the model, and `step` makes one step at a time.

    Attributes:
        recorder: Its Recorder.
    """

    def __init__(self, out: Path, chip: ChipLink, *, seed: int = 1) -> None:
        """Prepares a run.

        Args:
            out: Directory of the transcript.
            chip: The chip, attached.
            seed: Of the weights, and of the data.
        """
        self._numbers = iter(range(100 * seed, 100 * seed + STEPS))
        # Batches are recomputed in their steps: what lay ready here would be seen by the chip, and be asked about.
        batches = map(batch_of, range(100 * seed, 100 * seed + STEPS))
        records = ({name: rows[i] for name, rows in batch.items()} for batch in batches for i in range(ROWS))
        data = DataCommitment.over(records, range(ROWS * STEPS))
        self.recorder = Recorder(out, seed=seed, chip=chip, data=data, checkpoint_every=2, formulas=FORMULAS)

    def __enter__(self) -> Self:
        self.recorder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.recorder.__exit__(kind, error, trace)

    def begin(self) -> None:
        """Makes a model with random weights."""
        with self.recorder.initialisation():
            self._model, self._optimizer = build()
        self.recorder.attach(self._model, self._optimizer)

    def begin_with(self, value: float, before: Callable[[], object]) -> None:
        """Makes a model outside of the recording, calls `before`, and sets all weights to one value."""
        self._model, self._optimizer = build()
        before()
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.fill_(value)
        self.recorder.attach(self._model, self._optimizer)

    def step(self, during: Callable[[], object] = nothing) -> None:
        """Makes the next step; `during` is called after the forward pass."""
        batch = batch_of(next(self._numbers))

        def hook(*_: Any) -> None:
            during()

        handle = self._model.register_forward_hook(hook)
        with self.recorder.step(batch):
            update(self._model, self._optimizer, batch)
        handle.remove()

    def tensors(self) -> list[Tensor]:
        """The state."""
        kept = [each for state in self._optimizer.state.values() for each in state.values()]
        return [*self._model.parameters(), *(each for each in kept if isinstance(each, Tensor))]


def train(out: Path, chip: Shim, *, seed: int = 1, snapshot_in: int = 3) -> None:
    """A whole run with a snapshot in one step."""
    with TrainingOnChip(out, chip, seed=seed) as run:
        run.begin()
        for number in range(1, STEPS + 1):
            run.step(chip.request_snapshot if number == snapshot_in else nothing)
