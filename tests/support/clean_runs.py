"""Small recorded runs about which an inspection says nothing at all: data committed to, formulas declared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.forging import Change, forge
from support.recording_store import RecordingStore
from torch import Tensor, nn
from torch.nn import functional as F

from prover import Recorder, formulas
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.reader import Transcript

STEPS, ROWS = 3, 4
END = STEPS + 1
"""The step after the last one: a snapshot there needs no name in the transcript."""
FORMULAS = formulas.constant(1e-2) | formulas.adamw()
DRAWS = torch.Generator().manual_seed(5)
RECORDS = [
    {"x": torch.randint(0, 12, (3,), generator=DRAWS), "y": torch.randint(0, 4, (), generator=DRAWS)}
    for _ in range(STEPS * ROWS)
]
DATA = DataCommitment.over(RECORDS, range(len(RECORDS)))

Batch = dict[str, Tensor]
Update = Callable[[int, Batch, nn.Module, torch.optim.Optimizer], None]


def batch_of(step: int) -> Batch:
    """The batch of a step, from 1."""
    rows = RECORDS[(step - 1) * ROWS : step * ROWS]
    return {name: torch.stack([row[name] for row in rows]) for name in ("x", "y")}


def network() -> nn.Sequential:
    """A classifier of three symbols."""
    return nn.Sequential(nn.Embedding(12, 8), nn.Flatten(), nn.Linear(24, 8), nn.GELU(), nn.Linear(8, 4))


def update(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One honest step."""
    F.cross_entropy(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def record(
    path: Path, step: Update = update, *, begin: dict[str, Tensor] | None = None,
    make: Callable[[], nn.Sequential] = network, **options: Any,
) -> Path:  # fmt: skip
    """Records a training.

    Args:
        path: The transcript.
        step: Does one step.
        begin: Weights of a model that exists before the recording; by default its initialisation is recorded.
        make: Makes the model.
        options: Of the Recorder, in place of the usual ones.
    """
    usual = {"seed": 3, "data": DATA, "formulas": FORMULAS, "checkpoint_every": 50}
    with Recorder(path, **{**usual, **options}) as recorder:
        if begin is None:
            with recorder.initialisation():
                model = make()
        else:
            model = make()
            model.load_state_dict(begin)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for number in range(1, STEPS + 1):
            batch = batch_of(number)
            with recorder.step(batch):
                step(number, batch, model, optimizer)
    return path


def honest(recordings: RecordingStore, path: Path) -> Path:
    """Returns a copy of the usual honest run, which is recorded once a session."""
    return recordings.copy("honest", record, path, "small")


def forged(source: Path, target: Path, change: Change = lambda *_: None, **options: Any) -> Path:
    """Forges a transcript of these runs; its data stay committed to. `options` are those of `forge`."""
    return forge(source, target, change, **{"data": Transcript.open(source).data, **options})
