"""The fleet simulator against a second one, which is written chip by chip, and its own parts by what they must do."""

from __future__ import annotations

import ast
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import analysis.simulated_fleet
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.simulated_fleet import Outcome, draw, first_snapshots, fraction, mean, simulate
from analysis.strategies import OUTSIDE, Crew, Goal, Holding, Policy, Strategy, crews, cycle_days

A = 8.64e19
FLEET = (Holding(30, A), Holding(20, A))
RUN = Goal(4 * 30 * A, 30.0)
PLAN = Policy(samples=(6, 3), period_days=10.0, snapshot_rate_per_day=0.05)


def play(strategy: Strategy, policy: Policy = PLAN, goal: Goal = RUN, **options: Any) -> Outcome:
    given_ = {"holdings": FLEET, "trials": 4000, "seed": 7} | options
    return simulate(policy=policy, goal=goal, strategy=strategy, **given_)


class Chip:
    """One chip as a person would write it: what happened to it, and what an inspector sees of it."""

    def __init__(self, crew: Crew | None = None) -> None:
        self.crew, self.snapshots = crew, list[float]()

    def compute(self, dice: random.Random, rate: float, hidden: float) -> None:
        """Takes snapshots from day 0 on; those of incriminating moments that were not swapped out are kept."""
        assert self.crew is not None
        now = dice.expovariate(rate)
        while now < 1000:
            if any(begin <= now <= end for begin, end in self.crew.windows) and dice.random() >= hidden:
                self.snapshots.append(now)
            now += dice.expovariate(rate)


def one_history(strategy: Strategy, policy: Policy, dice: random.Random) -> bool:
    """Plays one run out, chip by chip, and returns whether it was found in time."""
    owners = [[Chip() for _ in range(holding.chips)] for holding in FLEET]
    taken = [dice.sample(range(len(chips)), len(chips)) for chips in owners]  # who works, in random order
    for crew in crews(strategy, RUN, FLEET, policy):
        for _ in range(int(crew.chips)):
            chip = owners[crew.holding][taken[crew.holding].pop()]
            chip.crew = crew
            if not crew.tampered:
                chip.compute(dice, policy.snapshot_rate_per_day, policy.swap_hidden if strategy.swap else 0.0)
    fooled = dice.random() < policy.soundness_error
    lost: list[list[Chip]] = [[] for _ in FLEET]  # still in the directory of their old owner, but not there
    for number in range(1, round(cycle_days(strategy, RUN, policy) / policy.period_days) + 1):
        since = number * policy.period_days - strategy.start_day
        for index, chips in enumerate(owners):
            for chip in [chip for chip in chips if chip.crew and chip.crew.leaves <= since]:
                assert chip.crew is not None
                if chip.crew.goes_to == OUTSIDE:
                    lost[index].append(chip)
                elif chip.crew.holding == index:  # changes places with a chip of the buyer
                    other = next(each for each in owners[chip.crew.goes_to] if each.crew is None)
                    owners[index][chips.index(chip)] = other
                    owners[chip.crew.goes_to][owners[chip.crew.goes_to].index(other)] = chip
        drawn = _drawn(owners, policy, dice)
        for index, chip in drawn:
            if chip.crew is None or since <= chip.crew.start:
                continue
            if chip in lost[index]:
                caught = dice.random() >= policy.loss_excused
            elif chip.crew.tampered:
                caught = dice.random() >= policy.tampering_missed
            else:
                held = any(moment <= since for moment in chip.snapshots)
                caught = held and not fooled and dice.random() >= policy.replay_missed
            if caught:
                return True
    return False


