"""A fleet of chips, its Prover and its Verifier, played out: the independent check of every formula of `analysis`.

Nothing here computes a probability. Chips take snapshots after exponentially distributed waits, inspections draw chips
by number, a drawn chip is looked up among those that worked on a run, its log is read, and what is found is counted.
No formula of the other modules is used, so that agreement means something.

What has no effect is not computed: of a chip that never worked on a run, only whether it is drawn matters; of one
that did, only its first visible snapshot. So a fleet of millions of chips over years costs what its draws and its runs
cost, and memory is bounded by working on a few histories at a time. Results depend on the seed, not on `workers`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.domain import DetectionDomainError, FloatArray, InfeasibleError, positive, probability, whole
from analysis.strategies import OUTSIDE, Crew, Goal, Holding, Policy, Strategy, Windows, crews, cycle_days

_NUMBERS = 1 << 21  # of one array that is held at a time
_DENSE = 8  # draws of more than one chip in this many
_MOST_AT_ONCE = 1 << 24  # chips drawn in one inspection, or at work on one run
_LEAST_CHUNKS = 16  # so that there is something for each worker and for a progress bar
_MOST_INSPECTIONS = 100_000
_MOST_RESULTS = 100_000_000
_EXACT = 1e-9

IntArray = npt.NDArray[np.int64]
Ids = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Estimate:
    """A simulated number with its confidence interval.

    Attributes:
        value: The mean, or the fraction of cases.
        low: Lower confidence bound.
        high: Upper confidence bound.
        count: Number of cases.
    """

    value: float
    low: float
    high: float
    count: int


def fraction(hits: int, count: int, confidence: float) -> Estimate:
    """Returns hits/count with the Clopper-Pearson interval.

    Raises:
        DetectionDomainError: `confidence` is not between 0 and 1, or there were no cases.
    """
    probability("confidence", confidence)
    if count < 1:
        raise DetectionDomainError("an estimate needs at least one case; raise trials")
    from scipy import stats  # noqa: PLC0415 (takes half a second)

    interval = stats.binomtest(hits, count).proportion_ci(confidence, method="exact")
    return Estimate(hits / count, float(interval.low), float(interval.high), count)


def mean(values: FloatArray, confidence: float) -> Estimate:
    """Returns the mean with Student's interval.

    Raises:
        DetectionDomainError: `confidence` is not between 0 and 1, or there are fewer than two values.
    """
    probability("confidence", confidence)
    if values.size < 2:
        raise DetectionDomainError("a mean with an interval needs at least two cases; raise trials")
    from scipy import stats  # noqa: PLC0415 (takes half a second)

    middle, error = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(values.size)
    reach = float(stats.t.ppf((1 + confidence) / 2, values.size - 1)) * error
    return Estimate(middle, middle - reach, middle + reach, values.size)


@dataclass(frozen=True)
class Outcome:
    """What was found in each history.

    Intervals take the runs of one history as independent; they are on other chips, and have other inspections in time.

    Attributes:
        found_after: Days from a run's start to the inspection that found it, infinity if none did; float64,
            (trials, runs).
        run_days: Length of a run in days.
        in_time_days: Days from a run's start up to which finding it was in time.
        inspected: Chips inspected if every inspection stops at its first finding; int64, (trials,).
        false_alarms: Honest chips that raised an alarm; int64, (trials,).
        drawn: Chips drawn in each history.
        inspections: Inspections in each history.
    """

    found_after: FloatArray
    run_days: float
    in_time_days: float
    inspected: IntArray
    false_alarms: IntArray
    drawn: int
    inspections: int

    def detected(self, confidence: float = 0.95, by_day: float | None = None) -> Estimate:
        """Returns the fraction of runs found in time, or `by_day` days after their start.

        Raises:
            DetectionDomainError: There were no runs (an honest Prover), or `confidence` is out of range.
        """
        limit = self.in_time_days if by_day is None else by_day
        return fraction(int(np.sum(self.found_after <= limit * (1 + _EXACT))), self.found_after.size, confidence)

    def ever_detected(self, confidence: float = 0.95) -> Estimate:
        """Returns the fraction of runs found before the history ends, in time or not; errors as `detected`."""
        return fraction(int(np.isfinite(self.found_after).sum()), self.found_after.size, confidence)

    def fraction_done(self, confidence: float = 0.95) -> Estimate:
        """Returns the mean fraction of a run that is done when it is found, 1 if that is later or never.

        Raises:
            DetectionDomainError: There were fewer than two runs, or `confidence` is out of range.
        """
        return mean(np.minimum(1.0, self.found_after.reshape(-1) / self.run_days), confidence)

    def inspected_chips(self, confidence: float = 0.95) -> Estimate:
        """Returns the mean of `inspected`; errors as `fraction_done`."""
        return mean(self.inspected.astype(np.float64), confidence)

    def accused(self, confidence: float = 0.95) -> Estimate:
        """Returns the fraction of histories with at least one false alarm; errors as `detected`."""
        return fraction(int(np.sum(self.false_alarms > 0)), self.false_alarms.size, confidence)


@dataclass(frozen=True)
class _Block:
    """A crew's places in the numbering of all chips, where it works and where it goes."""

    crew: Crew
    home: int
    away: int


