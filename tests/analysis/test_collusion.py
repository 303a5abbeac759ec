"""Provers who share a run, against enumeration and against the global stockpile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.detection import detection_probability_eq1
from analysis.stratified_sampling import strata_probability, worst_shares

A = 8.64e19
FLEET = {"chip_flops_per_day": A, "run_days": 30.0, "shown": -np.expm1(-3)}


def test_inspecting_one_of_several_sees_only_its_share() -> None:
    alone = strata_probability(
        samples=[50, 0, 0, 0], shares=[1, 0, 0, 0], flops_threshold=100 * A * 30, chips=[1000] * 4, **FLEET
    )
    shared = strata_probability(
        samples=[50, 0, 0, 0], shares=[0.25] * 4, flops_threshold=100 * A * 30, chips=[1000] * 4, **FLEET
    )
    w = -np.expm1(-3)
    assert alone == pytest.approx(1 - (1 - 0.1 * w) ** 50, rel=1e-12)
    assert shared == pytest.approx(1 - (1 - 0.025 * w) ** 50, rel=1e-12)


@given(st.lists(st.integers(100, 5000), min_size=2, max_size=5), st.integers(1, 40), st.floats(0.01, 0.5))
def test_sampling_in_proportion_to_chips_leaves_collusion_nothing(chips: list[int], s: int, part: float) -> None:
    """With samples in proportion to chips, the best that colluders can do is what one Prover with all chips can do."""
    flops = part * sum(chips) * A * 30
    samples = np.array(chips) * s / sum(chips)
    worst = worst_shares(samples=samples, flops_threshold=flops, chips=chips, **FLEET)
    seen = strata_probability(samples=samples, shares=worst, flops_threshold=flops, chips=chips, **FLEET)
    together = detection_probability_eq1(
        samples=s, flops_threshold=flops, chip_flops_per_day=A, chips=sum(chips), run_days=30.0, period_days=30.0,
        snapshot_rate_per_day=0.1,
    )  # fmt: skip
    assert seen == pytest.approx(float(together), rel=1e-7)


def test_colluders_avoid_the_inspected() -> None:
    worst = worst_shares(samples=[50, 0], flops_threshold=100 * A * 30, chips=[1000, 60], **FLEET)
    assert worst == pytest.approx(np.array([0.4, 0.6]))
