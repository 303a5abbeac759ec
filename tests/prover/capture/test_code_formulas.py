"""Formulas that are read from source give what running it gives; what cannot be read has none."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from prover.capture import code_formulas
from weighbridge.transcript.formula_arithmetic import tolerance
from weighbridge.transcript.formula_terms import COUNTS, Formulas

WARM, TOTAL = 4, 16


def cosine(it: int, least: float = 0.1) -> float:
    """Rises, falls, stays."""
    if it < WARM:
        return (it + 1) / WARM
    if it >= TOTAL:
        return least
    part = (it - WARM) / (TOTAL - WARM)
    assert 0 <= part <= 1
    return least + 0.5 * (1 + math.cos(math.pi * part)) * (1 - least)


def divided(epoch: int) -> float:
    lr = 0.1
    if epoch >= 10:
        lr *= 0.1
    elif epoch % 3 == 2:
        lr = lr / 2
    return lr * 0.5 ** (epoch // 30)


def calls(it: int) -> float:
    scale: float = cosine(it, least=0.01)
    return scale * 2 if 3 < it <= 9 or not it else -scale


READABLE = {
    "cosine": cosine,
    "divided": divided,
    "calls": calls,
    "noam": lambda s: 512**-0.5 * min((s + 1) ** -0.5, (s + 1) * WARM**-1.5),
    "numpy": lambda s: float(np.exp(-s / 100) * np.sqrt(s + 1) + np.maximum(0, 3 - s)),
    "whole": lambda s: int(s / 3) + math.ceil(s / 4) + abs(s - 5) + math.pow(s, 2) + s % 7,
    "bound": partial(cosine, least=0.2),
}


@pytest.mark.parametrize("name", READABLE)
def test_a_formula_gives_what_the_function_gives(name: str) -> None:
    function: Any = READABLE[name]
    text = code_formulas.of_function(function, "count")
    assert text is not None
    parsed = Formulas.parse({"it": text})
    for at in (*range(40), 100, 1000):
        given = parsed.evaluate("it", at + 1, counts=[at] * len(COUNTS))
        assert abs(function(at) - given[0]) <= tolerance(given, 0.0), at


def test_lambdas_of_one_line_are_told_apart() -> None:
    both: list[Any] = [lambda s: s + 1.0, lambda s: s + 2.0]
    assert [code_formulas.of_function(each, "t") for each in both] == ["((t) + 1.0)", "((t) + 2.0)"]


def loops(it: int) -> float:
    for _ in range(3):
        it += 1
    return float(it)


def draws(it: int) -> float:
    return it * random.random()


calls_of_odd = 0


class Odd:
    """Would tell if its code ran."""

    @property
    def lr(self) -> float:
        global calls_of_odd
        calls_of_odd += 1
        return 1.0


ODD = Odd()


@pytest.mark.parametrize(
    "function",
    [loops, draws, lambda s: math.sin(s), lambda s: ODD.lr * s, lambda s: [1.0, 0.5][s % 2], lambda s: s.real, print],
)  # fmt: skip
def test_what_cannot_be_read_has_no_formula_and_is_not_run(function: Any) -> None:
    assert code_formulas.of_function(function, "t") is None
    assert calls_of_odd == 0


def test_a_formula_that_would_be_too_long_is_none() -> None:
    def doubled(it: int) -> float:
        a = it + 1.0
        b = a * a
        c = b * b
        d = c * c
        e = d * d
        f = e * e
        return f * f

    assert code_formulas.of_function(doubled, "t") is None
