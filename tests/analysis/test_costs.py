"""Costs, against the arithmetic of the reference."""

from __future__ import annotations

import pytest

from analysis.costs import (
    annual_samples,
    inspectors_needed,
    interrupt_probability_per_cycle,
    stall_fraction,
    stored_bytes,
)
from analysis.domain import DetectionDomainError


def test_stalls_of_synchronous_jobs() -> None:
    """10^4 chips, f = 0.1, 2 s: 2.3 %; 10^5 chips: 23 %."""
    found = stall_fraction(job_chips=[10**4, 10**5], snapshot_rate_per_day=0.1, stall_seconds=2)
    assert found.tolist() == pytest.approx([0.0231, 0.2315], abs=1e-4)
    with pytest.raises(DetectionDomainError, match="wait"):
        stall_fraction(job_chips=10**6, snapshot_rate_per_day=0.1, stall_seconds=2)


def test_bytes_cycles_samples_inspectors() -> None:
    """80 GB at 0.1 a day are 2.9 TB a chip and year; 6.6e-16 a cycle at 1.755 GHz."""
    kept = stored_bytes(chips=1, snapshot_rate_per_day=0.1, snapshot_bytes=80e9, kept_days=365)
    assert kept == pytest.approx(2.92e12)
    assert interrupt_probability_per_cycle(snapshot_rate_per_day=0.1, clock_hz=1.755e9) == pytest.approx(
        6.6e-16, rel=1e-2
    )
    assert annual_samples(samples=10, period_days=36.5) == pytest.approx(100)
    assert inspectors_needed(samples_per_year=[231_558, 1000, 1001, 0]).tolist() == [232, 1, 2, 0]
    for wrong in (-1, float("nan")):
        with pytest.raises(DetectionDomainError, match="samples_per_year"):
            inspectors_needed(samples_per_year=wrong)