def _drawn(owners: list[list[Chip]], policy: Policy, dice: random.Random) -> list[tuple[int, Chip]]:
    everyone = [[(index, chip) for chip in chips] for index, chips in enumerate(owners)]
    if isinstance(policy.samples, int):
        return dice.sample([each for chips in everyone for each in chips], policy.samples)
    return [each for chips, count in zip(everyone, policy.samples, strict=True) for each in dice.sample(chips, count)]


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [
        (Strategy(), PLAN),
        (Strategy(start_day=7.5), PLAN),
        (Strategy(stretch=2.0), PLAN),
        (Strategy(spread=3.0), PLAN),
        (Strategy(spread=3.0, sliced=True), PLAN),
        (Strategy(pieces=4), PLAN),
        (Strategy(shares=(0.25, 0.75)), PLAN),
        (Strategy(sell_to=1), PLAN),
        (Strategy(spread=2.0, sliced=True, sell_to=1), PLAN),
        (Strategy(spread=2.0, sliced=True, sell_to=OUTSIDE), Policy(**{**vars(PLAN), "loss_excused": 0.7})),
        (Strategy(swap=True), Policy(**{**vars(PLAN), "swap_hidden": 0.6})),
        (Strategy(done=0.5), PLAN),
        (Strategy(tampered=0.5), Policy(**{**vars(PLAN), "tampering_missed": 0.8})),
        (Strategy(), Policy(**{**vars(PLAN), "replay_missed": 0.4, "soundness_error": 0.2})),
        (Strategy(shares=(0.5, 0.5)), Policy(**{**vars(PLAN), "samples": 12})),
        (Strategy(stretch=2.0), Policy(**{**vars(PLAN), "within_days": 25.0})),
        (
            Strategy(stretch=1.5, spread=2.0, sliced=True, shares=(0.5, 0.5), sell_to=0, tampered=0.5, swap=True),
            Policy(**{**vars(PLAN), "swap_hidden": 0.3, "replay_missed": 0.2, "tampering_missed": 0.6}),
        ),
    ],
    ids=[
        "plain",
        "late",
        "stretch",
        "spread",
        "sliced",
        "split",
        "collude",
        "resell",
        "sliced-resell",
        "lose",
        "swap",
        "stop-early",
        "tamper",
        "missed",
        "pooled",
        "within",
        "everything",
    ],
)
def test_it_agrees_with_a_simulation_chip_by_chip(strategy: Strategy, policy: Policy) -> None:
    """Two samples of one probability: they differ by less than 4.5 standard errors (7 in a million each)."""
    dice = random.Random(11)
    count = 1500
    slow = sum(one_history(strategy, policy, dice) for _ in range(count)) / count
    fast = play(strategy, policy, trials=20_000).detected()
    both = (slow * count + fast.value * fast.count) / (count + fast.count)
    assert 0.02 < both < 0.98  # or agreement would mean little
    assert abs(slow - fast.value) < 4.5 * math.sqrt(both * (1 - both) * (1 / count + 1 / fast.count))


def test_it_calls_no_formula() -> None:
    """The simulator checks the formulas only as long as it does not use them."""
    for module in ("simulated_fleet", "strategies"):
        tree = ast.parse((Path(analysis.simulated_fleet.__file__).parent / f"{module}.py").read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        assert {name for name in imported if name.startswith("analysis")} <= {"analysis.domain", "analysis.strategies"}


@pytest.mark.parametrize(("population", "count"), [(5, 2), (6, 3), (6, 4), (5, 5), (7, 1), (4, 0)])
def test_every_set_is_drawn_equally_often(population: int, count: int) -> None:
    rows = 60_000
    ids = np.sort(draw(np.random.default_rng(3), population, count, rows).astype(np.int64), axis=1)
    sets, times = np.unique(ids, axis=0, return_counts=True)
    number = math.comb(population, count)
    assert len(sets) == number
    assert all(len(set(each)) == count for each in sets.tolist())
    # The largest of `number` counts; 6 standard deviations of one of them.
    assert np.max(np.abs(times - rows / number)) <= 6 * math.sqrt(rows / number)


@given(st.integers(1, 400), st.data())
@settings(deadline=None, max_examples=60)
def test_draws_are_distinct_and_in_range(population: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, population))
    ids = draw(np.random.default_rng(data.draw(st.integers(0, 99))), population, count, 3)
    assert ids.shape == (3, count)
    assert all(len(set(row)) == count for row in ids.tolist())
    assert ids.size == 0 or int(ids.max()) < population