@dataclass(frozen=True)
class _Run:
    start: float
    blocks: tuple[_Block, ...]


@dataclass(frozen=True)
class _Pool:
    """Chips that are drawn from together: `chips` from number `first` on."""

    first: int
    chips: int
    samples: int


@dataclass(frozen=True)
class _History:
    """Everything that is the same in all trials."""

    policy: Policy
    pools: tuple[_Pool, ...]
    runs: tuple[_Run, ...]
    days: FloatArray
    logs: tuple[bool, ...]
    hidden: float
    ordered: bool


def simulate(
    *,
    holdings: tuple[Holding, ...],
    policy: Policy,
    goal: Goal,
    strategy: Strategy,
    trials: int,
    seed: int,
    horizon_days: float | None = None,
    stop_at_first: bool = False,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Plays out a fleet's history `trials` times.

    Args:
        holdings: The fleet.
        policy: How it is inspected, every `period_days` from day 0.
        goal: The run that the Prover wants done.
        strategy: How it goes about it. Runs follow each other, each on other chips if there are enough.
        trials: Number of histories, whole.
        seed: Of all randomness; the same seed gives the same outcome.
        horizon_days: Length of a history in days; None is one run, up to the last inspection in time for it.
        stop_at_first: Count the chips inspected up to the first finding of each inspection (in random order).
        workers: Threads.
        progress: Called with the number of trials that were finished, from any thread.

    Raises:
        DetectionDomainError: An argument is out of range, or arguments do not fit each other.
        InfeasibleError: The run does not fit on its chips, more chips are drawn than there are, or the horizon is too
            short for one run.
    """
    count, threads = int(whole("trials", trials, 1)), int(whole("workers", workers, 1))
    whole("seed", seed, 0)
    history, in_time, run_days = _history(holdings, policy, goal, strategy, horizon_days, stop_at_first)
    if count * max(1, len(history.runs)) > _MOST_RESULTS:
        raise DetectionDomainError(f"more than {_MOST_RESULTS} runs are too many to keep; lower trials or the horizon")
    drawn = sum(pool.samples for pool in history.pools)
    working = sum(int(block.crew.chips) for run in history.runs[:1] for block in run.blocks)
    if max(drawn, working) > _MOST_AT_ONCE:
        raise DetectionDomainError(
            f"more than {_MOST_AT_ONCE} chips drawn at once, or at work on one run, are too many to simulate; lower "
            "samples or flops"
        )
    rows = max(1, min(_NUMBERS // max(1, drawn, working), -(-count // _LEAST_CHUNKS)))
    sizes = [min(rows, count - start) for start in range(0, count, rows)]
    seeds = np.random.SeedSequence(seed).spawn(len(sizes))

    def part(work: tuple[int, np.random.SeedSequence]) -> tuple[FloatArray, IntArray, IntArray]:
        result = _play(history, work[0], np.random.Generator(np.random.SFC64(work[1])))
        if progress is not None:
            progress(work[0])
        return result

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(part, zip(sizes, seeds, strict=True)))
    found, inspected, alarms = (np.concatenate([result[place] for result in results]) for place in range(3))
    return Outcome(
        found, run_days, in_time, inspected, alarms, drawn=drawn * len(history.days), inspections=len(history.days)
    )


def _history(
    holdings: tuple[Holding, ...],
    policy: Policy,
    goal: Goal,
    strategy: Strategy,
    horizon_days: float | None,
    ordered: bool,
) -> tuple[_History, float, float]:
    """Returns the history, and the days from a run's start in which finding it is in time, and its length."""
    policy.check(holdings)
    members = crews(strategy, goal, holdings, policy)
    period = policy.period_days
    run_days = goal.days if strategy.honest else strategy.length(goal)
    watched = cycle_days(strategy, goal, policy)
    # The next run starts at the same time after an inspection as this one.
    spacing = max(1.0, np.ceil((strategy.start_day + run_days) / period * (1 - _EXACT))) * period
    horizon = watched if horizon_days is None else float(positive("horizon_days", horizon_days, "days"))
    number = 0 if strategy.honest else 1
    if horizon_days is not None and not strategy.honest:
        number = int((horizon - max(watched, spacing)) / spacing * (1 + _EXACT) + 1)
        if number < 1 or horizon < watched * (1 - _EXACT):
            raise InfeasibleError(f"a run takes up to {watched:g} days to be found in time; raise horizon_days to that")
    inspections = int(horizon / period * (1 + _EXACT))
    if inspections > _MOST_INSPECTIONS:
        raise DetectionDomainError(f"more than {_MOST_INSPECTIONS} inspections; raise period_days")
    firsts = np.concatenate([[0], np.cumsum([holding.chips for holding in holdings])])
    if isinstance(policy.samples, tuple):
        pools = [
            _Pool(int(first), holding.chips, int(drawn))
            for first, holding, drawn in zip(firsts, holdings, policy.samples, strict=False)
        ]
    else:
        pools = [_Pool(0, int(firsts[-1]), int(policy.samples))]
    return (
        _History(
            policy=policy,
            pools=tuple(pools),
            runs=_placed(members, holdings, [int(first) for first in firsts], number, strategy.start_day, spacing),
            days=period * np.arange(1.0, inspections + 1),
            logs=tuple(holding.logs for holding in holdings),
            hidden=policy.swap_hidden if strategy.swap else 0.0,
            ordered=ordered,
        ),
        watched - strategy.start_day,
        run_days,
    )


def _placed(
    members: tuple[Crew, ...], holdings: tuple[Holding, ...], firsts: list[int], number: int, start: float,
    spacing: float,
) -> tuple[_Run, ...]:  # fmt: skip
    """Gives the crews of each run chips of their own: consecutive ones, because every chip is as likely to be drawn."""
    width = [0] * len(holdings)
    places: list[tuple[Crew, int, int]] = []
    for crew in members:
        home, away = width[crew.holding], 0
        width[crew.holding] += int(crew.chips)
        if crew.goes_to != OUTSIDE:
            away = width[crew.goes_to]
            width[crew.goes_to] += int(crew.chips)
        places.append((crew, home, away))

    def place(holding: int, offset: int, run: int) -> int:
        turn = run * width[holding] % (holdings[holding].chips - width[holding] + 1)
        return firsts[holding] + turn + offset

    return tuple(
        _Run(
            start + run * spacing,
            tuple(
                _Block(
                    crew,
                    place(crew.holding, home, run),
                    OUTSIDE if crew.goes_to == OUTSIDE else place(crew.goes_to, away, run),
                )
                for crew, home, away in places
            ),
        )
        for run in range(number)
    )


def draw(rng: np.random.Generator, population: int, count: int, rows: int, *, replacement: bool = False) -> Ids:
    """Draws `count` of the numbers below `population`, `rows` times; without replacement each set is equally likely.

    Numbers that come twice in a row are drawn again until none does; where that would take long, all get random 64-bit
    keys and the smallest are taken. As every step treats all numbers alike, so does the result.

    Args:
        rng: The source of randomness.
        population: Numbers to draw from.
        count: How many, at most `population` without replacement.
        rows: How many draws.
        replacement: Whether a number may come twice.

    Returns:
        uint32, or uint64 for populations beyond it, (rows, count); without replacement in no meaningful order.
    """
    kind: type[np.unsignedinteger[Any]] = np.uint32 if population <= 2**32 else np.uint64
    if not replacement and count == population:
        return np.broadcast_to(np.arange(population, dtype=kind), (rows, population))
    if not replacement and _DENSE * count > population:
        keys = rng.integers(2**64, size=(rows, population), dtype=np.uint64)
        return np.argpartition(keys, count, axis=1)[:, :count].astype(kind)
    ids: Ids = rng.integers(population, size=(rows, count), dtype=kind)
    again = np.arange(0 if replacement or count < 2 else rows)
    while again.size:
        some = np.sort(ids[again], axis=1)
        twice = some[:, 1:] == some[:, :-1]
        repeated = int(np.count_nonzero(twice))
        if repeated:
            some[:, 1:][twice] = rng.integers(population, size=repeated, dtype=kind)
        ids[again] = some
        again = again[twice.any(axis=1)]
    return ids


def first_snapshots(rng: np.random.Generator, count: int, windows: Windows, rate: float, hidden: float) -> FloatArray:
    """Returns when each chip takes its first visible snapshot in `windows`, infinity if it takes none.

    Waits between snapshots are exponentially distributed; each snapshot is hidden with probability `hidden`.

    Args:
        rng: The source of randomness.
        count: Number of chips.
        windows: Times to look at, as (from, to), in days.
        rate: Mean number of snapshots per chip and day.
        hidden: Probability that a snapshot shows other weights than the real ones.

    Returns:
        float64, (count,).
    """
    first = np.full(count, np.inf)
    for begin, end in windows:
        at = begin + rng.exponential(1 / rate, count)
        open_ = np.flatnonzero(at <= end) if hidden else np.empty(0, dtype=np.int64)
        while open_.size:
            open_ = open_[rng.random(open_.size) < hidden]
            at[open_] += rng.exponential(1 / rate, open_.size)
            open_ = open_[at[open_] <= end]
        np.minimum(first, np.where(at <= end, at, np.inf), out=first)
    return first


def _play(history: _History, trials: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray, IntArray]:
    """Plays out some histories and returns the three arrays of `Outcome`."""
    policy, runs = history.policy, history.runs
    found = np.full((trials, len(runs)), np.inf)
    inspected, alarms = np.zeros(trials, dtype=np.int64), np.zeros(trials, dtype=np.int64)
    fooled = rng.random(found.shape) < policy.soundness_error
    logs: dict[int, list[FloatArray]] = {}
    total = sum(pool.samples for pool in history.pools)
    begun, watched = 0, list[int]()
    for day in history.days:
        while begun < len(runs) and runs[begun].start < day:
            watched.append(begun)
            begun += 1
        ids = [draw(rng, pool.chips, pool.samples, trials, replacement=policy.replacement) for pool in history.pools]
        if history.ordered:
            ids = [rng.permuted(each, axis=1) for each in ids]
        earliest = np.full(trials, total, dtype=np.int64)
        left = np.full(trials, policy.withheld, dtype=np.int64)
        for run in watched:
            if run not in logs:
                # Zero is "not looked at yet"; a page of memory that is never touched is never there.
                logs[run] = [np.zeros((trials, int(block.crew.chips))) for block in runs[run].blocks]
            shown = _shown(history, runs[run], logs[run], ids, day - runs[run].start, fooled[:, run], rng)
            if policy.withheld:
                shown = _withheld(shown, left)
            np.minimum.at(earliest, shown[0], shown[1])
            new = shown[0][np.isinf(found[shown[0], run])]
            found[new, run] = day - runs[run].start
        inspected += np.minimum(total, earliest + 1) if history.ordered else total
        if policy.false_alarm:
            alarms += rng.binomial(total, policy.false_alarm, trials)
        for run in [run for run in watched if not history.ordered and np.isfinite(found[:, run]).all()]:
            watched.remove(run)  # nothing that is still open depends on it
            del logs[run]
    return found, inspected, alarms


def _withheld(shown: tuple[IntArray, IntArray], left: IntArray) -> tuple[IntArray, IntArray]:
    """Returns what is shown once the Prover, who knows the draw, withheld chips, and takes them off `left`.

    In each trial all chips that would show the run are withheld if there are no more of them than may be. If there
    are, the run cannot be hidden, and none is wasted on it.
    """
    hits = np.bincount(shown[0], minlength=left.size)
    hidden = hits <= left
    left -= np.where(hidden, hits, 0)
    kept = ~hidden[shown[0]]
    return shown[0][kept], shown[1][kept]


def _read(
    history: _History, crew: Crew, log: FloatArray, rows: IntArray, chips: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Returns when the chips that are looked at took their first visible snapshot of the run, and remembers it."""
    first: FloatArray = log[rows, chips]
    new = np.flatnonzero(first == 0)
    if new.size:
        windows = crew.windows if history.logs[crew.holding] else ()
        rate = history.policy.snapshot_rate_per_day
        # A chip that was drawn twice gets two values, of which the last one is kept for both.
        log[rows[new], chips[new]] = first_snapshots(rng, new.size, windows, rate, history.hidden)
        first = log[rows, chips]
    return first


def _shown(
    history: _History,
    run: _Run,
    logs: list[FloatArray],
    ids: list[Ids],
    since: float,
    fooled: npt.NDArray[np.bool_],
    rng: np.random.Generator,
) -> tuple[IntArray, IntArray]:
    """Returns the trials in which drawn chips give a run away, and the places of these chips in the draw."""
    policy = history.policy
    trials: list[IntArray] = [np.empty(0, dtype=np.int64)]
    places: list[IntArray] = [np.empty(0, dtype=np.int64)]
    for block, log in zip(run.blocks, logs, strict=True):
        crew = block.crew
        if since <= crew.start:
            continue
        sold = since >= crew.leaves
        missing = sold and crew.goes_to == OUTSIDE
        place = block.away if sold and not missing else block.home
        before = 0
        for pool, drawn in zip(history.pools, ids, strict=True):
            if pool.samples and pool.first <= place < pool.first + pool.chips:
                # Numbers below the block's first wrap around to huge ones.
                offset = drawn - drawn.dtype.type(place - pool.first)
                rows, columns = np.nonzero(offset < int(crew.chips))
                if missing or (crew.tampered and history.logs[crew.holding]):
                    seen = rng.random(rows.size) >= (policy.loss_excused if missing else policy.tampering_missed)
                else:
                    chips = offset[rows, columns].astype(np.int64)
                    seen = (_read(history, crew, log, rows, chips, rng) <= since) & ~fooled[rows]
                    seen &= rng.random(rows.size) >= policy.replay_missed
                trials.append(rows[seen])
                places.append(columns[seen] + before)
            before += pool.samples
    return np.concatenate(trials), np.concatenate(places)
