"""What could be caught: inverses of the detection probability in the size of the run."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analysis.detection import detection_probability_eq1
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.periods import seen_in_periods
from analysis.smallest_run import smallest_run_chips, smallest_run_eq1

A = 8.64e19


@settings(deadline=None)
@given(st.integers(3, 5000), st.floats(0.05, 0.95), st.sampled_from([30.0, 90.0]), st.floats(0.02, 5))
def test_the_smallest_run_is_caught_and_a_smaller_one_is_not(s: int, p: float, days: float, rate: float) -> None:
    common = {"chips": 10**4, "run_days": days, "period_days": 30.0, "snapshot_rate_per_day": rate}
    try:
        flops = float(smallest_run_eq1(samples=s, probability=p, chip_flops_per_day=A, **common))
        chips = float(smallest_run_chips(samples=s, probability=p, **common))
    except InfeasibleError:
        assume(False)
    at = detection_probability_eq1(samples=s, flops_threshold=flops * (1 - 1e-12), chip_flops_per_day=A, **common)
    assert at == pytest.approx(p, rel=1e-6)
    assert seen_in_periods(samples=s, involved=chips, **common) >= p
    assert seen_in_periods(samples=s, involved=chips - 1, **common) < p
    if days == 30.0:  # without replacement is never worse, up to the rounding to whole chips
        assert chips <= math.ceil(flops / A / days * (1 - 1e-9))


def test_errors_say_what_to_do() -> None:
    common = {"chips": 100, "run_days": 30.0, "period_days": 30.0, "snapshot_rate_per_day": 0.001}
    with pytest.raises(InfeasibleError, match="raise samples"):
        smallest_run_eq1(samples=1, probability=0.9, chip_flops_per_day=A, **common)
    with pytest.raises(InfeasibleError, match="raise samples"):
        smallest_run_chips(samples=1, probability=0.9, **common)
    with pytest.raises(InfeasibleError, match="more different chips"):
        smallest_run_chips(samples=101, probability=0.9, **common)
    with pytest.raises(InfeasibleError, match="period_days"):
        smallest_run_eq1(samples=1, probability=0.9, chip_flops_per_day=A, **(common | {"run_days": 10.0}))
    with pytest.raises(DetectionDomainError, match="samples"):
        smallest_run_chips(samples=0, probability=0.9, **common)
