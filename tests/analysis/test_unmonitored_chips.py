"""Unmonitored chips set a floor, and waste samples."""

from __future__ import annotations

import pytest

from analysis.detection import detection_probability_eq1
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.unmonitored_chips import monitored_flops, sampled_waste, unmonitored_flops

A = 8.64e19
FLEET = {"chip_flops_per_day": A, "run_days": 30.0}


def test_the_floor_and_what_is_left() -> None:
    free = unmonitored_flops(legacy_chips=100, legacy_flops_per_day=A / 4, exempt_chips=10, **FLEET)
    assert free == 35 * A * 30
    assert monitored_flops(flops_threshold=135 * A * 30, unmonitored=free) == pytest.approx(100 * A * 30)
    with pytest.raises(InfeasibleError, match="no number of inspections"):
        monitored_flops(flops_threshold=35 * A * 30, unmonitored=free)
    assert unmonitored_flops(legacy_chips=0, legacy_flops_per_day=0, exempt_chips=0, **FLEET) == 0


def test_exempt_chips_left_in_the_sample_cost_that_many_times_the_samples() -> None:
    more = float(sampled_waste(chips=1000, exempt_chips=200))
    assert more == 1.25
    common = {"flops_threshold": A * 30, "period_days": 30.0, "snapshot_rate_per_day": 0.1, **FLEET}
    apart = detection_probability_eq1(samples=4, chips=800, **common)
    mixed = detection_probability_eq1(samples=5, chips=1000, **common)
    assert mixed == pytest.approx(float(apart), rel=1e-3)
    with pytest.raises(DetectionDomainError, match="every chip is exempt"):
        sampled_waste(chips=10, exempt_chips=10)
