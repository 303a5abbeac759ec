"""The 2H rule and detection during a run, against equation 1 and a simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.domain import DetectionDomainError
from analysis.early_detection import (
    fraction_done_when_detected,
    incriminating_flops,
    probability_by_day,
    threshold_to_catch,
)
from analysis.periods import accumulating_probability

A = 8.64e19


def scenario(**changes: Any) -> dict[str, Any]:
    base = {
        "samples": 10,
        "run_flops": 2 * 100 * A * 30,
        "flops_threshold": 100 * A * 30,
        "chip_flops_per_day": A,
        "chips": 1000,
        "run_days": 60.0,
        "period_days": 30.0,
        "snapshot_rate_per_day": 0.1,
    }
    return base | changes


def test_a_run_of_2h_is_caught_as_a_violation_of_h() -> None:
    """The second half of a run of 2H on n chips is a run of H on n chips; snapshots of the first half do not count."""
    arguments = scenario()
    expected = accumulating_probability(
        samples=10, flops_threshold=100 * A * 30, chip_flops_per_day=A, chips=1000, run_days=30.0, period_days=30.0,
        snapshot_rate_per_day=0.1,
    )  # fmt: skip
    assert probability_by_day(elapsed_days=60, **arguments) == pytest.approx(float(expected), rel=1e-12)
    assert probability_by_day(elapsed_days=[0, 30, 59.9], **arguments).tolist() == [0, 0, 0]


def test_threshold_and_incriminating_part() -> None:
    assert threshold_to_catch(run_flops=1e25) == 5e24
    assert threshold_to_catch(run_flops=1e25, by_fraction=0.5) == 2.5e24
    assert incriminating_flops(run_flops=[1e25, 1e24], flops_threshold=4e24) == pytest.approx(np.array([6e24, 0]))
    with pytest.raises(DetectionDomainError, match="by_fraction"):
        threshold_to_catch(run_flops=1e25, by_fraction=0)


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(1, 60), st.floats(0.001, 5), st.floats(0.1, 1.5))
def test_the_chance_grows_with_time_and_shrinks_with_the_threshold(
    s: int, period: float, rate: float, part: float
) -> None:
    arguments = scenario(samples=s, period_days=period, snapshot_rate_per_day=rate)
    arguments["flops_threshold"] = part * arguments["run_flops"]
    days = np.linspace(0, 120, 25)
    found = probability_by_day(elapsed_days=days, **arguments)
    assert np.all(np.diff(found) >= 0)
    assert np.all((found >= 0) & (found <= 1))
    if part >= 1:
        assert np.all(found == 0)
    lower = scenario(samples=s, period_days=period, snapshot_rate_per_day=rate, flops_threshold=1.0)
    assert np.all(probability_by_day(elapsed_days=days, **lower) >= found - 1e-15)


def test_days_and_fractions_agree_with_a_simulation() -> None:
    arguments = scenario(samples=3, period_days=10.0, snapshot_rate_per_day=0.05)
    generator = np.random.default_rng(8)
    rounds, chips, involved = 20_000, 1000, 100
    done = np.ones(rounds)
    caught = np.zeros(rounds, dtype=bool)
    for day in (10, 20, 30, 40, 50, 60):
        drawn = generator.integers(0, chips, (rounds, 3)) < involved
        shown = generator.random((rounds, 3)) < -np.expm1(-0.05 * max(0, day - 30))
        now = (drawn & shown).any(axis=1) & ~caught
        done[now] = day / 60
        caught |= now
    error = 5 / np.sqrt(rounds)
    assert probability_by_day(elapsed_days=60, **arguments) == pytest.approx(caught.mean(), abs=error)
    assert fraction_done_when_detected(**arguments) == pytest.approx(done.mean(), abs=error)


def test_errors() -> None:
    with pytest.raises(DetectionDomainError, match="inspections"):
        probability_by_day(elapsed_days=60, **scenario(period_days=1e-6))
    with pytest.raises(DetectionDomainError, match="inspections"):
        fraction_done_when_detected(**scenario(period_days=1e-6))
    with pytest.raises(DetectionDomainError, match="elapsed_days"):
        probability_by_day(elapsed_days=-1, **scenario())
