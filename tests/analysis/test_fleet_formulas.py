"""Every formula of `analysis` against the simulator, which uses none of them.

Each comparison asks whether the formula's value lies in the simulation's confidence interval. The intervals of a family
of comparisons are widened so that all of them hold together with probability 1 - 1e-4 (Bonferroni): another
seed will not make this fail by chance. `test_the_grid_would_notice` shows that they are still narrow enough to matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from analysis import (
    attribute_sampling,
    confidence,
    costs,
    detection,
    early_detection,
    periods,
    planning,
    reliability,
    sequential,
    spread,
    stratified_sampling,
    stretch,
    unmonitored_chips,
)
from analysis import smallest_run as smallest
from analysis.simulated_fleet import Estimate, Outcome, draw, first_snapshots, simulate
from analysis.strategies import OUTSIDE, Goal, Holding, Policy, Strategy

A = 8.64e19
FAMILY = 1e-4
TRIALS = 20_000
FLEET = {"chip_flops_per_day": A, "snapshot_rate_per_day": 0.1}
Case = tuple[str, Outcome, float]


def play(
    chips: int,
    involved: float,
    samples: int | tuple[int, ...],
    days: float = 30.0,
    *,
    strategy: Strategy | None = None,
    innocent: float = 0.0,
    holdings: tuple[Holding, ...] = (),
    trials: int = TRIALS,
    stop_at_first: bool = False,
    **policy: Any,
) -> Outcome:
    """Plays out a run that needs `involved` chips for `days` days, on a fleet of `chips` chips or of `holdings`."""
    rules = {"samples": samples, "period_days": 30.0, "snapshot_rate_per_day": 0.1} | policy
    return simulate(
        holdings=holdings or (Holding(chips, A),),
        policy=Policy(**rules),
        goal=Goal(involved * A * days, days, innocent * A * days),
        strategy=strategy or Strategy(),
        trials=trials,
        seed=hash((chips, days)) % 2**31,
        stop_at_first=stop_at_first,
    )


def sure(count: int) -> float:
    """The confidence of each of `count` intervals with which all hold together with probability 1 - FAMILY."""
    return 1 - FAMILY / count


def agree(cases: Sequence[Case]) -> None:
    wrong = [
        f"{name}: formula {expected:.5f}, simulated {found.value:.5f} [{found.low:.5f}, {found.high:.5f}]"
        for name, outcome, expected in cases
        if not (found := outcome.detected(sure(len(cases)))).low <= expected <= found.high
    ]
    assert not wrong, "\n".join(wrong)


GRID = [
    (chips, involved, samples, days, rate)
    for (chips, involved, samples) in ((10, 1, 3), (60, 15, 5), (1000, 40, 60), (1000, 999, 1), (100_000, 223, 500))
    for days in (10.0, 30.0, 45.0, 90.0)
    for rate in (0.01, 0.1)
]


def followed(chips: int, involved: int, samples: int, days: float, rate: float) -> float:
    return periods.accumulating_probability_followed(
        samples=samples, involved=involved, chips=chips, run_days=days, period_days=30.0, snapshot_rate_per_day=rate
    )


@pytest.fixture(scope="module")
def grid() -> list[Case]:
    return [
        (
            repr(point),
            play(*point[:4], snapshot_rate_per_day=point[4]),
            followed(*point),
        )
        for point in GRID
    ]


def test_whole_chips_without_replacement_over_periods(grid: list[Case]) -> None:
    """Lengths within, of, and beyond a period; rare and frequent snapshots; one chip to nearly all involved."""
    agree(grid)


def test_the_grid_would_notice(grid: list[Case]) -> None:
    """One sample in five more or less is outside the interval of most points; and so is forgetting what chips hold."""
    noticed = {"more": 0, "less": 0, "forgetful": 0}
    longer = 0
    for (_, outcome, _), (chips, involved, samples, days, rate) in zip(grid, GRID, strict=True):
        found = outcome.detected(sure(len(GRID)))
        step = math.ceil(samples / 5)
        noticed["more"] += followed(chips, involved, samples + step, days, rate) > found.high
        noticed["less"] += followed(chips, involved, samples - step, days, rate) < found.low
        if days > 30:
            longer += 1
            forgetful = 1 - (1 - followed(chips, involved, samples, 30.0, rate)) ** math.ceil(days / 30)
            noticed["forgetful"] += not found.low <= forgetful <= found.high
    assert noticed["more"] > 0.7 * len(GRID)
    assert noticed["less"] > 0.7 * len(GRID)
    assert noticed["forgetful"] > 0.4 * longer


def test_one_inspection(grid: list[Case]) -> None:
    """`detection_probability_hypergeometric`, and periods taken as independent, where there is only one."""
    cases = []
    for (name, outcome, _), (chips, involved, samples, days, rate) in zip(grid, GRID, strict=True):
        if days > 30:
            continue
        arguments = {
            "samples": samples, "flops_threshold": involved * A * days, "chip_flops_per_day": A, "chips": chips,
            "run_days": days, "snapshot_rate_per_day": rate,
        }  # fmt: skip
        once = float(detection.detection_probability_hypergeometric(**arguments))
        apart = float(periods.accumulating_probability_hypergeometric(period_days=30.0, **arguments))
        assert once == pytest.approx(apart, rel=1e-12)
        cases.append((name, outcome, once))
    agree(cases)


def test_the_wanted_probability_is_reached_and_not_by_much() -> None:
    """`samples_needed_hypergeometric`, `accumulating_samples_hypergeometric`, `smallest_run_chips`."""
    cases = []
    for chips, flops, p in ((1000, 5.76e23, 0.9), (100_000, 5.76e23, 0.9), (100_000, 9.9e24, 0.5)):
        fleet = {"chips": chips, "run_days": 30.0, **FLEET}
        least = int(detection.samples_needed_hypergeometric(probability=p, flops_threshold=flops, **fleet))
        run = flops / A / 30
        for samples in (least - 1, least):
            expected = float(
                detection.detection_probability_hypergeometric(samples=samples, flops_threshold=flops, **fleet)
            )
            cases.append((f"{chips} {samples}", play(chips, run, samples), expected))
        assert cases[-2][2] < p <= cases[-1][2]
    many = {"probability": 0.9, "flops_threshold": 2 * 5.76e23, "chips": 10_000, "run_days": 75.0, "period_days": 30.0}
    each = int(periods.accumulating_samples_hypergeometric(**many, **FLEET))
    involved = math.ceil(2 * 5.76e23 / A / 75)
    cases.append(("75 days", play(10_000, involved, each, 75.0), followed(10_000, involved, each, 75.0, 0.1)))
    assert cases[-1][2] == pytest.approx(0.9, abs=0.005)
    seen = {"samples": 50, "probability": 0.8, "chips": 2000, "run_days": 30.0, "period_days": 30.0}
    smallest_run = int(smallest.smallest_run_chips(snapshot_rate_per_day=0.1, **seen))
    cases.append(("smallest", play(2000, smallest_run, 50), followed(2000, smallest_run, 50, 30.0, 0.1)))
    assert cases[-1][2] == pytest.approx(0.8, abs=0.01)
    agree(cases)


def test_equation_1_and_its_relatives() -> None:
    """With replacement; snapshots of several periods accumulate, and equation 1 and its linear form are below that."""
    cases = []
    for (chips, involved, samples), days in itertools.product(
        ((2000, 200, 10), (20_000, 1000, 30), (5000, 4000, 2)), (30.0, 60.0, 75.0)
    ):
        plan = {
            "samples": samples, "flops_threshold": involved * A * days, "chips": chips, "run_days": days,
            "period_days": 30.0, **FLEET,
        }  # fmt: skip
        outcome = play(chips, involved, samples, days, replacement=True)
        cases.append((repr((chips, days)), outcome, float(periods.accumulating_probability(**plan))))
        found = outcome.detected(sure(9))
        assert float(detection.detection_probability_eq1(**plan)) <= found.high
        linear = {name: value for name, value in plan.items() if name != "run_days"}
        assert float(detection.detection_probability_linearised(**linear)) <= found.high
        if days == 30:
            cases.append((repr((chips, "eq1")), outcome, float(detection.detection_probability_eq1(**plan))))
            wanted = float(detection.samples_needed(probability=cases[-1][2], **_without(plan, "samples")))
            assert wanted == pytest.approx(samples, rel=1e-9)
    agree(cases)


def _without(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}


def test_equation_1_is_off_where_few_chips_are_involved() -> None:
    """It takes samples as independent, but a chip without a snapshot has none whenever it is drawn again.

    One of ten chips, ten draws with replacement: equation 1 says .638, and the chip shows nothing in 5 % of histories.
    """
    plan = {"flops_threshold": A * 30, "chips": 10, "run_days": 30.0, "period_days": 30.0, **FLEET}
    outcome = play(10, 1, 10, replacement=True, snapshot_rate_per_day=0.02)
    plan["snapshot_rate_per_day"] = 0.02
    holds = -math.expm1(-0.6)
    agree([("exact", outcome, holds * (1 - 0.9**10))])
    assert float(detection.detection_probability_eq1(samples=10, **plan)) > outcome.detected(sure(1)).high + 0.05


def test_stretching() -> None:
    """`stretch_probability`, snapshots always present: k periods of s samples each, 1/k of the chips."""
    cases = []
    for involved, factor in itertools.product((100, 400, 900), (1.0, 2.0, 5.0)):
        p = float(
            detection.detection_probability_eq1(
                samples=4, flops_threshold=involved * A * 30, chips=1000, run_days=30.0, period_days=30.0,
                chip_flops_per_day=A, snapshot_rate_per_day=5.0,
            )
        )  # fmt: skip
        outcome = play(
            1000, involved, 4, strategy=Strategy(stretch=factor), replacement=True, snapshot_rate_per_day=5.0
        )
        said = stretch.stretch_probability(probability=p, involved_fraction=involved / 1000, stretch=factor)
        cases.append((repr((involved, factor)), outcome, float(said)))
    agree(cases)


def test_spreading_and_theorem_1() -> None:
    """`spread_probability`, at the same time and one after the other; more chips for less time are seen more often."""
    cases = []
    for factor, sliced, rate in itertools.product((1.0, 2.0, 6.0), (False, True), (0.02, 0.1)):
        strategy = Strategy(spread=factor, sliced=sliced)
        outcome = play(2000, 100, 20, strategy=strategy, replacement=True, snapshot_rate_per_day=rate)
        said = spread.spread_probability(
            samples=20, flops_threshold=100 * A * 30, chip_flops_per_day=A, chips=2000, days_per_chip=30.0 / factor,
            snapshot_rate_per_day=rate,
        )  # fmt: skip
        cases.append((repr((factor, sliced, rate)), outcome, float(said)))
    agree(cases)
    for start in range(4):
        values = [outcome.detected().value for _, outcome, _ in cases[start::4]]
        assert values == sorted(values)
        assert values[0] < values[-1] - 0.05


def test_runs_found_before_they_end() -> None:
    """`probability_by_day` and `fraction_done_when_detected`, with the innocent first H of 2H, inspected weekly."""
    arguments = {
        "samples": 25, "run_flops": 200 * A * 60, "flops_threshold": 100 * A * 60, "chips": 2000, "run_days": 60.0,
        "period_days": 7.0, **FLEET,
    }  # fmt: skip
    outcome = play(2000, 200, 25, 60.0, innocent=100.0, period_days=7.0, replacement=True)
    days = (28.0, 35.0, 42.0, 49.0, 62.9, 63.0)
    for day in days:
        found = outcome.detected(sure(len(days)), by_day=day)
        said = float(early_detection.probability_by_day(elapsed_days=day, **arguments))
        assert found.low <= said <= found.high, day
    done = outcome.fraction_done(sure(1))
    assert done.low <= float(early_detection.fraction_done_when_detected(**arguments)) <= done.high
    assert done.high < 0.9
    half = float(early_detection.threshold_to_catch(run_flops=2.0))
    assert half == float(early_detection.incriminating_flops(run_flops=2.0, flops_threshold=half))


def test_collusion() -> None:
    """Provers as strata: `strata_probability` for any shares, `worst_shares` against others, and all sampled as one."""
    chips, flops = [1000, 600, 400], 300 * A * 30
    holdings = tuple(Holding(count, A) for count in chips)
    samples = (20, 12, 0)
    provers = {"chips": chips, "chip_flops_per_day": A, "run_days": 30.0, "shown": -math.expm1(-3.0)}
    worst = stratified_sampling.worst_shares(samples=samples, flops_threshold=flops, **provers)
    ways = [(1.0, 0.0, 0.0), (0.5, 0.3, 0.2), tuple(worst.tolist()), (0.0, 1.0, 0.0)]
    cases = []
    for shares in ways:
        outcome = play(
            0, 300, samples, holdings=holdings, strategy=Strategy(shares=shares), replacement=True, trials=40_000
        )
        # The simulated Prover rounds its chips up at each holding; so does the formula here.
        whole = [math.ceil(part * 300 - 1e-9) for part in shares]
        said = stratified_sampling.strata_probability(
            samples=samples, shares=np.array(whole) / sum(whole), flops_threshold=sum(whole) * A * 30, **provers
        )
        cases.append((repr(shares), outcome, float(said)))
    agree(cases)
    assert min(outcome.detected().value for _, outcome, _ in cases) == cases[2][1].detected().value
    together = [
        play(0, 300, 32, holdings=holdings, strategy=Strategy(shares=shares), replacement=True)
        for shares in (ways[0], ways[1])
    ]
    said = detection.detection_probability_eq1(
        samples=32, flops_threshold=flops, chips=sum(chips), run_days=30.0, period_days=30.0, **FLEET
    )
    agree([("pooled", outcome, float(said)) for outcome in together])


def test_strata_of_different_chips() -> None:
    """`strata_probability` with two speeds, and the equilibrium of `best_samples` and `worst_shares`."""
    arguments: dict[str, Any] = {
        "flops_threshold": 300 * A * 30, "chip_flops_per_day": [A, 3 * A], "chips": [2000, 500], "run_days": 30.0,
        "shown": -math.expm1(-3.0),
    }  # fmt: skip
    holdings = (Holding(2000, A), Holding(500, 3 * A))
    best = stratified_sampling.whole_samples(
        samples=stratified_sampling.best_samples(budget=20, sample_cost=[1, 1], **arguments), chips=[2000, 500]
    )
    worst = stratified_sampling.worst_shares(samples=best, **arguments)
    samples = (int(best[0]), int(best[1]))
    cases = []
    for shares in ((0.5, 0.5), (0.9, 0.1), (float(worst[0]), float(worst[1]))):
        outcome = play(0, 300, samples, holdings=holdings, strategy=Strategy(shares=shares), replacement=True)
        whole = [math.ceil(300 * shares[0] - 1e-9), 3 * math.ceil(100 * shares[1] - 1e-9)]
        rounded = arguments | {"flops_threshold": sum(whole) * A * 30}
        said = stratified_sampling.strata_probability(samples=best, shares=np.array(whole) / sum(whole), **rounded)
        cases.append((repr(shares), outcome, float(said)))
    agree(cases)
    assert cases[2][2] <= min(cases[0][2], cases[1][2]) + 1e-3


def test_inspections_that_miss_things() -> None:
    """`shown_probability`, `worst_shown_probability` and `with_soundness_error`."""
    cases: list[Case] = []
    w = -math.expm1(-3.0)
    for missed, unseen in itertools.product((0.0, 0.4), (0.3, 0.9)):
        kinds = {"snapshot": w, "replay_missed": missed, "tampering_missed": unseen}
        seen = []
        for tampered in (0.0, 0.5, 1.0):
            outcome = play(
                4000, 400, 10, strategy=Strategy(tampered=tampered), replay_missed=missed, tampering_missed=unseen
            )
            shown = float(reliability.shown_probability(tampered=tampered, **kinds))
            cases.append((repr((missed, unseen, tampered)), outcome, 1 - (1 - 0.1 * shown) ** 10))
            seen.append(outcome.detected().value)
        least = float(reliability.worst_shown_probability(**kinds))
        assert min(seen) in (seen[0], seen[2])
        assert min(seen) == pytest.approx(1 - (1 - 0.1 * least) ** 10, abs=0.02)
    agree(cases)
    eps = 0.25
    fooled = play(4000, 400, 20, soundness_error=eps)
    sees = followed(4000, 400, 20, 30.0, 0.1)
    agree([("soundness", fooled, float(reliability.with_soundness_error(probability=sees, soundness_error=eps)))])


def test_chips_that_nobody_monitors() -> None:
    """`unmonitored_flops`, `monitored_flops` and `sampled_waste`: legacy chips do their part for free."""
    holdings = (Holding(1000, A), Holding(200, A / 2, logs=False))
    free = float(
        unmonitored_chips.unmonitored_flops(
            legacy_chips=200, legacy_flops_per_day=A / 2, exempt_chips=0, chip_flops_per_day=A, run_days=30.0
        )
    )
    flops = 250 * A * 30
    left = float(unmonitored_chips.monitored_flops(flops_threshold=flops, unmonitored=free))
    hidden = Strategy(shares=(left / flops, free / flops))
    outcome = play(0, 250, (15, 0), holdings=holdings, strategy=hidden)
    pooled = play(0, 250, 18, holdings=holdings, strategy=hidden)
    said = float(
        detection.detection_probability_hypergeometric(
            samples=15, flops_threshold=left, chips=1000, run_days=30.0, **FLEET
        )
    )
    agree([("separate", outcome, said)])
    # Drawing from all 1200 chips, sampled_waste times as many samples see about as much.
    assert float(unmonitored_chips.sampled_waste(chips=1200, exempt_chips=200)) == 18 / 15
    assert pooled.detected().value == pytest.approx(said, abs=0.02)


def test_sampling_that_stops_early() -> None:
    """`expected_samples` with and without replacement, as means with Student's interval."""
    count = 6
    for chips, involved, samples in ((50, 5, 20), (1000, 30, 40), (1000, 400, 10)):
        seen = -math.expm1(-3.0)
        without = play(chips, involved, samples, stop_at_first=True).inspected_chips(sure(count))
        said = float(sequential.expected_samples(samples=samples, chips=chips, involved=involved, shown=seen))
        assert without.low <= said <= without.high, (chips, involved, samples)
        # Certain snapshots, because a chip that is drawn twice has the same log (see the test of equation 1).
        again = play(
            chips, involved, samples, stop_at_first=True, replacement=True, snapshot_rate_per_day=9.0
        ).inspected_chips(sure(count))
        said = float(sequential.expected_samples_with_replacement(samples=samples, hit=involved / chips))
        assert again.low <= said <= again.high, (chips, involved, samples)


