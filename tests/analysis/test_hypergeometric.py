"""Sampling whole items without replacement, against exact fractions and an arbitrary-precision sum."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from analysis import hypergeometric
from analysis.domain import DetectionDomainError, FloatArray, InfeasibleError
from analysis.hypergeometric import least_drawn, seen_probability


def exactly(population: int, marked: int, drawn: int, shown: float) -> Fraction:
    miss = 1 - Fraction(shown)
    ways = math.comb(population, drawn)
    return 1 - sum(
        Fraction(math.comb(marked, j) * math.comb(population - marked, drawn - j), ways) * miss**j
        for j in range(max(0, drawn + marked - population), min(marked, drawn) + 1)
    )


@settings(deadline=None)
@given(st.integers(1, 200), st.data())
def test_equals_exact_fractions_to_the_last_digits(population: int, data: st.DataObject) -> None:
    marked, drawn = data.draw(st.integers(0, population)), data.draw(st.integers(0, population))
    shown = data.draw(
        st.one_of(st.integers(0, 1024).map(lambda k: k / 1024), st.sampled_from([2.0**-45, 1 - 2.0**-45]))
    )
    exact = float(exactly(population, marked, drawn, shown))
    found = float(seen_probability(population=population, marked=marked, drawn=drawn, shown=shown))
    assert found == pytest.approx(exact, rel=1e-13, abs=1e-300)


@pytest.mark.parametrize(
    ("population", "marked", "drawn", "shown"),
    [
        (10**9, 2223, 10**6, 0.95),
        (10**9, 40, 7 * 10**8, 0.03),
        (10**9, 3, 10**9 - 600, 1e-7),
        (10**9, 30, 1, 1e-9),
        (2**53, 25, 2**50, 1.0),
    ],
)
def test_large_populations_to_thirteen_digits(population: int, marked: int, drawn: int, shown: float) -> None:
    with mp.workdps(60):
        ways = mp.binomial(population, drawn)
        miss = mp.fsum(
            mp.binomial(marked, j) * mp.binomial(population - marked, drawn - j) / ways * (1 - mp.mpf(shown)) ** j
            for j in range(min(marked, drawn, 60) + 1)
        )
        exact = float(1 - miss)
    found = float(seen_probability(population=population, marked=marked, drawn=drawn, shown=shown))
    assert found == pytest.approx(exact, rel=1e-12)


def test_marked_and_drawn_change_places() -> None:
    for marked, drawn in ((10**6, 2300), (7, 10**8), (10**8, 10**7)):
        one = seen_probability(population=10**9, marked=marked, drawn=drawn, shown=1.0)
        other = seen_probability(population=10**9, marked=drawn, drawn=marked, shown=1.0)
        assert one == pytest.approx(float(other), rel=1e-11)


@settings(deadline=None)
@given(st.integers(2, 10**9), st.floats(1e-6, 1), st.floats(1e-6, 1), st.floats(1e-3, 1))
def test_it_lies_between_zero_and_one_and_grows_with_everything(n: int, x: float, y: float, shown: float) -> None:
    marked, drawn = math.ceil(x * n), math.ceil(y * n)
    at = {"population": n, "marked": marked, "drawn": drawn, "shown": shown}
    found = float(seen_probability(**at))
    assert 0 < found <= 1
    for less in ({"marked": marked - 1}, {"drawn": drawn - 1}, {"shown": shown / 2}):
        assert float(seen_probability(**(at | less))) <= found * (1 + 1e-12)
    one_sample = drawn / n * shown  # the chance that one particular marked item is drawn and seen
    assert one_sample * (1 - 1e-12) <= found <= min(1.0, marked * one_sample) * (1 + 1e-12)


@settings(deadline=None)
@given(st.integers(1, 10**6), st.data())
def test_the_least_number_is_least(population: int, data: st.DataObject) -> None:
    marked = data.draw(st.integers(1, population))
    shown, wanted = data.draw(st.floats(0.01, 1)), data.draw(st.floats(0.001, 0.999))
    arguments: dict[str, Any] = {"population": population, "marked": marked, "shown": shown}
    try:
        least = float(least_drawn(wanted=wanted, **arguments))
    except InfeasibleError:
        assert float(seen_probability(drawn=population, **arguments)) < wanted
        return
    assert float(seen_probability(drawn=least, **arguments)) >= wanted * (1 - 1e-14)
    assert float(seen_probability(drawn=least - 1, **arguments)) < wanted


def test_broadcasting_equals_one_at_a_time() -> None:
    population, marked, drawn = np.array([50, 5000]), np.array([[5], [7], [20]]), 12
    found = seen_probability(population=population, marked=marked, drawn=drawn, shown=0.5)
    assert found.shape == (3, 2)
    for row in range(3):
        for column in range(2):
            alone = seen_probability(population=population[column], marked=marked[row, 0], drawn=drawn, shown=0.5)
            assert found[row, column] == alone


def test_many_elements_are_computed_in_blocks() -> None:
    drawn = np.arange(10_001)
    found = seen_probability(population=10_000_000, marked=1000, drawn=drawn, shown=0.9)
    assert found.shape == drawn.shape
    assert np.all(np.diff(found) > 0)
    assert seen_probability(population=10, marked=np.empty(0), drawn=1, shown=1.0).shape == (0,)


def test_a_plan_at_a_thousand_million_chips_takes_one_evaluation_for_each_halving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluated = []

    def counted(*arrays: FloatArray) -> FloatArray:
        evaluated.append(arrays[0].size)
        return seen(*arrays)

    seen = hypergeometric._seen
    monkeypatch.setattr(hypergeometric, "_seen", counted)
    least_drawn(population=10**9, marked=2223, shown=0.95, wanted=0.9)
    assert sum(evaluated) <= 1 + math.ceil(math.log2(10**9))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"drawn": 11}, InfeasibleError),
        ({"marked": 11}, InfeasibleError),
        ({"population": 0}, DetectionDomainError),
        ({"marked": 1.5}, DetectionDomainError),
        ({"shown": 1.1}, DetectionDomainError),
        ({"shown": math.nan}, DetectionDomainError),
        ({"population": 2.0**54}, DetectionDomainError),
        ({"population": None}, DetectionDomainError),
    ],
)
def test_what_is_out_of_range(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        seen_probability(**({"population": 10, "marked": 1, "drawn": 1, "shown": 0.5} | changes))


def test_what_no_sample_reaches_says_so() -> None:
    with pytest.raises(InfeasibleError, match="drawing every item"):
        least_drawn(population=10, marked=1, shown=0.5, wanted=0.9)
