"""Snapshots that accumulate over monitoring periods, against enumeration of every outcome."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.detection import (
    InfeasibleError,
    detection_probability_eq1,
    detection_probability_hypergeometric,
    samples_needed,
)
from analysis.domain import DetectionDomainError
from analysis.periods import (
    accumulating_probability,
    accumulating_probability_followed,
    accumulating_probability_hypergeometric,
    accumulating_samples,
    accumulating_samples_hypergeometric,
    periods_of_run,
    seen_in_periods,
)

A = 8.64e19


def plan(**changes: Any) -> dict[str, Any]:
    base = {
        "flops_threshold": 5.76e23,
        "chip_flops_per_day": A,
        "chips": 10**5,
        "run_days": 90.0,
        "period_days": 30.0,
        "snapshot_rate_per_day": 0.1,
    }
    return base | changes


def test_published_check_values() -> None:
    """With s from equation 1: p = .9077 at T = 90 and .9106 at T = 360."""
    for days, expected in ((90.0, 0.9077), (360.0, 0.9106)):
        arguments = plan(run_days=days)
        samples = np.ceil(samples_needed(probability=0.9, **arguments))
        assert accumulating_probability(samples=samples, **arguments) == pytest.approx(expected, abs=5e-4)


@settings(deadline=None)
@given(st.integers(0, 300), st.floats(1e22, 9e24), st.integers(1, 12), st.floats(0.005, 2.0))
def test_equation_1_is_a_lower_bound_and_equal_in_one_period(s: int, flops: float, periods: int, rate: float) -> None:
    arguments = plan(flops_threshold=flops, run_days=30.0 * periods, snapshot_rate_per_day=rate)
    eq1 = float(detection_probability_eq1(samples=s, **arguments))
    accumulated = float(accumulating_probability(samples=s, **arguments))
    assert accumulated >= eq1 * (1 - 1e-12)
    if periods == 1:
        assert accumulated == pytest.approx(eq1, rel=1e-12)


def test_one_period_equals_the_single_inspection() -> None:
    arguments = plan(run_days=20.0)
    once = detection_probability_hypergeometric(
        samples=1000, **{key: value for key, value in arguments.items() if key != "period_days"}
    )
    assert accumulating_probability_hypergeometric(samples=1000, **arguments) == pytest.approx(float(once), rel=1e-13)


def by_enumeration(samples: int, involved: int, chips: int, moments: list[float], rate: float) -> float:
    """Every sequence of draws and every set of periods in which the involved chips get their first snapshot."""
    draws = list(itertools.combinations(range(chips), samples))
    edges = [0.0, *moments, math.inf]
    first = [math.exp(-rate * a) - math.exp(-rate * b) for a, b in itertools.pairwise(edges)]
    missed = 0.0
    for periods in itertools.product(range(len(first)), repeat=involved):
        weight = math.prod(first[period] for period in periods)
        for sequence in itertools.product(draws, repeat=len(moments)):
            seen = any(
                periods[chip] <= number for number, draw in enumerate(sequence) for chip in draw if chip < involved
            )
            missed += weight * (not seen)
    return 1 - missed / len(draws) ** len(moments)


@pytest.mark.parametrize(("samples", "involved", "chips"), [(1, 1, 3), (2, 2, 4), (1, 3, 5), (3, 2, 4)])
def test_following_the_chips_equals_enumeration(samples: int, involved: int, chips: int) -> None:
    exact = by_enumeration(samples, involved, chips, [30.0, 60.0, 75.0], 0.03)
    followed = accumulating_probability_followed(
        samples=samples, involved=involved, chips=chips, run_days=75.0, period_days=30.0, snapshot_rate_per_day=0.03
    )
    assert followed == pytest.approx(exact, rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(0, 20), st.integers(1, 6), st.floats(0.003, 1.0))
def test_independent_periods_are_never_below_the_truth_and_close_to_it(
    n: int, s: int, periods: int, rate: float
) -> None:
    common = {"samples": s, "involved": n, "chips": 60, "run_days": 30.0 * periods, "period_days": 30.0}
    followed = accumulating_probability_followed(snapshot_rate_per_day=rate, **common)
    product = float(seen_in_periods(snapshot_rate_per_day=rate, **common))
    assert followed <= product + 1e-12
    if periods == 1:
        assert followed == pytest.approx(product, abs=1e-12)


def test_the_difference_vanishes_where_many_chips_are_involved() -> None:
    gaps = []
    for involved in (1, 10, 100, 1000):
        common = {"samples": 2, "involved": involved, "chips": 10 * involved, "run_days": 90.0, "period_days": 30.0}
        exact = accumulating_probability_followed(snapshot_rate_per_day=0.02, **common)
        gaps.append(float(seen_in_periods(snapshot_rate_per_day=0.02, **common)) - exact)
    assert all(later < earlier / 5 for earlier, later in itertools.pairwise(gaps))


def test_samples_invert_the_probabilities() -> None:
    arguments = plan(run_days=100.0)
    real = float(accumulating_samples(probability=0.9, **arguments))
    assert accumulating_probability(samples=math.ceil(real), **arguments) >= 0.9
    assert accumulating_probability(samples=math.ceil(real) - 1, **arguments) < 0.9
    least = float(accumulating_samples_hypergeometric(probability=0.9, **arguments))
    assert accumulating_probability_hypergeometric(samples=least, **arguments) >= 0.9
    assert accumulating_probability_hypergeometric(samples=least - 1, **arguments) < 0.9
    assert least <= math.ceil(real)


def test_periods_broadcast_with_different_lengths_of_runs() -> None:
    days = np.array([10.0, 30.0, 31.0, 90.0, 95.0])
    assert periods_of_run(run_days=days, period_days=30.0).tolist() == [1, 1, 2, 3, 4]
    together = accumulating_probability(samples=50, **plan(run_days=days))
    assert together.tolist() == [float(accumulating_probability(samples=50, **plan(run_days=d))) for d in days]


def test_what_is_out_of_range() -> None:
    with pytest.raises(InfeasibleError, match="more different chips"):
        accumulating_probability_hypergeometric(samples=10**5 + 1, **plan())
    with pytest.raises(InfeasibleError, match="sampling every chip"):
        accumulating_samples_hypergeometric(
            probability=0.999, **plan(flops_threshold=A, snapshot_rate_per_day=0.001, chips=10)
        )
    with pytest.raises(DetectionDomainError, match="too many"):
        accumulating_probability(samples=1, **plan(period_days=1e-6))
    with pytest.raises(DetectionDomainError, match="at most 1000"):
        accumulating_probability_followed(
            samples=1, involved=1001, chips=2000, run_days=30.0, period_days=30.0, snapshot_rate_per_day=0.1
        )
