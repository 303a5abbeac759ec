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

Make = Callable[[Tensor, int, int], list[float]]
"""Makes a step's numbers: (wanted weights, steps left after it, its number)."""
Write = Callable[[Tensor, list[float], int], None]
"""Has a program put numbers into a parameter: (parameter, numbers, the step's number)."""


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


def words(wanted: Tensor, left: int) -> list[int]:
    """The wanted numbers' bits; before the last step others, so that values change from step to step."""
    return (wanted + left).reshape(-1).view(torch.int32).tolist()


def about_one(wanted: Tensor, left: int, number: int) -> list[float]:
    """Numbers whose low words are the wanted ones' bits, from 1 upwards, or downwards if the wanted one is negative."""
    return [double(word, ONE if word >= 0 else ONE - 1) for word in words(wanted, left)]


def in_low_words(weights: Tensor, numbers: list[float], number: int) -> None:
    """Each weight is the low word of a number of the program's."""
    low_words(weights, (torch.full((1,), each, dtype=torch.float64) for each in numbers))


def not_numbers(wanted: Tensor, left: int, number: int) -> list[float]:
    """NaNs whose low words are the wanted ones' bits."""
    return [double(word, NAN) for word in words(wanted, left)]


def in_payloads(weights: Tensor, numbers: list[float], number: int) -> None:
    """Each weight is the payload of a NaN that is neither batch nor state. The program also reads a NaN back."""
    torch.full((), math.nan).item()
    low_words(weights, (torch.tensor(each, dtype=torch.float64).reshape(1) for each in numbers))


def beside_formula(wanted: Tensor, left: int, number: int) -> list[float]:
    """Numbers that lie beside the formula's by a digit of each wanted one, the last digit first."""
    rest = wanted.double() * UNITS
    for _ in range(left):
        rest = (rest - rest.round()) * BASE
    return [1 + number / 1024 + digit * ULP for digit in rest.round().reshape(-1).tolist()]


def in_last_places(weights: Tensor, numbers: list[float], number: int) -> None:
    """Each step adds a digit to each weight."""
    cells = torch.cat([torch.full((1,), each, dtype=torch.float64) for each in numbers])
    units = (cells - torch.full((1,), 1 + number / 1024, dtype=torch.float64)) / ULP
    weights.copy_(weights / BASE + units.float().view_as(weights) / UNITS)


def brought(make: Make, write: Write, formulas: Mapping[str, str], shop: Workshop, seed: int) -> Outcome:
    """After some honest steps come those that write numbers which the adversary made before."""
    batches = digits(seed, TRAINED + WRITTEN)
    honest = Training(batches=batches, step=fit, build=row_of_weights, rate=RATE)
    elsewhere = Training(batches=digits(seed + 1000, 60), step=fit, build=row_of_weights, rate=RATE)
    (aim,) = (wanted := plainly(elsewhere, seed + 1000)).values()
    made = {step: make(aim, len(batches) - step, step) for step in range(TRAINED + 1, len(batches) + 1)}

    def step(number: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number <= TRAINED:
            fit(number, batch, model, optimizer)
            return
        with torch.no_grad():
            write(next(model.parameters()), made[number], number)

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
        attack=partial(brought, make, write, formulas),
        expected=("tape.free_input",),
        note=note,
    )
    for name, make, write, formulas, note in (
        (
            "weights in the low words of numbers that `(1e9 + 1) - 1e9` explains",
            about_one,
            in_low_words,
            WIDE,
            "The formula's rounding errors are so large that 31 bits fit into its tolerance.",
        ),
        (
            "digits of weights in the last places of numbers beside their formula",
            beside_formula,
            in_last_places,
            NARROW,
            "Three bits and more for each number. Below the budget of 1,024 bits a run it would not be found.",
        ),
        (
            "weights in the payloads of NaNs without an origin",
            not_numbers,
            in_payloads,
            {},
            "A tensor that is neither batch nor state is a violation, however small. Its payload is charged besides.",
        ),
    )
)
