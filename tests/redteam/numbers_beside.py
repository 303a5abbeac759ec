"""Weights in numbers that a declared formula seems to explain, or that are no numbers: values as a way in.

A Recorder executes with a formula's own value. The adversary's own Recorder does not, and writes a transcript whose
values lie within their formulas' tolerances, or whose NaNs have payloads.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from redteam.row import Outcome, Row
from redteam.values import COVERED, LAUNDER
from redteam.workshop import PIXELS, Batch, Training, Workshop, counted, digits, nearer, plainly
from torch import Tensor, nn

from prover.capture.substitution import Substitution

TRAINED, WRITTEN = 2, 6
"""Honest steps, and steps that bring weights in."""
RATE = 0.02
ONE = 0x3FF00000
"""The high word of 1.0."""
WIDE = {"w": "(1e9 + 1) - 1e9"}
"""A formula with the value 1, and a tolerance of some 2^-21."""
NARROW = {"w": "1 + t / 1024"}
"""A formula with a tolerance of a few units in the last place."""
NAN = 0x7FF80000
"""The high word of a quiet NaN."""
ULP = 2.0**-52
UNITS, BASE = 4, 8
"""Units in the last place beside the formula, on either side, that are used of it; and the base of the digits."""

Write = Callable[[Tensor, Tensor, int, int], None]
"""Puts numbers into a parameter: (parameter, wanted numbers, steps left, number of the step)."""


@contextmanager
def own_recorder() -> Iterator[None]:
    """A Recorder of the adversary's own, which executes operations with what the program says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Substitution, "value", lambda self, place, value: value)
        yield


def row_of_weights() -> nn.Sequential:
    """A linear model of 64 weights."""
    return nn.Sequential(nn.Linear(PIXELS, 1, bias=False))


def fit(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One honest step of a regression on the labels."""
    (0.5 * (model(batch["x"])[:, 0] - batch["y"].float()).square().mean()).backward()
    optimizer.step()
    optimizer.zero_grad()


def double(low: int, high: int) -> float:
    """The float64 of two words."""
    number: float = struct.unpack("<d", struct.pack("<II", low & 0xFFFFFFFF, high))[0]
    return number


def low_words(weights: Tensor, cells: Iterable[Tensor]) -> None:
    """Sets each weight to the low word of a float64. The old weights have bearing on it, so it is no plain copy."""
    words = torch.cat([cell.view(torch.float32)[:1] for cell in cells])
    weights.copy_(weights * 0 + words.view_as(weights))


def _words(wanted: Tensor, left: int) -> list[int]:
    """The wanted numbers' bits; before the last step others, so that values change from step to step."""
    return (wanted + left).reshape(-1).view(torch.int32).tolist()


def in_low_words(weights: Tensor, wanted: Tensor, left: int, number: int) -> None:
    """Each weight is the low word of a number that is about 1, from below if the weight is negative."""
    numbers = (double(word, ONE if word >= 0 else ONE - 1) for word in _words(wanted, left))
    low_words(weights, (torch.full((1,), each, dtype=torch.float64) for each in numbers))


def in_payloads(weights: Tensor, wanted: Tensor, left: int, number: int) -> None:
    """Each weight is the payload of a NaN that is neither batch nor state. The program also reads a NaN back."""
    torch.full((), math.nan).item()
    free = (torch.tensor(double(word, NAN), dtype=torch.float64) for word in _words(wanted, left))
    low_words(weights, (cell.reshape(1) for cell in free))


def in_last_places(weights: Tensor, wanted: Tensor, left: int, number: int) -> None:
    """Each step adds a digit to each weight, the last one first: the units that its number lies beside the formula."""
    rest = wanted.double() * UNITS
    for _ in range(left):
        rest = (rest - rest.round()) * BASE
    formula = 1 + number / 1024
    numbers = (formula + digit * ULP for digit in rest.round().reshape(-1).tolist())
    cells = torch.cat([torch.full((1,), each, dtype=torch.float64) for each in numbers])
    digits_ = (cells - torch.full((1,), formula, dtype=torch.float64)) / ULP
    weights.copy_(weights / BASE + digits_.float().view_as(weights) / UNITS)


def brought(write: Write, formulas: Mapping[str, str], shop: Workshop, seed: int) -> Outcome:
    """After some honest steps come those that write."""
    batches = digits(seed, TRAINED + WRITTEN)
    honest = Training(batches=batches, step=fit, build=row_of_weights, rate=RATE)
    elsewhere = Training(batches=digits(seed + 1000, 60), step=fit, build=row_of_weights, rate=RATE)
    (aim,) = (wanted := plainly(elsewhere, seed + 1000)).values()

    def step(number: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number <= TRAINED:
            fit(number, batch, model, optimizer)
            return
        with torch.no_grad():
            write(next(model.parameters()), aim, TRAINED + WRITTEN - number, number)

    with own_recorder():
        run = shop.record(
            Training(batches=batches, step=step, build=row_of_weights, rate=RATE), seed, formulas=dict(formulas)
        )
    return Outcome(
        findings=shop.accused(run.path),
        gain=nearer(run.start, run.weights, wanted),
        cost=run.flops / counted(lambda: plainly(honest, 0)),
    )


ROWS = tuple(
    Row(
        name=name,
        source="attacks on values and their formulas",
        wants=LAUNDER,
        gains=COVERED,
        attack=partial(brought, write, formulas),
        expected=("tape.free_input",),
        note=note,
    )
    for name, write, formulas, note in (
        (
            "weights in the low words of numbers that `(1e9 + 1) - 1e9` explains",
            in_low_words,
            WIDE,
            "The formula's rounding errors are so large that 31 bits fit into its tolerance.",
        ),
        (
            "digits of weights in the last places of numbers beside their formula",
            in_last_places,
            NARROW,
            "Three bits and more for each number. Below the budget of 1,024 bits a run it would not be found.",
        ),
        (
            "weights in the payloads of NaNs without an origin",
            in_payloads,
            {},
            "Read back, all NaNs are one; the payload of a tensor's is kept, and charged.",
        ),
    )
)
