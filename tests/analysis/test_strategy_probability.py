"""The formula of any strategy: what the simulator finds, and the paper's formulas as special cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analysis.detection import detection_probability_eq1
from analysis.simulated_fleet import simulate
from analysis.spread import spread_probability
from analysis.strategies import OUTSIDE, Goal, Holding, Policy, Strategy
from analysis.strategy_probability import found_probability
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
