"""Weights that are said to be the run's own of an earlier step, read again from a file (`returned.cbor`)."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from redteam.row import Outcome, Row
from redteam.values import COVERED, LAUNDER
from redteam.workshop import (
    Batch,
    Recorded,
    Training,
    Weights,
    Workshop,
    digits,
    honest_flops,
    nearer,
    plainly,
    update,
)
from support.forging import at_step, forge, resign
from torch import nn

from weighbridge.core.digests import bytes_digest
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.returned_state import RETURNED, Held, Returned
from weighbridge.transcript.tensor_file import raw_bytes

STEPS, BACK, LIE = 40, 38, 6
"""Steps of the run; the one that takes weights from elsewhere; and the one before which they are said to be its state.

There is a checkpoint every other step, and none before step `LIE`: the history is false in the middle of one segment,
at whose ends it is true.
"""


def with_others(shop: Workshop, seed: int) -> tuple[Recorded, Weights]:
    """Records a run that copies a model made elsewhere over its weights near its end."""
    wanted = plainly(Training(batches=digits(seed + 1000, 60)), seed + 1000)

    def step(number: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == BACK:
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight.copy_(wanted[name])
        update(number, batch, model, optimizer)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = shop.record(Training(batches=digits(seed, STEPS), step=step), seed, verifiable=True, checkpoint_every=2)
    return run, wanted


def claimed(shop: Workshop, run: Recorded, wanted: Weights) -> Path:
    """Writes the run again, with a record and a table that say that these weights were its state before a step."""
    honest = Transcript.open(run.path)
    assert LIE not in honest.checkpoint_steps
    near = honest.checkpoint(LIE + 1)
    table = {name: (data.numel(), bytes_digest(raw_bytes(data))) for name, data in near.storages.items()}
    known = {bytes_digest(raw_bytes(weight)): f"model.{name}" for name, weight in wanted.items()}
    entered = {}
    for name, tensor in honest.undeclared(BACK).items():
        raw = raw_bytes(tensor)
        storage = known[bytes_digest(raw)]
        table[storage] = (len(raw), bytes_digest(raw))
        entered[BACK, name] = LIE, storage
    held = Held(table, near.rng)
    lie = at_step(LIE - 1, lambda tape, fields: fields.update(state=held.digest()))
    path = forge(run.path, shop.place() / "run", lie, data=honest.data, notes=honest.notes)
    (path / RETURNED).write_bytes(Returned({LIE: held}, entered).encode())
    resign(path)
    return path


def made_up(shop: Workshop, seed: int) -> Outcome:
    """The transcript proves that the tensors are what a record says; that this state was ever made, only a replay."""
    run, wanted = with_others(shop, seed)
    return Outcome(
        findings=shop.accused(claimed(shop, run, wanted)),
        gain=nearer(run.start, run.weights, wanted),
        cost=run.flops / honest_flops(Training(batches=digits(seed, STEPS))),
    )


ROWS = (
    Row(
        name="weights from elsewhere are said to be an earlier state of the run, of which one record is false",
        source="attacks on what a run reads back",
        wants=LAUNDER,
        gains=COVERED,
        attack=made_up,
        expected=("replay.mismatch",),
        note="The history is true at every checkpoint. Segments that made what came back are replayed whole, by the "
        "default plan and by any other that has segments replayed.",
    ),
)