def test_walds_test_keeps_its_error_rates() -> None:
    """`sequential_test_lines` played out: Wald's bounds on both errors hold.

    His mean sample numbers neglect that the walk oversteps the line at which it stops; they are a quarter too low here.
    """
    rates = {"tolerable": 0.01, "intolerable": 0.06, "false_alarm": 0.05, "missed": 0.1}
    slope, below, above = (float(value) for value in sequential.sequential_test_lines(**rates))
    means = [float(value) for value in sequential.sequential_test_samples(**rates)]
    rng = np.random.default_rng(9)
    steps = np.arange(1, 3001)
    for rate, wrong, most, expected in (
        (0.01, "failed", 0.05 / 0.9, means[0]),
        (0.06, "passed", 0.1 / 0.95, means[1]),
    ):
        excess = np.cumsum(rng.random((3000, steps.size)) < rate, axis=1) - slope * steps
        failed, passed = excess >= above, excess <= -below
        stopped = failed | passed
        assert stopped.any(axis=1).all()
        first = stopped.argmax(axis=1)
        error = {"failed": failed, "passed": passed}[wrong][np.arange(3000), first].mean()
        assert error <= most + 4 * math.sqrt(most * (1 - most) / 3000)
        assert expected < first.mean() + 1 < 1.35 * expected