def test_draws_from_more_chips_than_32_bits_count() -> None:
    ids = draw(np.random.default_rng(1), 2**40, 1000, 4)
    assert ids.dtype == np.uint64
    assert int(ids.max()) > 2**39
    replaced = draw(np.random.default_rng(1), 3, 50, 4, replacement=True)
    assert set(replaced.reshape(-1).tolist()) == {0, 1, 2}


def test_snapshots_come_as_a_poisson_process_and_hiding_thins_it() -> None:
    """First arrivals in windows: P(none by t) = exp(-rate (1 - hidden) x time looked at)."""
    rng, count = np.random.default_rng(5), 200_000
    first = first_snapshots(rng, count, ((2.0, 5.0), (10.0, 30.0)), 0.2, 0.75)
    for day, looked in ((4.0, 2.0), (5.0, 3.0), (9.0, 3.0), (12.0, 5.0), (30.0, 23.0)):
        share = float(np.mean(first > day))
        assert share == pytest.approx(math.exp(-0.05 * looked), abs=5 * 0.5 / math.sqrt(first.size))
    assert not np.any((first < 2) | ((first > 5) & (first < 10)) | ((first > 30) & np.isfinite(first)))
    assert np.isinf(first_snapshots(rng, count, ((0.0, 30.0),), 1.0, 1.0)).all()
    assert np.isinf(first_snapshots(rng, count, (), 1.0, 0.0)).all()


def test_the_seed_decides_and_the_workers_do_not() -> None:
    reported: list[int] = []
    alone = play(Strategy(), trials=3000)
    many = play(Strategy(), trials=3000, workers=2, progress=reported.append)
    other = play(Strategy(), trials=3000, seed=8)
    assert np.array_equal(alone.found_after, many.found_after)
    assert not np.array_equal(alone.found_after, other.found_after)
    assert sum(reported) == 3000
    assert len(reported) >= 16


def test_years_of_runs_are_each_found_as_one_alone() -> None:
    """Runs one after the other on different chips: each in time with the same probability, and often later."""
    alone = play(Strategy(), trials=30_000).detected(0.9999)
    years = play(Strategy(), trials=3000, horizon_days=300.0)
    assert years.found_after.shape == (3000, 10)
    for run in range(10):
        hits = int((years.found_after[:, run] <= years.in_time_days).sum())
        assert fraction(hits, 3000, 0.9999).low <= alone.high
        assert fraction(hits, 3000, 0.9999).high >= alone.low
    assert np.isfinite(years.found_after[:, 0]).mean() > alone.high + 0.2  # logs stay, so later inspections find it
    assert years.inspections == 30
    assert years.drawn == 30 * 9


def test_an_honest_prover_is_never_found_and_accused_only_by_false_alarms() -> None:
    quiet = play(Strategy(honest=True), horizon_days=100.0)
    assert quiet.false_alarms.sum() == 0
    assert quiet.found_after.shape == (4000, 0)
    noisy = play(Strategy(honest=True), Policy(**{**vars(PLAN), "false_alarm": 0.01}), horizon_days=100.0)
    accused = noisy.accused(0.9999)
    assert accused.low <= 1 - 0.99**90 <= accused.high  # 10 inspections of 9 chips
    with pytest.raises(DetectionDomainError, match="at least one case"):
        quiet.detected()


def test_a_run_that_fits_on_chips_without_logs_is_not_found() -> None:
    fleet = (Holding(30, A), Holding(20, A, logs=False))
    assert play(Strategy(shares=(0.0, 1.0)), holdings=fleet).ever_detected().value == 0
    assert play(Strategy(shares=(0.0, 1.0), tampered=1.0), holdings=fleet).ever_detected().value == 0
    assert play(Strategy(shares=(0.5, 0.5)), holdings=fleet).detected().low > 0.2


