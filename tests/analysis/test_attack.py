"""The best attack and the best answer to it: what theory says must come out, and what the simulator finds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.attack import Attack, best_policy, best_strategy, found_probability
from analysis.detection import detection_probability_eq1
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.simulated_fleet import simulate
from analysis.spread import spread_probability
from analysis.strategies import OUTSIDE, Goal, Holding, Policy, Strategy
from analysis.stratified_sampling import best_samples
from analysis.stretch import stretch_probability

A = 8.64e19
ONE = (Holding(2000, A),)
THREE = (Holding(6000, A), Holding(3000, A), Holding(1000, 2 * A))
GOAL = Goal(100 * A * 30, 30.0)
POLICY = Policy(samples=45, period_days=30.0, snapshot_rate_per_day=0.1)
LEAKY = replace(
    POLICY, samples=(60, 15, 10), replay_missed=0.1, tampering_missed=0.4, loss_excused=0.3, swap_hidden=0.5,
    soundness_error=0.05,
)  # fmt: skip


@pytest.mark.parametrize(
    ("holdings", "strategy", "policy"),
    [
        (ONE, Strategy(), POLICY),
        (ONE, Strategy(stretch=2.5, start_day=10.0), POLICY),
        (ONE, Strategy(spread=4.0, swap=True), replace(LEAKY, samples=45)),
        (THREE, Strategy(shares=(0.2, 0.3, 0.5), tampered=1.0), LEAKY),
        (THREE, Strategy(shares=(0.5, 0.5, 0.0), sell_to=1, spread=3.0, sliced=True), LEAKY),
        (THREE, Strategy(shares=(0.6, 0.2, 0.2), sell_to=OUTSIDE, spread=2.0, sliced=True), LEAKY),
        (THREE, Strategy(shares=(0.3, 0.3, 0.4), pieces=3, done=0.7), replace(LEAKY, samples=80)),
        (THREE, Strategy(shares=(1.0, 0.0, 0.0)), replace(LEAKY, within_days=40.0, replacement=True)),
    ],
)
def test_the_formula_agrees_with_the_simulator(
    holdings: tuple[Holding, ...], strategy: Strategy, policy: Policy
) -> None:
    """Within a confidence interval of 1 - 1e-5 each, so that all eight hold together but for once in 10,000 seeds."""
    plan: dict[str, Any] = {"holdings": holdings, "policy": policy, "goal": GOAL, "strategy": strategy}
    said = found_probability(**plan)
    found = simulate(**plan, trials=30_000, seed=3).detected(1 - 1e-5)
    assert found.low <= said <= found.high
    assert 0.05 < said < 0.95
    assert found_probability(**plan, whole_chips=False) == pytest.approx(said, abs=0.03)


def test_special_cases_are_the_papers_formulas() -> None:
    """Equation 1, theorem 1's p_d(t) and the stretched p_d(k), all with replacement over fractions of chips."""
    policy = replace(POLICY, replacement=True)
    plan: dict[str, Any] = {"holdings": ONE, "policy": policy, "goal": GOAL, "whole_chips": False}
    fleet = {"chips": 2000, "chip_flops_per_day": A, "flops_threshold": GOAL.flops, "samples": 45}
    eq1 = detection_probability_eq1(run_days=30.0, period_days=30.0, snapshot_rate_per_day=0.1, **fleet)
    assert found_probability(strategy=Strategy(), **plan) == pytest.approx(float(eq1), rel=1e-12)
    for t in (1.7, 6.0, 30.0):
        said = spread_probability(days_per_chip=t, snapshot_rate_per_day=0.1, **fleet)
        assert found_probability(strategy=Strategy(spread=30 / t), **plan) == pytest.approx(float(said), rel=1e-12)
    always = plan | {"policy": replace(policy, snapshot_rate_per_day=100.0)}
    p = found_probability(strategy=Strategy(), **always)
    for k in (2.0, 7.0):
        said = stretch_probability(probability=p, involved_fraction=0.05, stretch=k)
        assert found_probability(strategy=Strategy(stretch=k), **always) == pytest.approx(float(said), rel=1e-12)


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


def test_the_best_policy_is_hard_to_better() -> None:
    """No other split of its samples is worth noticeably more, and splits by the number of chips are worth less."""
    fleet, goal = THREE[1:], Goal(20 * A * 30, 30.0)
    given = replace(POLICY, tampering_missed=0.3, loss_excused=0.2)
    defence = best_policy(holdings=fleet, policy=given, goal=goal, longest_days=30.0, samples_per_year=3000.0)
    assert isinstance(defence.policy.samples, tuple)
    drawn = sum(defence.policy.samples)
    assert 2800 < drawn * 365 / defence.policy.period_days <= 3000
    assert defence.attack.probability == max(value for _, _, value in defence.tried)

    def worth(part: float) -> float:
        split = (round(part * drawn), drawn - round(part * drawn))
        rules = replace(defence.policy, samples=split)
        return best_strategy(holdings=fleet, policy=rules, goal=goal, longest_days=30.0).probability

    others = [worth(part) for part in (0.5, 0.75)]
    assert max(others) < defence.attack.probability + 0.01
    assert others[1] < defence.attack.probability - 0.01  # three chips in four are slow ones
    played = simulate(
        holdings=fleet, policy=defence.policy, goal=goal, strategy=defence.attack.strategy, trials=20_000, seed=5
    ).detected(1 - 1e-4)
    assert played.low - 0.01 <= defence.attack.probability <= played.high + 0.01


def test_what_the_page_says_of_an_example() -> None:
    """docs/analysis.md: 0.88 unhidden, 0.45 at worst; 0.89 with the same samples a year spent better."""
    fleet = (Holding(60_000, A), Holding(30_000, A), Holding(10_000, 2 * A))
    goal = Goal(5.76e23, 30.0)
    weak = Policy((800, 200, 80), 30.0, 0.1, tampering_missed=0.2, loss_excused=0.1)
    attack = best_strategy(holdings=fleet, policy=weak, goal=goal, longest_days=90.0)
    assert attack.plain == pytest.approx(0.88, abs=0.005)
    assert attack.probability == pytest.approx(0.45, abs=0.005)
    assert (attack.strategy.tampered, attack.strategy.sell_to, attack.strategy.shares) == (1.0, 1, (0.0, 0.0, 1.0))
    better = replace(weak, samples=(71, 36, 28), period_days=3.75, within_days=30.0)
    assert sum((71, 36, 28)) / 3.75 <= 1080 / 30
    answer = best_strategy(holdings=fleet, policy=better, goal=goal, longest_days=90.0)
    assert answer.probability == pytest.approx(0.89, abs=0.005)


def test_bad_input() -> None:
    with pytest.raises(InfeasibleError, match="raise longest_days"):
        best(longest=20.0)
    with pytest.raises(DetectionDomainError, match="longest_days"):
        best(longest=-1.0)
    with pytest.raises(InfeasibleError, match="2000 chips"):
        best(flops=3000 * A * 30)
    with pytest.raises(InfeasibleError, match="lower samples"):
        best(replace(POLICY, samples=2001))
    with pytest.raises(InfeasibleError, match="one sample"):
        best_policy(holdings=ONE, policy=POLICY, goal=GOAL, longest_days=30.0, samples_per_year=1.0)
    with pytest.raises(DetectionDomainError, match="samples_per_year"):
        best_policy(holdings=ONE, policy=POLICY, goal=GOAL, longest_days=30.0, samples_per_year=math.nan)
