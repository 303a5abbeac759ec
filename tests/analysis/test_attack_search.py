"""The best strategy: what theory says must come out, and each weakness of an inspection alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.attack_search import Attack, best_strategy
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.strategies import OUTSIDE, Goal, Holding, Policy, Strategy
from analysis.stratified_sampling import best_samples
from analysis.stretch import stretch_probability

A = 8.64e19
ONE = (Holding(2000, A),)
THREE = (Holding(6000, A), Holding(3000, A), Holding(1000, 2 * A))
GOAL = Goal(100 * A * 30, 30.0)
POLICY = Policy(samples=45, period_days=30.0, snapshot_rate_per_day=0.1)


def best(policy: Policy = POLICY, holdings: tuple[Holding, ...] = ONE, longest: float = 30.0, **goal: Any) -> Attack:
    return best_strategy(holdings=holdings, policy=policy, goal=replace(GOAL, **goal), longest_days=longest)


def test_theorem_1_no_spreading() -> None:
    """Within a period, all of it on as few chips as possible is best: the optimiser finds nothing to improve."""
    for rate in (0.02, 0.1, 1.0):
        attack = best(replace(POLICY, snapshot_rate_per_day=rate))
        assert attack.strategy == Strategy()
        assert attack.probability == attack.plain
    # From a run that is planned for ten days but may take thirty, it goes to thirty: on a third of the chips.
    hasty = best(days=10.0, flops=100 * A * 30)
    assert hasty.strategy.length(replace(GOAL, days=10.0)) == pytest.approx(30.0, rel=1e-6)
    assert hasty.strategy.spread == 1.0
    assert hasty.probability < hasty.plain - 0.02


def test_stretching_pays_where_snapshots_are_certain_and_many_chips_involved() -> None:
    """Figure 2's loss: p_d(k) falls with k, most where b is large; with rare snapshots, stretched chips hold more."""
    big = {"flops": 1200 * A * 30}
    few = Policy(samples=2, period_days=30.0, snapshot_rate_per_day=10.0)
    attack = best(few, longest=300.0, **big)
    assert attack.strategy.length(GOAL) == pytest.approx(300.0, rel=1e-3)
    said = stretch_probability(probability=attack.plain, involved_fraction=0.6, stretch=10.0)
    assert attack.probability == pytest.approx(float(said), abs=2e-3)
    rare = best(replace(few, snapshot_rate_per_day=0.02), longest=300.0, **big)
    assert rare.strategy.stretch == 1.0


def test_weak_points_are_found() -> None:
    """Each weakness of an inspection alone: the move that uses it is chosen, and pays."""
    late = best(replace(POLICY, within_days=10.0), longest=30.0)
    assert late.probability == 0  # over more than ten days before the next inspection
    assert best(replace(POLICY, within_days=30.0)).probability == pytest.approx(late.plain, rel=1e-6)
    swapped = best(replace(POLICY, swap_hidden=0.9))
    assert swapped.strategy.swap
    tampered = best(replace(POLICY, tampering_missed=0.7))
    assert tampered.strategy.tampered == 1.0
    assert tampered.alone["tamper"][1] == tampered.probability < tampered.plain - 0.2
    lost = best(replace(POLICY, loss_excused=0.95))
    assert lost.strategy.sell_to == OUTSIDE
    split = best(replace(POLICY, initialisation_checked=False), innocent_flops=GOAL.flops / 2)
    assert split.strategy.pieces == 2
    assert split.probability == 0
    checked = best(POLICY, innocent_flops=GOAL.flops / 2)
    assert checked.strategy.pieces == 1
    unwatched = best(replace(POLICY, samples=(40, 20, 0)), THREE)
    assert unwatched.strategy.shares == (0.0, 0.0, 1.0) or unwatched.strategy.sell_to == 2
    assert unwatched.probability < 0.01


def test_samples_in_proportion_to_computing_power_leave_nothing_to_choose() -> None:
    """The equilibrium of `analysis.stratified_sampling`: with it no sharing beats any other by more than rounding."""
    flops = 500 * A * 30
    ideal = best_samples(
        budget=240, sample_cost=[1, 1, 1], flops_threshold=flops, chip_flops_per_day=[A, A, 2 * A],
        chips=[6000, 3000, 1000], run_days=30.0, shown=-math.expm1(-3.0),
    )  # fmt: skip
    samples = tuple(int(each) for each in np.rint(ideal))
    policy = Policy(samples=samples, period_days=30.0, snapshot_rate_per_day=0.1)
    even = best_strategy(holdings=THREE, policy=policy, goal=Goal(flops, 30.0), longest_days=30.0)
    uneven = replace(policy, samples=(samples[0] + 80, samples[1] - 40, samples[2] - 40))
    worse = best_strategy(holdings=THREE, policy=uneven, goal=Goal(flops, 30.0), longest_days=30.0)
    assert even.probability > even.plain - 0.02
    assert worse.probability < even.probability - 0.1


def test_bad_input() -> None:
    with pytest.raises(InfeasibleError, match="raise longest_days"):
        best(longest=20.0)
    with pytest.raises(DetectionDomainError, match="longest_days"):
        best(longest=-1.0)
    with pytest.raises(InfeasibleError, match="2000 chips"):
        best(flops=3000 * A * 30)
    with pytest.raises(InfeasibleError, match="lower samples"):
        best(replace(POLICY, samples=2001))