def test_unchecked_initialisation_hides_a_run_in_pieces() -> None:
    goal = Goal(RUN.flops, RUN.days, innocent_flops=RUN.flops / 2)
    careless = Policy(**{**vars(PLAN), "initialisation_checked": False})
    assert play(Strategy(pieces=2), careless, goal).ever_detected().value == 0
    whole_run = play(Strategy(), careless, goal, trials=20_000).detected(0.999)
    pieces = play(Strategy(pieces=2), PLAN, goal, trials=20_000).detected(0.999)
    more = play(Strategy(pieces=4), PLAN, goal, trials=20_000).detected(0.999)
    assert pieces.low <= whole_run.high
    assert pieces.high >= whole_run.low
    assert more.low > pieces.high  # a seam in the provenance incriminates before H does


def test_stopping_at_the_first_finding_inspects_fewer_chips() -> None:
    early = play(Strategy(), stop_at_first=True)
    assert int(early.inspected.max()) == early.drawn == 27
    assert early.inspected_chips().high < 27
    assert int(play(Strategy()).inspected.min()) == 27
    never = play(Strategy(honest=True), stop_at_first=True)
    assert int(never.inspected.min()) == never.drawn


def test_intervals_cover_as_often_as_they_say() -> None:
    rng, truth = np.random.default_rng(2), 0.3
    hits = rng.binomial(40, truth, 4000)
    intervals = [fraction(k, 40, 0.9) for k in range(41)]
    assert np.mean([intervals[k].low <= truth <= intervals[k].high for k in hits]) >= 0.9
    values = rng.normal(5.0, 2.0, (4000, 12))
    means = [mean(row, 0.9) for row in values]
    assert np.mean([each.low <= 5.0 <= each.high for each in means]) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"trials": 0}, DetectionDomainError, "trials"),
        ({"trials": 1.5}, DetectionDomainError, "trials"),
        ({"seed": -1}, DetectionDomainError, "seed"),
        ({"workers": 0}, DetectionDomainError, "workers"),
        ({"horizon_days": 5.0}, InfeasibleError, "raise horizon_days"),
        ({"horizon_days": float("nan")}, DetectionDomainError, "horizon_days"),
        ({"horizon_days": 1e9}, DetectionDomainError, "inspections"),
        ({"holdings": ()}, DetectionDomainError, "at least one holding"),
        ({"holdings": (Holding(30, A),)}, DetectionDomainError, "1 holding"),
        ({"holdings": (Holding(3, A), Holding(20, A))}, InfeasibleError, "samples"),
        ({"trials": 2**40}, DetectionDomainError, "too many to keep"),
        ({"strategy": Strategy(shares=(1.0,))}, DetectionDomainError, "shares"),
        ({"strategy": Strategy(sell_to=2)}, DetectionDomainError, "no holding"),
        ({"strategy": Strategy(start_day=10.0)}, DetectionDomainError, "start_day"),
        ({"strategy": Strategy(spread=9.0)}, InfeasibleError, "30 chips, and 36 of them"),
        ({"strategy": Strategy(spread=7.0, sell_to=1)}, InfeasibleError, "20 chips, and 28 of them"),
        ({"policy": Policy(samples=60, period_days=10.0, snapshot_rate_per_day=1.0)}, InfeasibleError, "samples"),
    ],
)
def test_bad_input(changes: dict[str, Any], error: type[DetectionDomainError], text: str) -> None:
    arguments: dict[str, Any] = {
        "holdings": FLEET, "policy": PLAN, "goal": RUN, "strategy": Strategy(), "trials": 10, "seed": 1,
    }  # fmt: skip
    with pytest.raises(error, match=text):
        simulate(**(arguments | changes))
