"""What is recorded: the recipes of the demo, the benchmarks' models, and one training of each family of the zoo."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import models, zoo_recordings
from prover import Recorder
from prover.recipes.digits import Digits
from prover.recipes.gpt2 import Gpt2
from prover.recipes.recipe import Recipe, train

SEED = 11


@dataclass(frozen=True)
class Recording:
    """A training that is recorded.

    Attributes:
        record: Records a number of updates under a policy into a path; returns the Recorder.
        policy: Under which bounds.
        updates: How many.
    """

    record: Callable[[Path, int, str], Recorder]
    policy: str
    updates: int


def _recipe(recipe: Callable[[], Recipe]) -> Callable[[Path, int, str], Recorder]:
    def record(path: Path, updates: int, policy: str) -> Recorder:
        made = recipe()
        with Recorder(path, seed=SEED, policy=policy, formulas=made.formulas(), checkpoint_every=50) as recorder:
            train(made, recorder, steps=updates, seed=SEED)
        return recorder

    return record


def _model(
    build: Callable[[], models.Step], autocast: torch.dtype | None = None
) -> Callable[[Path, int, str], Recorder]:
    def record(path: Path, updates: int, policy: str) -> Recorder:
        with Recorder(path, seed=SEED, policy=policy, checkpoint_every=50) as recorder:
            with recorder.initialisation():
                made = build()
            made.autocast = autocast
            recorder.attach(*made.attached)
            for number in range(updates):
                batch = made.batch(number)
                with recorder.step(batch):
                    made.update(batch)
        return recorder

    return record


def _small_gpt2() -> Gpt2:
    return Gpt2(layers=2, width=64, context=32, batch_size=4)


RECORDINGS: dict[str, Recording] = {
    "demo: digits": Recording(_recipe(Digits), "strict", 10),
    "demo: gpt2": Recording(_recipe(_small_gpt2), "strict", 3),
    "demo: gpt2, calibrated": Recording(_recipe(_small_gpt2), "calibrated", 3),
    "perceptron": Recording(_model(models.perceptron), "strict", 10),
    "lstm": Recording(_model(models.lstm), "calibrated", 2),
    "resnet": Recording(_model(models.resnet), "strict", 1),
    "llama in bfloat16": Recording(_model(models.llama, torch.bfloat16), "calibrated", 1),
    "wide perceptron": Recording(_model(models.mlp_2m), "strict", 3),
    "wide perceptron, longer": Recording(_model(models.mlp_2m), "strict", 100),
    "gpt2 of 11 M": Recording(_model(models.gpt2_11m), "strict", 3),
}
"""Trainings of ordinary size. The wide perceptrons have the most roundings for the time that they take."""

_FAMILIES = {
    "attention": "test_an_encoder_and_a_decoder",
    "fields": "test_splines_on_edges",
    "generative": "test_a_variational_autoencoder",
    "graph": "test_a_graph_network",
    "initialisation": "test_convolutions_that_pass_their_input_on",
    "language": "test_a_language_model[gpt2]",
    "nothing": "test_nothing_is_computed_with[float32]",
    "operations": "test_a_transformer_by_hand",
    "optimizers": "test_newton_schulz",
    "practice": "test_a_diffusion",
    "precision": "test_autocast_over_a_transformer",
    "recurrent": "test_cells_in_a_loop",
    "reinforcement": "test_ppo",
    "sampling": "test_generators_seeded_anew_within_a_step",
    "sequences": "test_a_selective_scan",
    "storage": "test_tied_weights",
    "vision": "test_a_residual_network",
}
"""One training of each module of the zoo (`tests/zoo`)."""

ZOO = {f"zoo: {family}": f"test_zoo_{family}.py::{test}" for family, test in _FAMILIES.items()}
GOLDEN = tuple(
    f"golden: {name}" for name in ("digits", "fine-tuned", "bfloat16", "chance", "resumed", "on-chip", "job")
)
"""Transcripts that an earlier version recorded (`tests/golden`)."""

RECORDED = (*RECORDINGS, *ZOO)
NAMES = (*GOLDEN, *RECORDED)


def record(name: str, path: Path) -> dict[str, Any]:
    """Records one of `RECORDED`.

    Args:
        name: Which.
        path: Where to, which must not exist yet.

    Returns:
        The Recorder's policy and what a transcript of the zoo does not say of itself.

    Raises:
        LookupError: There is no such training, or the zoo did not record it.
    """
    if name in RECORDINGS:
        recording = RECORDINGS[name]
        torch.manual_seed(SEED)
        recording.record(path, recording.updates, recording.policy)
        return {"updates": recording.updates}
    found = zoo_recordings.measured(lambda run: _keep(run, path), Path(f"{zoo_recordings.ZOO}/{ZOO[name]}"))
    if len(found) != 1:
        raise LookupError(f"the zoo recorded {len(found)} trainings for {ZOO[name]}, not one")
    return next(iter(found.values()))


def _keep(run: Path, path: Path) -> dict[str, Any]:
    shutil.copytree(run, path)
    return {}