def test_confidence_bounds_cover_the_truth() -> None:
    """`clopper_pearson`, `hypergeometric_bounds` and `largest_hidden_run` on simulated inspections of a known fleet."""
    chips, bad, samples = 400, 30, 60
    found = (draw(np.random.default_rng(4), chips, samples, 5000) < bad).sum(axis=1)
    counts = np.arange(found.max() + 1)
    least, most = confidence.hypergeometric_bounds(found=counts, samples=samples, chips=chips, confidence=0.9)
    low, high = confidence.clopper_pearson(found=counts, samples=samples, confidence=0.9)
    error = 4 * math.sqrt(0.09 / found.size)
    assert np.mean((least[found] <= bad) & (bad <= most[found])) >= 0.9 - error
    assert np.mean((low[found] <= bad / chips) & (bad / chips <= high[found])) >= 0.9 - error
    assert np.mean((least[found] <= bad) & (bad <= most[found])) < 0.99  # not by being endless


def test_attribute_samples_find_a_defect_as_often_as_wanted() -> None:
    """`sample_size_exact` is enough and one fewer is not; the other formulas never ask for fewer."""
    rng, rows = np.random.default_rng(6), 40_000
    for population, defects in ((1000, 10), (60, 3)):
        question = {"population": population, "defects": defects, "probability": 0.9}
        size = int(attribute_sampling.sample_size_exact(**question))
        found = (draw(rng, population, size, rows) < defects).any(axis=1).mean()
        fewer = (draw(rng, population, size - 1, rows) < defects).any(axis=1).mean()
        error = 4 * math.sqrt(0.09 / rows)
        assert found > 0.9 - error
        assert fewer < 0.9 + error
        assert found == pytest.approx(0.9, abs=0.02)
        assert int(attribute_sampling.sample_size_binomial(**question)) >= size


