"""Chips that fall silent after the draw is known: exact fractions, every placement, and fleets played out."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chip_groups import GROUPS, spreads

from analysis import attack, detection, periods, sequential, simulated_fleet
from analysis.domain import InfeasibleError
from analysis.hypergeometric import least_drawn, seen_probability
from analysis.planning import CostModel, Stratum, best_plan
from analysis.silence import GroupedDraw, least_probability_despite
from analysis.strategies import Goal, Holding, Policy, Strategy
from analysis.withheld_marks import drawn_marks, shown_marks

FLEET = {"chips": 1000, "flops_threshold": 50.0, "chip_flops_per_day": 1.0, "run_days": 1.0}
ALWAYS = 200.0  # snapshots a day, so that each involved chip surely holds one


def exactly(population: int, marked: int, drawn: int, shown: float, withheld: int) -> float:
    """Returns Pr(S > w) from exact fractions."""
    q, ways = Fraction(shown), math.comb(population, drawn)
    return float(
        sum(
            Fraction(math.comb(marked, j) * math.comb(population - marked, drawn - j), ways)
            * sum(math.comb(j, s) * q**s * (1 - q) ** (j - s) for s in range(withheld + 1, j + 1))
            for j in range(max(0, drawn + marked - population), min(marked, drawn) + 1)
        )
    )


def test_three_hits_withheld_of_sixty_drawn_chips_are_worth_0352_and_not_0951() -> None:
    """The chips that did not verify were chosen by the Prover, so they cannot be taken for not drawn."""
    unsampled = detection.detection_probability_hypergeometric(samples=57, snapshot_rate_per_day=ALWAYS, **FLEET)
    withheld = detection.detection_probability_hypergeometric(
        samples=60, snapshot_rate_per_day=ALWAYS, withheld=3, **FLEET
    )
    assert float(unsampled) == pytest.approx(0.951, abs=5e-4)
    assert float(withheld) == pytest.approx(0.352, abs=5e-4)
    assert float(withheld) == pytest.approx(exactly(1000, 50, 60, 1.0, 3), rel=1e-12)


@pytest.mark.parametrize("withheld", [0, 3, 6])
def test_the_simulated_prover_who_withholds_hits_is_seen_that_often(withheld: int) -> None:
    """Over histories with an interval: the simulator uses none of the formulas."""
    policy = Policy(samples=60, period_days=1.0, snapshot_rate_per_day=ALWAYS, withheld=withheld)
    fleet = {"holdings": (Holding(1000, 1.0),), "policy": policy, "goal": Goal(50.0, 1.0), "strategy": Strategy()}
    for seed in range(3):
        seen = simulated_fleet.simulate(trials=20_000, seed=seed, **fleet).detected(0.9999)
        exact = exactly(1000, 50, 60, 1.0, withheld)
        assert seen.low <= exact <= seen.high
        assert attack.found_probability(**fleet) == pytest.approx(exact, rel=1e-9)
    if withheld == 3:
        assert not seen.low <= 0.951 <= seen.high


@given(st.integers(1, 80), st.data())
@settings(max_examples=80, deadline=None)
def test_equals_exact_fractions(population: int, data: st.DataObject) -> None:
    marked, drawn = data.draw(st.integers(0, population)), data.draw(st.integers(0, population))
    withheld = data.draw(st.integers(0, drawn + 1))
    shown = data.draw(st.one_of(st.integers(0, 64).map(lambda k: k / 64), st.just(1.0)))
    at: dict[str, Any] = {"population": population, "marked": marked, "drawn": drawn, "shown": shown}
    found = float(seen_probability(**at, withheld=withheld))
    assert found == pytest.approx(exactly(population, marked, drawn, shown, withheld), rel=1e-10, abs=1e-300)
    one_more = float(seen_probability(**at, withheld=withheld + 1))
    assert one_more <= found * (1 + 1e-12)
    assert float(seen_probability(**at, withheld=drawn)) == 0.0
    assert float(seen_probability(**at, withheld=0)) == float(seen_probability(**at))
    if drawn < population:
        assert float(seen_probability(**(at | {"drawn": drawn + 1}), withheld=withheld)) >= found * (1 - 1e-12)
    # Withheld chips are worth less than chips that were never drawn.
    kept = max(0, drawn - withheld)
    assert found <= float(seen_probability(**(at | {"drawn": kept}))) * (1 + 1e-10) + 1e-300


@pytest.mark.parametrize(("population", "marked", "drawn"), [(10**9, 10**6, 4000), (10**9, 5 * 10**8, 10**5)])
def test_large_populations_have_their_mean_and_spread(population: int, marked: int, drawn: int) -> None:
    counts, chances = drawn_marks(population, marked, drawn)
    mean = drawn * marked / population
    spread = mean * (1 - marked / population) * (population - drawn) / (population - 1)
    assert chances.sum() == pytest.approx(1.0, rel=1e-12)
    assert counts @ chances == pytest.approx(mean, rel=1e-9)
    assert (counts - mean) ** 2 @ chances == pytest.approx(spread, rel=1e-8)
    shown = shown_marks(population, marked, drawn, 0.25, 20)
    assert 1 - shown[:4].sum() == pytest.approx(
        float(seen_probability(population=population, marked=marked, drawn=drawn, shown=0.25, withheld=3)), rel=1e-9
    )


def test_the_least_samples_that_bear_some_silence() -> None:
    at = {"population": 1000, "marked": 50, "shown": 0.95}
    for withheld in (0, 1, 5):
        least = int(least_drawn(**at, wanted=0.9, withheld=withheld))
        assert float(seen_probability(**at, drawn=least, withheld=withheld)) >= 0.9
        assert float(seen_probability(**at, drawn=least - 1, withheld=withheld)) < 0.9
    with pytest.raises(InfeasibleError, match="withheld"):
        least_drawn(**at, wanted=0.9, withheld=50)


def everything(groups: list[tuple[int, int, float]], speeds: list[float], needed: float, withheld: int) -> float:
    """Returns the least Pr(S_1 + ... > w) over all placements that do at least `needed`, by trying each."""
    least = 1.0
    for spread in spreads(groups, speeds, needed):
        counts = np.ones(1)
        for some, (chips, drawn, shown) in zip(spread, groups, strict=True):
            counts = np.convolve(counts, shown_marks(chips, some, drawn, shown, 8))
        least = min(least, 1 - float(counts[: withheld + 1].sum()))
    return least


def draw(groups: list[tuple[int, int, float]], speeds: list[float], needed: float) -> GroupedDraw:
    chips, drawn, shown = zip(*groups, strict=True)
    return GroupedDraw(
        chips=chips, drawn=drawn, shown=shown, chip_flops_per_day=speeds, flops_threshold=needed, run_days=1.0
    )


@given(GROUPS, st.floats(0.01, 1.0), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_no_placement_over_chips_of_one_speed_is_missed_more_often(
    groups: list[tuple[int, int, float]], part: float, withheld: int
) -> None:
    needed, speeds = part * sum(chips for chips, _, _ in groups), [1.0] * len(groups)
    found, (involved,) = least_probability_despite([draw(groups, speeds, needed)], withheld=withheld)
    assert found == pytest.approx(everything(groups, speeds, needed, withheld), rel=1e-9, abs=1e-12)
    assert sum(involved) == np.ceil(needed * (1 - 1e-12))


@given(GROUPS, st.floats(0.01, 1.0), st.permutations([1.0, 2.0, 5.0]), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_where_speeds_differ_it_is_a_lower_bound(
    groups: list[tuple[int, int, float]], part: float, all_speeds: list[float], withheld: int
) -> None:
    speeds = all_speeds[: len(groups)]
    needed = part * float(np.dot([chips for chips, _, _ in groups], speeds))
    found, _ = least_probability_despite([draw(groups, speeds, needed)], withheld=withheld)
    assert found <= everything(groups, speeds, needed, withheld) + 1e-9


@given(GROUPS, st.floats(0.01, 1.0))
@settings(max_examples=30, deadline=None)
def test_without_silence_it_is_what_it_was(groups: list[tuple[int, int, float]], part: float) -> None:
    one = draw(groups, [2.0] * len(groups), part * 2 * sum(chips for chips, _, _ in groups))
    found, (involved,) = least_probability_despite([one], withheld=0)
    old = one.least()
    assert (found, involved) == (old.probability, old.involved)
    assert least_probability_despite([one], withheld=sum(drawn for _, drawn, _ in groups))[0] == pytest.approx(0.0)


def test_one_group_is_exact_and_periods_add_up() -> None:
    one = GroupedDraw(
        chips=[1000], drawn=[60], shown=[1.0], chip_flops_per_day=[1.0], flops_threshold=50.0, run_days=1.0
    )
    assert least_probability_despite([one], withheld=3)[0] == pytest.approx(exactly(1000, 50, 60, 1.0, 3), rel=1e-12)
    # Two periods with the same run: of 100 involved chips in 2000, 3 were withheld altogether.
    counts = np.convolve(shown_marks(1000, 50, 60, 1.0, 3), shown_marks(1000, 50, 60, 1.0, 3))[:4]
    found, involved = least_probability_despite([one, one], withheld=3)
    assert found == pytest.approx(1 - counts.sum(), rel=1e-12)
    assert involved == [(50.0,), (50.0,)]


def test_many_strata_are_searched_from_several_sides() -> None:
    """The least of the fillings and of the spreads for t = 0 is not beaten by a thousand random placements."""
    rng = np.random.default_rng(1)
    chips, drawn = rng.integers(50, 400, 12), rng.integers(1, 20, 12)
    one = GroupedDraw(chips=chips, drawn=drawn, shown=0.95, chip_flops_per_day=1.0, flops_threshold=90.0, run_days=1.0)
    found, (involved,) = least_probability_despite([one], withheld=4)
    assert sum(involved) == 90
    for _ in range(300):
        tried = rng.multivariate_hypergeometric(chips, 90)
        counts = np.ones(1)
        for total, some, taken in zip(chips, tried, drawn, strict=True):
            counts = np.convolve(counts, shown_marks(float(total), float(some), float(taken), 0.95, 4))[:5]
        assert found <= 1 - counts.sum() + 1e-12


def test_a_missed_violation_is_reported_with_a_large_p_as_seldom_as_p_says() -> None:
    """What makes 1 - p valid: for every x, the run is missed and p >= x with probability 1 - x at most.

    The Prover withholds all hits, wherever they are, in three strata. Had each stratum's silence been reckoned for
    itself, the bound would be broken.
    """
    rng = np.random.default_rng(7)
    chips, drawn = [300, 300, 300], [30, 30, 30]
    one = GroupedDraw(chips=chips, drawn=drawn, shown=1.0, chip_flops_per_day=1.0, flops_threshold=60.0, run_days=1.0)
    placed = [20, 20, 20]
    table = [least_probability_despite([one], withheld=w)[0] for w in range(20)]
    hits = np.stack(
        [
            rng.hypergeometric(some, total - some, taken, size=20_000)
            for some, total, taken in zip(placed, chips, drawn, strict=True)
        ]
    )
    reported = np.array(table)[hits.sum(axis=0)]
    apart = np.asarray(seen_probability(population=300, marked=20, drawn=30, shown=1.0, withheld=np.arange(31)))
    separately = 1 - np.prod((1 - apart)[hits], axis=0)
    broken = False
    for x in (0.3, 0.5, 0.7, 0.9, 0.95):
        often = simulated_fleet.fraction(int((reported >= x).sum()), reported.size, 0.9999)
        assert often.low <= 1 - x
        broken |= simulated_fleet.fraction(int((separately >= x).sum()), reported.size, 0.9999).low > 1 - x
    assert broken


def test_formulas_with_replacement_and_of_several_periods() -> None:
    shared: dict[str, Any] = {**FLEET, "period_days": 1.0, "snapshot_rate_per_day": 2.0}
    hit = float(detection.sample_hit_probability(**shared))
    some = sum(math.comb(60, k) * hit**k * (1 - hit) ** (60 - k) for k in range(4))
    assert float(detection.detection_probability_eq1(samples=60, withheld=3, **shared)) == pytest.approx(1 - some)
    assert float(periods.accumulating_probability(samples=60, withheld=3, **shared)) == pytest.approx(1 - some)
    assert float(detection.detection_probability_eq1(samples=3, withheld=3, **shared)) == 0.0
    longer: dict[str, Any] = {"involved": 50, "chips": 1000, "period_days": 1.0, "snapshot_rate_per_day": ALWAYS}
    once = float(periods.seen_in_periods(samples=60, run_days=1.0, withheld=3, **longer))
    twice = float(periods.seen_in_periods(samples=60, run_days=2.0, withheld=3, **longer))
    assert once == pytest.approx(exactly(1000, 50, 60, 1.0, 3), rel=1e-9)
    assert twice == pytest.approx(1 - (1 - once) ** 2)


@pytest.mark.parametrize("withheld", [0, 1, 3])
def test_sampling_stops_at_the_first_hit_that_is_not_withheld(withheld: int) -> None:
    seen = [float(seen_probability(population=40, marked=9, drawn=i, shown=0.7, withheld=withheld)) for i in range(20)]
    expected = sum(1 - p for p in seen)
    found = sequential.expected_samples(samples=20, chips=40, involved=9, shown=0.7, withheld=withheld)
    assert float(found) == pytest.approx(expected, rel=1e-10)


def test_the_best_strategy_counts_on_what_may_be_withheld() -> None:
    fleet: dict[str, Any] = {"holdings": (Holding(1000, 1.0),), "goal": Goal(50.0, 1.0), "longest_days": 2.0}
    policy = Policy(samples=60, period_days=1.0, snapshot_rate_per_day=3.0)
    worst = [
        attack.best_strategy(policy=Policy(60, 1.0, 3.0, withheld=withheld), **fleet).probability for withheld in (0, 3)
    ]
    assert worst[1] < 0.5 < worst[0]
    assert attack.best_strategy(policy=policy, **fleet).probability == worst[0]


def test_two_pools_are_hidden_together() -> None:
    policy = Policy(samples=(20, 40), period_days=1.0, snapshot_rate_per_day=2.0, withheld=2)
    fleet: dict[str, Any] = {
        "holdings": (Holding(300, 1.0), Holding(400, 1.0)), "policy": policy, "goal": Goal(50.0, 1.0),
        "strategy": Strategy(shares=(0.4, 0.6)),
    }  # fmt: skip
    seen = simulated_fleet.simulate(trials=20_000, seed=3, **fleet).detected(0.9999)
    assert seen.low <= attack.found_probability(**fleet) <= seen.high


def test_a_plan_states_what_it_is_worth_despite_silence() -> None:
    strata = (Stratum("fast", 400, 2.0, 1.0, 1.0), Stratum("slow", 600, 1.0, 1.0, 1.0))
    costs = CostModel(0.0, 0.0, 1, 0.0, 0.0, 1.0)
    plans = [
        best_plan(
            budget=60 * 365, flops_threshold=80.0, period_days=1.0, strata=strata, costs=costs,
            snapshot_rate_per_day=3.0, withheld=withheld,
        )
        for withheld in (0, 1, 4)
    ]  # fmt: skip
    assert len({plan.samples for plan in plans}) == 1
    values = [plan.detection_probability_hypergeometric for plan in plans]
    assert values[0] > values[1] > values[2] > 0
