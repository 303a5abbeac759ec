"""The best answer to the best attack: no other split of the samples is worth more, and what the page says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from analysis.attack import best_policy, best_strategy
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.simulated_fleet import simulate
from analysis.strategies import Goal, Holding, Policy

A = 8.64e19
ONE = (Holding(2000, A),)
TWO = (Holding(3000, A), Holding(1000, 2 * A))
GOAL = Goal(100 * A * 30, 30.0)
POLICY = Policy(samples=45, period_days=30.0, snapshot_rate_per_day=0.1)


@pytest.mark.soak
def test_the_best_policy_is_hard_to_better() -> None:
    """No other split of its samples is worth noticeably more, and splits by the number of chips are worth less."""
    fleet, goal = TWO, Goal(20 * A * 30, 30.0)
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
    with pytest.raises(InfeasibleError, match="one sample"):
        best_policy(holdings=ONE, policy=POLICY, goal=GOAL, longest_days=30.0, samples_per_year=1.0)
    with pytest.raises(DetectionDomainError, match="samples_per_year"):
        best_policy(holdings=ONE, policy=POLICY, goal=GOAL, longest_days=30.0, samples_per_year=math.nan)
