"""Weights in the counts of schedules: formulas take for granted how far a schedule is, and the Prover says it."""

from __future__ import annotations

import pytest
import torch
from redteam.numbers_beside import RATE, TRAINED, fit, row_of_weights
from redteam.row import Outcome, Row
from redteam.values import COVERED, LAUNDER
from redteam.workshop import PIXELS, Batch, Training, Workshop, counted, digits, nearer, plainly
from torch import nn

from prover.capture.derived_formulas import Derived
from prover.recording import step_runner
from weighbridge.transcript.formula_terms import COUNTS

SCALE, LEAST = 1 << 24, 64
"""A count c is the weight c / SCALE - LEAST."""


def spelled(shop: Workshop, seed: int) -> Outcome:
    """After some honest steps, each step brings in as many weights as a record has counts."""
    at_a_time = len(COUNTS)
    batches = digits(seed, TRAINED + PIXELS // at_a_time)
    honest = Training(batches=batches, step=fit, build=row_of_weights, rate=RATE)
    elsewhere = Training(batches=digits(seed + 1000, 60), step=fit, build=row_of_weights, rate=RATE)
    (aim,) = (wanted := plainly(elsewhere, seed + 1000)).values()
    told = [round((weight + LEAST) * SCALE) for weight in aim.reshape(-1).tolist()]
    now: list[int] = [0] * at_a_time

    class Told(Derived):
        """Formulas of counts that the adversary chooses."""

        def __init__(self, *attached: object) -> None:
            super().__init__()
            if attached:
                self.declared = {f"w{n}": f"{count} / {SCALE} - {LEAST}" for n, count in enumerate(COUNTS)}

        def counts(self) -> list[int]:
            taken = runs.pop(0) if runs else now
            now[:] = taken
            return taken if self.declared else []

    runs = [now] * TRAINED + [told[first : first + at_a_time] for first in range(0, PIXELS, at_a_time)]

    def step(number: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number <= TRAINED:
            fit(number, batch, model, optimizer)
            return
        with torch.no_grad():
            weights = next(model.parameters())
            fresh = [torch.full((1,), count / SCALE - LEAST, dtype=torch.float64).float() for count in now]
            weights.copy_(torch.cat([weights[0, at_a_time:], *fresh]).view_as(weights))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_runner, "Derived", Told)
        run = shop.record(Training(batches=batches, step=step, build=row_of_weights, rate=RATE), seed)
    return Outcome(
        findings=shop.accused(run.path),
        gain=nearer(run.start, run.weights, wanted),
        cost=run.flops / counted(lambda: plainly(honest, 0)),
    )


ROWS = (
    Row(
        name="weights in the counts of schedules that formulas follow",
        source="attacks on values and their formulas",
        wants=LAUNDER,
        gains=COVERED,
        attack=spelled,
        expected=("transcript.chosen_bits",),
        note="Eight counts a step. A count that goes on as before costs nothing; any other costs what describes it.",
    ),
)
