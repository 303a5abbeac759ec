"""Plans for a budget: within it, better than their neighbours, and clear about what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.planning import CostModel, Plan, Stratum, best_plan
from analysis.stratified_sampling import strata_probability, worst_shares

A = 8.64e19
COSTS = CostModel(
    chip_day_cost=48, stall_seconds=1, job_chips=1, snapshot_bytes=8e10, byte_year_cost=2.4e-10, kept_days=30
)
MIXED = (
    Stratum("new", 100_000, A, 1.0, 250),
    Stratum("old", 30_000, 0.3 * A, 0.8, 400),
    Stratum("legacy", 50, A, 0.0, 250),
)


def plan(budget: float = 1e6, strata: tuple[Stratum, ...] = MIXED, **changes: Any) -> Plan:
    return best_plan(
        **(
            {"budget": budget, "flops_threshold": 5.76e23, "period_days": 30.0, "strata": strata, "costs": COSTS}
            | changes
        )
    )


def test_it_keeps_to_the_budget_and_samples_nothing_in_vain() -> None:
    found = plan()
    assert found.sampling_cost + found.stall_cost + found.storage_cost <= 1e6
    assert found.samples[2] == 0
    yearly = (found.samples[0] * 250 + found.samples[1] * 400) * 365 / 30
    assert found.sampling_cost == pytest.approx(yearly)
    assert found.storage_cost == pytest.approx(130_050 * found.snapshot_rate_per_day * 8e10 * 30 * 2.4e-10)
    assert found.stall_cost == pytest.approx(365 * 130_050 * found.snapshot_rate_per_day / 86400 * 48)
    assert sum(found.shares) == pytest.approx(1)


def test_other_rates_and_other_samples_are_no_better() -> None:
    found = plan()
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = plan(snapshot_rate_per_day=found.snapshot_rate_per_day * factor)
        assert other.detection_probability <= found.detection_probability * (1 + 5e-3)  # whole samples make steps
    shown = -np.expm1(-found.snapshot_rate_per_day * 30) * np.array([1.0, 0.8, 0.0])
    fleet = {
        "flops_threshold": 5.76e23, "chip_flops_per_day": np.array([1, 0.3, 1]) * A,
        "chips": [100_000, 30_000, 50], "run_days": 30.0, "shown": shown,
    }  # fmt: skip
    for change in ([8, -5, 0], [-8, 5, 0], [-16, 10, 0]):
        samples = np.array(found.samples) + change
        seen = strata_probability(samples=samples, shares=worst_shares(samples=samples, **fleet), **fleet)
        assert seen <= found.detection_probability


def test_more_money_is_never_worse_and_whole_chips_agree() -> None:
    found = [plan(budget) for budget in (2e5, 1e6, 1e7, 1e8)]
    chances = [each.detection_probability for each in found]
    assert chances == sorted(chances)
    assert chances[-1] > 0.99
    for each in found:
        assert each.detection_probability_hypergeometric == pytest.approx(each.detection_probability, rel=0.01)


def test_a_budget_for_everything_samples_every_chip() -> None:
    found = plan(1e9, (Stratum("few", 20, A, 1.0, 100),), flops_threshold=A * 30)
    assert found.samples == (20,)


def test_what_cannot_be_says_so() -> None:
    with pytest.raises(InfeasibleError, match="does not pay"):
        plan(1000)
    with pytest.raises(InfeasibleError, match="show nothing"):
        plan(strata=(MIXED[0], Stratum("legacy", 5000, A, 0.0, 1)))
    with pytest.raises(DetectionDomainError, match="stratum"):
        plan(strata=())
    with pytest.raises(DetectionDomainError, match="reliability"):
        Stratum("x", 1, A, 1.5, 1)
    with pytest.raises(DetectionDomainError, match="budget"):
        plan(-1)
    with pytest.raises(DetectionDomainError, match="stall_seconds"):
        CostModel(1, -1, 1, 1, 1, 1)
