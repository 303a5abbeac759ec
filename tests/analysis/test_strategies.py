"""Strategies as crews: every move conserves the work, and what incriminates is what the 2H rule says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.strategies import OUTSIDE, Goal, Holding, Policy, Strategy, crews, cycle_days, described

A = 8.64e19
FLEET = (Holding(10_000, A), Holding(5000, 2 * A))
POLICY = Policy(samples=10, period_days=30.0, snapshot_rate_per_day=0.1)
GOAL = Goal(100 * A * 30, 30.0, 40 * A * 30)


@given(
    st.floats(1, 20), st.integers(1, 8), st.booleans(), st.integers(1, 5), st.floats(0, 1), st.floats(0, 1),
    st.floats(0.1, 1),
)  # fmt: skip
def test_every_strategy_does_the_work(
    stretch: float, spread: int, sliced: bool, pieces: int, part: float, tampered: float, done: float
) -> None:
    """Chips times their time is the run's FLOPs (up to where it stops), whatever the moves."""
    strategy = Strategy(
        stretch=stretch, spread=spread, sliced=sliced, pieces=pieces, shares=(part, 1 - part), tampered=tampered,
        done=done,
    )  # fmt: skip
    everything = Goal(GOAL.flops, GOAL.days)
    length = strategy.length(everything)
    work = guilty = 0.0
    for crew in crews(strategy, everything, FLEET, POLICY, whole_chips=False):
        ends = min(length, crew.start + (length / done / spread if sliced else length))
        work += crew.chips * FLEET[crew.holding].chip_flops_per_day * (ends - crew.start)
        guilty += sum(
            crew.chips * FLEET[crew.holding].chip_flops_per_day * (last - first) for first, last in crew.windows
        )
    assert work == pytest.approx(done * GOAL.flops, rel=1e-9)
    assert guilty == pytest.approx(work, rel=1e-9)  # with no innocent part, all of it incriminates
    whole = sum(crew.chips for crew in crews(strategy, everything, FLEET, POLICY))
    assert whole == int(whole)


def windows(strategy: Strategy, **policy: Any) -> list[tuple[float, float]]:
    found = crews(strategy, GOAL, FLEET, Policy(**(vars(POLICY) | policy)))
    return [(round(first, 6), round(last, 6)) for crew in found for first, last in crew.windows]


def test_what_incriminates() -> None:
    assert windows(Strategy()) == [(12.0, 30.0)]  # after 40 % of the run
    assert windows(Strategy(stretch=2.0)) == [(24.0, 60.0)]
    assert windows(Strategy(spread=2.0)) == [(6.0, 15.0)]
    assert windows(Strategy(spread=2.0, sliced=True)) == [(12.0, 15.0), (15.0, 30.0)]
    assert windows(Strategy(done=0.3)) == []
    assert windows(Strategy(done=0.5)) == [(12.0, 15.0)]
    assert windows(Strategy(pieces=3)) == [(10.0, 30.0)]  # the first seam
    assert windows(Strategy(pieces=2)) == [(12.0, 30.0)]
    assert windows(Strategy(pieces=2), initialisation_checked=False) == [(12.0, 15.0), (27.0, 30.0)]
    assert windows(Strategy(pieces=3), initialisation_checked=False) == []
    assert windows(Strategy(honest=True)) == []


def test_sales_and_tampering() -> None:
    sold = crews(Strategy(spread=2.0, sliced=True, sell_to=1, sell_after_days=3.0), GOAL, FLEET, POLICY)
    assert [(crew.leaves, crew.goes_to) for crew in sold] == [(18.0, 1), (33.0, 1)]
    (lost,) = crews(Strategy(sell_to=OUTSIDE), GOAL, FLEET, POLICY)
    assert (lost.leaves, lost.goes_to) == (30.0, OUTSIDE)
    (kept,) = crews(Strategy(sell_to=0), GOAL, FLEET, POLICY)
    assert kept.leaves == float("inf")  # to itself
    honest, touched = crews(Strategy(tampered=0.25), GOAL, FLEET, POLICY)
    assert (honest.chips, honest.tampered, touched.chips, touched.tampered) == (75, False, 25, True)


@pytest.mark.parametrize(
    ("changes", "within", "days"),
    [
        ({}, None, 30.0),
        ({"start_day": 1.0}, None, 60.0),
        ({"stretch": 2.0}, None, 60.0),
        ({"spread": 30.0}, None, 30.0),
        ({"honest": True}, None, 30.0),
        ({}, 0.0, 30.0),
        ({}, 45.0, 60.0),
        ({"start_day": 29.0, "spread": 60.0}, 0.4, 0.0),  # over before any inspection
    ],
)
def test_the_last_inspection_in_time(changes: dict[str, Any], within: float | None, days: float) -> None:
    policy = Policy(**(vars(POLICY) | {"within_days": within}))
    assert cycle_days(Strategy(**changes), GOAL, policy) == days


def test_described() -> None:
    assert described(Strategy()) == "nothing"
    text = described(Strategy(stretch=2.0, shares=(0.25, 0.75), sell_to=OUTSIDE, swap=True))
    assert text == "stretch 2, shares 25.0%/75.0%, sell to nobody known, swap True"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Holding(0, A), DetectionDomainError, "chips"),
        (lambda: Holding(10, float("inf")), DetectionDomainError, "chip_flops_per_day"),
        (lambda: Goal(-1.0, 30.0), DetectionDomainError, "flops"),
        (lambda: Goal(1.0, float("nan")), DetectionDomainError, "days"),
        (lambda: Policy(samples=1, period_days=0.0, snapshot_rate_per_day=1.0), DetectionDomainError, "period_days"),
        (
            lambda: Policy(samples=1, period_days=1.0, snapshot_rate_per_day=1.0, replay_missed=1.1),
            DetectionDomainError, "replay_missed",
        ),
        (
            lambda: Policy(samples=1, period_days=1.0, snapshot_rate_per_day=1.0, within_days=-1.0),
            DetectionDomainError, "within_days",
        ),
        (lambda: Strategy(stretch=0.5), DetectionDomainError, "stretch"),
        (lambda: Strategy(spread=float("inf")), DetectionDomainError, "spread"),
        (lambda: Strategy(spread=2.5, sliced=True), DetectionDomainError, "spread"),
        (lambda: Strategy(spread=2000.0, sliced=True), DetectionDomainError, "too many"),
        (lambda: Strategy(pieces=0), DetectionDomainError, "pieces"),
        (lambda: Strategy(pieces=10**6), DetectionDomainError, "too many"),
        (lambda: Strategy(done=0.0), DetectionDomainError, "done"),
        (lambda: Strategy(shares=(0.5, 0.6)), DetectionDomainError, "sum to 1"),
        (lambda: Strategy(tampered=-0.1), DetectionDomainError, "tampered"),
        (lambda: POLICY.check((Holding(5, A),)), InfeasibleError, "lower samples"),
        (
            lambda: Policy(samples=(1.5, 1), period_days=1.0, snapshot_rate_per_day=1.0).check(FLEET),
            DetectionDomainError, "samples",
        ),
    ],
)  # fmt: skip
def test_bad_input(make: Any, error: type[DetectionDomainError], text: str) -> None:
    with pytest.raises(error, match=text):
        make()
