"""Fleets whose chips differ: both sides of the equilibrium do best against the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analysis.detection import detection_probability_eq1
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.stratified_sampling import (
    best_samples,
    strata_probability,
    whole_samples,
    worst_shares,
)

A = 8.64e19


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 4))
    numbers = st.lists(st.integers(10, 5000), min_size=count, max_size=count)
    rates = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=count, max_size=count)
    return {
        "flops_threshold": draw(st.floats(1, 3000)) * A * 30,
        "chip_flops_per_day": [A * draw(st.floats(0.2, 2)) for _ in range(count)],
        "chips": draw(numbers),
        "run_days": 30.0,
        "shown": draw(rates),
    }


def other_shares(fleet: dict[str, Any], seed: int) -> np.ndarray:
    """Random shares that fit."""
    capacity = np.array(fleet["chips"]) * np.array(fleet["chip_flops_per_day"]) * 30 / fleet["flops_threshold"]
    part = np.minimum(np.random.default_rng(seed).dirichlet(np.ones(len(capacity))), capacity)
    room = capacity - part
    return np.asarray(part + (1 - part.sum()) * room / room.sum() if room.sum() > 0 else part)


@settings(deadline=None)
@given(fleets(), st.lists(st.integers(0, 200), min_size=4, max_size=4), st.integers(0, 2**32))
def test_no_spread_is_seen_less_than_the_worst(fleet: dict[str, Any], samples: list[int], seed: int) -> None:
    samples = samples[: len(fleet["chips"])]
    try:
        worst = worst_shares(samples=samples, **fleet)
    except InfeasibleError:
        assume(False)
    seen = float(strata_probability(samples=samples, shares=worst, **fleet))
    other = float(strata_probability(samples=samples, shares=other_shares(fleet, seed), **fleet))
    assert other >= seen - 1e-9


@settings(deadline=None)
@given(fleets(), st.floats(1, 500), st.lists(st.floats(0.5, 4), min_size=4, max_size=4), st.integers(0, 2**32))
def test_no_samples_do_better_against_a_prover_who_knows_them(
    fleet: dict[str, Any], budget: float, costs: list[float], seed: int
) -> None:
    cost = np.array(costs[: len(fleet["chips"])])
    try:
        best = best_samples(budget=budget, sample_cost=cost, **fleet)
    except InfeasibleError:
        assume(False)
    assert (best * cost).sum() == pytest.approx(budget, rel=1e-9)

    def value(samples: np.ndarray) -> float:
        return float(strata_probability(samples=samples, shares=worst_shares(samples=samples, **fleet), **fleet))

    other = np.random.default_rng(seed).dirichlet(np.ones(len(cost))) * budget / cost
    assert value(np.asarray(best)) >= value(other) - 1e-9


def test_alike_strata_are_one_fleet() -> None:
    fleet = {"flops_threshold": 200 * A * 30, "run_days": 30.0}
    best = best_samples(budget=50, sample_cost=1, chip_flops_per_day=[A, A / 2], chips=[600, 800], shown=0.95, **fleet)
    worst = worst_shares(samples=best, chip_flops_per_day=[A, A / 2], chips=[600, 800], shown=0.95, **fleet)
    assert best == pytest.approx(np.array([30, 20]), rel=1e-9)
    seen = strata_probability(
        samples=best, shares=worst, chip_flops_per_day=[A, A / 2], chips=[600, 800], shown=0.95, **fleet
    )
    eq1 = detection_probability_eq1(
        samples=50, chips=1000, chip_flops_per_day=A, period_days=30, snapshot_rate_per_day=-np.log(0.05) / 30, **fleet
    )
    assert seen == pytest.approx(float(eq1), rel=1e-9)


def test_what_shows_nothing_is_used_first_and_not_sampled() -> None:
    fleet = {
        "flops_threshold": 200 * A * 30, "chip_flops_per_day": A, "chips": [1000, 50], "run_days": 30.0,
        "shown": [0.9, 0.0],
    }  # fmt: skip
    best = best_samples(budget=20, sample_cost=1, **fleet)
    assert best == pytest.approx(np.array([20, 0]))
    assert worst_shares(samples=best, **fleet) == pytest.approx(np.array([0.75, 0.25]))
    with pytest.raises(InfeasibleError, match="show nothing"):
        best_samples(budget=20, sample_cost=1, **(fleet | {"chips": [1000, 200]}))


def test_leading_axes_broadcast() -> None:
    fleet = {"chip_flops_per_day": A, "chips": [600, 400], "run_days": 30.0, "shown": [0.9, 0.5]}
    flops = np.array([[100], [300]]) * A * 30
    together = worst_shares(samples=[5, 5], flops_threshold=flops, **fleet)
    for row in range(2):
        assert together[row] == pytest.approx(worst_shares(samples=[5, 5], flops_threshold=flops[row], **fleet))


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 40)), min_size=1, max_size=5))
def test_whole_samples_stay_within_budget_and_strata(pairs: list[tuple[float, int]]) -> None:
    wanted, chips = np.array([w for w, _ in pairs]), np.array([c for _, c in pairs], dtype=float)
    found = whole_samples(samples=wanted, chips=chips)
    assert np.all(found == np.floor(found))
    assert np.all((found >= np.floor(np.minimum(wanted, chips))) & (found <= chips))
    assert found.sum() <= np.minimum(wanted, chips).sum() + 1e-6
    assert found.sum() > np.minimum(wanted, chips).sum() - 1 - 1e-6


def test_errors() -> None:
    fleet = {
        "flops_threshold": 200 * A * 30, "chip_flops_per_day": A, "chips": [600, 400], "run_days": 30.0, "shown": 0.9
    }  # fmt: skip
    with pytest.raises(DetectionDomainError, match="sum to 1"):
        strata_probability(samples=1, shares=[0.5, 0.4], **fleet)
    with pytest.raises(DetectionDomainError, match="fewer chips"):
        strata_probability(samples=1, shares=[0.5, 0.5], **(fleet | {"chips": [600, 40]}))
    with pytest.raises(InfeasibleError, match="does not fit"):
        worst_shares(samples=1, **(fleet | {"chips": [60, 40]}))
    with pytest.raises(InfeasibleError, match="every chip"):
        best_samples(budget=1, sample_cost=1, **(fleet | {"chips": [100, 100]}))