def test_the_plan_for_a_budget_sees_what_it_says() -> None:
    """`best_plan` against the Prover it fears most."""
    kinds = (
        planning.Stratum("new", 1000, 2 * A, 0.9, 250.0),
        planning.Stratum("old", 3000, A, 0.6, 150.0),
    )
    snapshots = planning.CostModel(
        chip_day_cost=10.0, stall_seconds=0.5, job_chips=1, snapshot_bytes=1e9, byte_year_cost=1e-12, kept_days=30.0
    )
    plan = planning.best_plan(
        budget=150_000.0, flops_threshold=300 * A * 30, period_days=30.0, strata=kinds, costs=snapshots
    )
    # Reliability differs from kind to kind, so it is played out as thinner logs: r = P(first snapshot, and not missed).
    holdings = (Holding(1000, 2 * A), Holding(3000, A))
    cases = []
    for place, kind in enumerate(kinds):
        alone = tuple(drawn if place == index else 0 for index, drawn in enumerate(plan.samples))
        outcome = play(
            0, 300, alone, holdings=holdings, strategy=Strategy(shares=plan.shares), trials=40_000,
            snapshot_rate_per_day=plan.snapshot_rate_per_day, replay_missed=1 - kind.reliability,
        )  # fmt: skip
        cases.append(outcome.detected(sure(2)))
    low, high = (1 - (1 - a) * (1 - b) for a, b in ((cases[0].low, cases[1].low), (cases[0].high, cases[1].high)))
    assert low <= plan.detection_probability_hypergeometric <= high
    assert high - low < 0.05


def test_what_snapshots_cost() -> None:
    """`stall_fraction` and `stored_bytes` from a simulated job's snapshots, `interrupt_probability_per_cycle` too."""
    rng, chips, rate, days = np.random.default_rng(8), 200, 3.0, 40.0
    snapshots = rng.poisson(rate * days, chips).sum()
    stalled = snapshots * 5.0 / (days * 86400)
    said = float(costs.stall_fraction(job_chips=chips, snapshot_rate_per_day=rate, stall_seconds=5.0))
    assert stalled == pytest.approx(said, rel=4 / math.sqrt(chips * rate * days))
    kept = float(costs.stored_bytes(chips=chips, snapshot_rate_per_day=rate, snapshot_bytes=7.0, kept_days=days))
    assert snapshots * 7.0 == pytest.approx(kept, rel=4 / math.sqrt(chips * rate * days))
    per_cycle = float(costs.interrupt_probability_per_cycle(snapshot_rate_per_day=rate, clock_hz=0.01))
    waits = rng.geometric(per_cycle, 20_000) / 0.01 / 86400  # cycles until the interrupt, in days
    first = first_snapshots(rng, 20_000, ((0.0, 1e9),), rate, 0.0)
    assert waits.mean() == pytest.approx(first.mean(), rel=0.05)


def test_a_missing_chip_is_as_good_as_a_snapshot() -> None:
    """Chips sold to nobody show their absence with probability 1 - loss_excused, whatever they held."""
    sold = Strategy(spread=2.0, sliced=True, sell_to=OUTSIDE)
    outcome = play(1000, 50, 20, strategy=sold, snapshot_rate_per_day=1e-9, loss_excused=0.4)
    said = 1 - (1 - 0.1 * 0.6) ** 20
    found: Estimate = outcome.detected(sure(1))
    assert found.low - 0.005 <= said <= found.high + 0.005  # said with replacement
