"""The Prover who chooses best, and the Verifier who expects that: what an inspection policy is worth.

`found_probability` is the formula for any strategy of `analysis.strategies`: the chips that each crew has in what is
drawn from, times the chance that one of them shows something by then, over all inspections that are in time.
`best_strategy` searches the strategies for the one that is least likely to be found, `best_policy` the periods and
samples of one budget for those against which the best strategy fares worst. Both are searches: what they return is
attained, and that nothing else does better is checked where theory says what must come out (theorem 1, and the
equilibrium of `analysis.stratified_sampling`). The simulator (`analysis.simulated_fleet`) checks the probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import permutations

import numpy as np
from scipy import optimize, special

from analysis.costs import DAYS_PER_YEAR
from analysis.domain import FloatArray, InfeasibleError, positive
from analysis.hypergeometric import seen_probability
from analysis.strategies import OUTSIDE, Crew, Goal, Holding, Policy, Strategy, crews, cycle_days
from analysis.stratified_sampling import whole_samples
from analysis.withheld_marks import shown_marks

_GRID = 17  # points of a knob that are tried before the best one's neighbourhood is searched
_SLICES = (1, 2, 3, 5, 10, 20)
_ANSWERS = 25  # of the Prover, at most
_CERTAIN = 50.0  # -log(miss); exp(-50) is nothing
_PERIODS = (1.0, 0.5, 0.25, 0.125)  # of the longest, tried by `best_policy`
_ROUNDING = 1e-9  # relative
_WORTH_IT = 5e-3  # of the probability, or of its complement; rounding to whole chips alone may gain less
_SAME = 1e-4  # relative difference of two lengths that does not matter
_MOST_LENGTHS = 30
_PRECISION = 1e-3  # of the distance between the grid's points
_ROUNDS = 20


def found_probability(
    *, holdings: tuple[Holding, ...], policy: Policy, goal: Goal, strategy: Strategy, whole_chips: bool = True
) -> float:
    """Returns the probability that a run is found in time.

    Inspections are taken as independent of each other, and chips of several crews as alike on average; see
    `analysis.periods` for how little the former matters. The latter is a lower bound.

    Args:
        holdings: The fleet.
        policy: How it is inspected.
        goal: The run.
        strategy: What is done to hide it.
        whole_chips: Count whole chips, drawn as `policy` says. Otherwise they may be fractions, as in equation 1, and
            without replacement the larger of two lower bounds is given: samples drawn with replacement, and involved
            chips that are each drawn or not, independently. That is quick, and smooth in every knob.

    Raises:
        DetectionDomainError: Strategy, fleet and policy do not fit each other.
        InfeasibleError: The run does not fit on its chips, or more chips are drawn than there are.
    """
    policy.check(holdings)
    pools = policy.pools(holdings)
    if policy.replacement or not whole_chips:
        samples = np.array([float(drawn) for drawn, _ in pools])
        return _mixed(_exponents(holdings, policy, goal, strategy, samples, whole_chips).sum(axis=1), policy)
    marked = _marked(holdings, policy, goal, strategy, whole_chips)
    if policy.withheld:
        return _mixed(_despite(pools, marked, policy.withheld), policy)
    exponent = np.zeros(2)
    for (drawn, chips), (involved, hits) in zip(pools, marked, strict=True):
        shares = np.divide(hits, involved, out=np.zeros_like(hits), where=involved > 0)
        seen = np.asarray(seen_probability(population=chips, marked=involved, drawn=drawn, shown=shares))
        with np.errstate(divide="ignore"):
            exponent -= np.log1p(-seen).sum(axis=1)
    return _mixed(exponent, policy)


def _despite(pools: list[tuple[int, int]], marked: list[tuple[FloatArray, FloatArray]], withheld: int) -> FloatArray:
    """Returns -log(miss) where a Prover who knows each draw withholds the chips that would show the run; (2,).

    An inspection misses the run if no more chips of all pools together would show it than may be withheld.
    """
    exponent = np.zeros(2)
    for row in range(2):
        for number in range(marked[0][0].size):
            found = np.ones(1)
            for (drawn, chips), (involved, hits) in zip(pools, marked, strict=True):
                some = float(involved[number])
                shown = min(1.0, float(hits[row, number]) / some) if some else 0.0
                counts = shown_marks(float(chips), some, float(drawn), shown, withheld)
                found = np.convolve(found, counts)[: withheld + 1]
            with np.errstate(divide="ignore"):
                exponent[row] -= np.log(min(1.0, found.sum()))
    return exponent


def _mixed(exponent: FloatArray, policy: Policy) -> float:
    """Returns the probability from -log(miss) with replays that work, and with a transcript that fools them all."""
    works, fooled = -np.expm1(-exponent)
    return float((1 - policy.soundness_error) * works + policy.soundness_error * fooled)


def _exponents(
    holdings: tuple[Holding, ...],
    policy: Policy,
    goal: Goal,
    strategy: Strategy,
    drawn: FloatArray,
    whole_chips: bool = False,
) -> FloatArray:
    """Returns -log(miss) of `drawn` samples a period in each pool, real numbers of them; (2, pools) as in `_mixed`."""
    found = []
    marked = _marked(holdings, policy, goal, strategy, whole_chips)
    with np.errstate(divide="ignore", invalid="ignore"):
        for samples, (_, chips), (involved, hits) in zip(drawn, policy.pools(holdings), marked, strict=True):
            exponents = -samples * np.log1p(-np.minimum(1.0, hits / chips))
            if not policy.replacement:
                each = -involved * np.log1p(-hits / involved * min(1.0, samples / chips))
                exponents = np.fmax(exponents, np.where(hits > 0, each, 0.0))
            found.append(np.where(samples * hits > 0, exponents, 0.0))
    if policy.withheld:
        found = _despite_rare_hits(found, policy.withheld)
    return np.stack([each.sum(axis=1) for each in found], axis=1)


def _despite_rare_hits(exponents: list[FloatArray], withheld: int) -> list[FloatArray]:
    """Returns -log(miss) of each pool and inspection if the hits are as rare events: more than w of them are needed.

    What all pools of an inspection come to together is divided among them as their hits are. It guides a search.
    """
    together = np.sum(exponents, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = -np.log(special.gammaincc(withheld + 1, together))
        return [np.where(each > 0, np.minimum(seen, _CERTAIN * 10) * each / together, 0.0) for each in exponents]


def _marked(
    holdings: tuple[Holding, ...], policy: Policy, goal: Goal, strategy: Strategy, whole_chips: bool
) -> list[tuple[FloatArray, FloatArray]]:
    """Returns for each pool, at each inspection, the involved chips, (inspections,), and how many of them show the run.

    The latter has shape (2, inspections) as in `_mixed`.
    """
    members = crews(strategy, goal, holdings, policy, whole_chips=whole_chips)
    count = round(cycle_days(strategy, goal, policy) / policy.period_days)
    since = policy.period_days * np.arange(1.0, count + 1) - strategy.start_day
    rate = policy.snapshot_rate_per_day * (1 - policy.swap_hidden if strategy.swap else 1)
    pools = [(np.zeros(count), np.zeros((2, count))) for _ in policy.pools(holdings)]
    for crew in members:
        where, shown = _seen_by(crew, since, holdings, policy, rate)
        for place, (involved, hits) in enumerate(pools):
            here = np.where((where == place) | (len(pools) < len(holdings)), crew.chips, 0.0)
            involved += here
            hits += here * shown
    return pools


def _seen_by(
    crew: Crew, since: FloatArray, holdings: tuple[Holding, ...], policy: Policy, rate: float
) -> tuple[FloatArray, FloatArray]:
    """Returns which holding's directory lists the crew at each time, and what a drawn chip of it shows.

    The latter has a row for replays that work and one for a transcript that fools them.
    """
    sold = since >= crew.leaves
    lost = sold & (crew.goes_to == OUTSIDE)
    logs = holdings[crew.holding].logs
    watched = sum((np.clip(since, begin, end) - begin for begin, end in crew.windows), np.zeros(since.size))
    snapshot = np.where(logs, -np.expm1(-rate * watched) * (1 - policy.replay_missed), 0.0)
    other = np.zeros(since.size)
    if crew.tampered and logs:
        other = np.where(since > crew.start, 1 - policy.tampering_missed, 0.0)
        snapshot = other
    other = np.where(lost, 1 - policy.loss_excused, other)
    return (
        np.where(sold & ~lost, crew.goes_to, crew.holding),
        np.stack([np.where(lost, 1 - policy.loss_excused, snapshot), other]),
    )


@dataclass(frozen=True)
class Attack:
    """What the Prover does best.

    Attributes:
        strategy: The strategy found.
        probability: That it is found in time, over whole chips.
        plain: The same for a run that hides by nothing but sharing it among the holdings in proportion to their chips.
        alone: For each move by itself, the best strategy with it and its probability.
    """

    strategy: Strategy
    probability: float
    plain: float
    alone: dict[str, tuple[Strategy, float]]


@dataclass(frozen=True)
class _Game:
    holdings: tuple[Holding, ...]
    policy: Policy
    goal: Goal
    longest: float
    samples: FloatArray  # of each pool, real numbers

    def cost(self, strategy: Strategy) -> float:
        """Returns the probability to minimise; infinity for what cannot be done."""
        if strategy.length(self.goal) > self.longest * (1 + _ROUNDING):
            return np.inf
        try:
            exponents = _exponents(self.holdings, self.policy, self.goal, strategy, self.samples)
            return _mixed(exponents.sum(axis=1), self.policy)
        except InfeasibleError:
            return np.inf

    def best(self, strategies: Iterator[Strategy]) -> tuple[Strategy, float]:
        """Returns the cheapest of some strategies and its cost; the first of equals."""
        return min(((each, self.cost(each)) for each in strategies), key=lambda pair: pair[1])

    def along(
        self, make: Callable[[float], Strategy], low: float, high: float, also: tuple[float, ...] = ()
    ) -> tuple[Strategy, float]:
        """Returns the cheapest strategy of one knob between `low` and `high`, trying the values `also` as well."""
        if high <= low:
            return make(low), self.cost(make(low))
        points = np.unique([*np.linspace(low, high, _GRID), *(value for value in also if low <= value <= high)])
        costs = [self.cost(make(float(point))) for point in points]
        best = int(np.argmin(costs))
        if not np.isfinite(costs[best]):
            return make(low), np.inf
        around = (points[max(0, best - 1)], points[min(len(points) - 1, best + 1)])
        # A cost that cannot be (infinity) would stop the search; a large number does not.
        inner = optimize.minimize_scalar(
            lambda value: min(self.cost(make(float(value))), 2.0), bounds=around, method="bounded",
            options={"xatol": _PRECISION * (around[1] - around[0])},
        )  # fmt: skip
        refined = make(float(inner.x))
        cost = self.cost(refined)
        return (refined, cost) if cost < costs[best] else (make(float(points[best])), costs[best])


def best_strategy(
    *,
    holdings: tuple[Holding, ...],
    policy: Policy,
    goal: Goal,
    longest_days: float,
    done: float = 1.0,
) -> Attack:
    """Returns the strategy that is least likely to be found in time, for a Prover who knows the policy.

    Args:
        holdings: The fleet; every holding takes part if that helps.
        policy: How it is inspected.
        goal: The run.
        longest_days: Days that the run may take at most.
        done: Fraction of the run that must be done; less is never harder to hide.

    Raises:
        DetectionDomainError: An argument is out of range.
        InfeasibleError: The run does not fit on the fleet, or not within `longest_days`.
    """
    policy.check(holdings)
    longest = float(positive("longest_days", longest_days, "days"))
    if longest < goal.days * done * (1 - _ROUNDING):
        raise InfeasibleError(f"the run takes {goal.days * done:g} days; raise longest_days to that at least")
    game = _Game(holdings, policy, goal, longest, np.array([float(drawn) for drawn, _ in policy.pools(holdings)]))
    plain = _plain(holdings, done)
    crews(plain, goal, holdings, policy)  # raises if the run does not fit

    def exact(strategy: Strategy) -> float:
        try:
            return found_probability(holdings=holdings, policy=policy, goal=goal, strategy=strategy)
        except InfeasibleError:
            return np.inf  # rounding up to whole chips may leave no room

    alone = {name: move(game, plain)[0] for name, move in _MOVES.items()}
    starts = (plain, *alone.values())
    costs = {strategy: exact(strategy) for strategy in (*starts, *(_improved(game, start)[0] for start in starts))}
    least = min(costs.values())
    # Of strategies that are about as good, the simplest.
    found = min((strategy for strategy in costs if not _is_better(least, costs[strategy])), key=_changes)
    return Attack(found, costs[found], costs[plain], {name: (move, costs[move]) for name, move in alone.items()})


def _changes(strategy: Strategy) -> int:
    return sum(getattr(strategy, field.name) != field.default for field in fields(strategy))


def _plain(holdings: tuple[Holding, ...], done: float) -> Strategy:
    """Returns the run that hides by nothing but its place in all holdings."""
    if len(holdings) == 1:
        return Strategy(done=done)
    power = np.array([holding.chips * holding.chip_flops_per_day for holding in holdings])
    return Strategy(done=done, shares=tuple(float(part) for part in power / power.sum()))


def _is_better(value: float, cost: float) -> bool:
    return value < cost - _WORTH_IT * min(cost, 1 - cost)


def _improved(game: _Game, start: Strategy) -> tuple[Strategy, float]:
    """Returns the strategy at which no single move helps any more."""
    found, cost = start, game.cost(start)
    for _ in range(_ROUNDS):
        before = cost
        for move in _MOVES.values():
            strategy, value = move(game, found)
            if _is_better(value, cost):
                found, cost = strategy, value
        if cost == before:
            break
    return _simplified(found), cost


def _simplified(strategy: Strategy) -> Strategy:
    """Returns the same with either `stretch` or `spread`, which undo each other where chips work at the same time."""
    if strategy.sliced:
        return strategy
    ratio = strategy.stretch / strategy.spread
    ratio = 1.0 if abs(ratio - 1) < _SAME else ratio
    return replace(strategy, stretch=max(1.0, ratio), spread=max(1.0, 1 / ratio))


def _stretch(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    unstretched = at.length(game.goal) / at.stretch
    # Ending just at an inspection saves the next one.
    ends = game.policy.period_days * np.arange(1, _MOST_LENGTHS + 1) - at.start_day
    factors = (float(np.log(end / unstretched)) for end in ends if end > 0)
    most = float(np.log(max(1.0, game.longest / unstretched)))
    return game.along(lambda knob: replace(at, stretch=float(np.exp(knob))), 0.0, most, also=tuple(factors))


def _spread(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    power = sum(holding.chips * holding.chip_flops_per_day for holding in game.holdings)
    most = power * game.goal.days * at.stretch / game.goal.flops
    joint = replace(at, spread=1.0, sliced=False)
    return game.along(lambda knob: replace(joint, spread=float(np.exp(knob))), 0.0, float(np.log(max(1.0, most))))


def _slice(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    return game.best(replace(at, spread=float(count), sliced=count > 1) for count in _SLICES)


def _split(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    innocent = game.goal.innocent_flops
    enough = int(np.ceil(game.goal.flops / innocent)) if 0 < innocent < game.goal.flops else 1
    return game.best(replace(at, pieces=count) for count in {1, 2, min(enough, 1000)})


def _wait(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    latest = game.policy.period_days * (1 - 1e-6)
    return game.along(lambda day: replace(at, start_day=day), 0.0, latest)


def _collude(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    """Moves work between holdings, two at a time, after trying each of them alone."""
    number = len(game.holdings)
    if number == 1:
        return at, game.cost(at)
    corners = (tuple(float(index == place) for index in range(number)) for place in range(number))
    found, cost = game.best(
        replace(at, shares=shares) for shares in (at.shares, _plain(game.holdings, 1.0).shares, *corners)
    )
    for giver, taker in permutations(range(number), 2):
        shares = found.shares or (1.0, *(0.0 for _ in range(number - 1)))
        if shares[giver] == 0:
            continue

        def moved(part: float, shares: tuple[float, ...] = shares, giver: int = giver, taker: int = taker) -> Strategy:
            amounts = list(shares)
            amounts[giver], amounts[taker] = shares[giver] - part, shares[taker] + part
            return replace(at, shares=tuple(amounts))

        strategy, value = game.along(moved, 0.0, shares[giver])
        if value < cost * (1 - _ROUNDING):
            found, cost = strategy, value
    return found, cost


def _sell(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    buyers = (None, OUTSIDE, *range(len(game.holdings)))
    return game.best(
        replace(each, sell_to=buyer)
        for buyer in buyers
        for each in (at, *(replace(at, spread=float(count), sliced=True) for count in _SLICES[1:]))
    )


def _swap(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    return game.best(replace(at, swap=swap) for swap in (False, True))


def _tamper(game: _Game, at: Strategy) -> tuple[Strategy, float]:
    return game.best(replace(at, tampered=part) for part in (0.0, 1.0))


_MOVES: dict[str, Callable[[_Game, Strategy], tuple[Strategy, float]]] = {
    "stretch": _stretch,
    "spread": _spread,
    "slice": _slice,
    "split": _split,
    "wait": _wait,
    "collude": _collude,
    "resell": _sell,
    "swap": _swap,
    "tamper": _tamper,
}


@dataclass(frozen=True)
class Defence:
    """The best policy found, and what it is worth.

    Attributes:
        policy: The policy.
        attack: What a Prover who knows it does best.
        tried: For each period tried: days, samples, and the probability that its best attack is found.
    """

    policy: Policy
    attack: Attack
    tried: tuple[tuple[float, tuple[int, ...], float], ...]


def best_policy(
    *,
    holdings: tuple[Holding, ...],
    policy: Policy,
    goal: Goal,
    longest_days: float,
    samples_per_year: float,
    done: float = 1.0,
) -> Defence:
    """Returns the period and the samples of each holding against which the best strategy is likeliest to be found.

    Args:
        holdings: The fleet.
        policy: What is given: the longest period to try, the snapshot rate, what inspections miss, and `within_days`
            (if None, the longest period). Its samples do not matter.
        goal: The run.
        longest_days: Days that the run may take at most.
        samples_per_year: Chips that may be inspected in 365 days.
        done: Fraction of the run that must be done.

    Raises:
        DetectionDomainError: An argument is out of range.
        InfeasibleError: The run does not fit, or no period has a sample to spend.
    """
    yearly = float(positive("samples_per_year", samples_per_year, "chips"))
    within = policy.period_days if policy.within_days is None else policy.within_days
    plain = _plain(holdings, done)
    best: tuple[Policy, Attack] | None = None
    tried: list[tuple[float, tuple[int, ...], float]] = []
    for part in _PERIODS:
        days = policy.period_days * part
        budget = int(yearly * days / DAYS_PER_YEAR * (1 + _ROUNDING))
        budget = min(budget, sum(holding.chips for holding in holdings))
        if budget < 1:
            continue
        rules = replace(policy, period_days=days, within_days=within, samples=(1,) * len(holdings))
        samples = _best_samples(holdings, rules, goal, plain, longest_days, budget)
        rules = replace(rules, samples=samples)
        attack = best_strategy(holdings=holdings, policy=rules, goal=goal, longest_days=longest_days, done=done)
        tried.append((days, samples, attack.probability))
        if best is None or attack.probability > best[1].probability:
            best = rules, attack
    if best is None:
        raise InfeasibleError("samples_per_year does not pay for one sample in the longest period; raise it")
    return Defence(*best, tuple(tried))


def _best_samples(
    holdings: tuple[Holding, ...], policy: Policy, goal: Goal, plain: Strategy, longest_days: float, budget: int
) -> tuple[int, ...]:
    """Returns the split of `budget` samples over holdings that is worth most.

    -log(miss) of each strategy is linear in the samples, so the best split against a few strategies is a linear
    program. The Prover's best answer to it joins them, until that answer is no better than they are.
    """
    chips = np.array([float(holding.chips) for holding in holdings])
    split = budget * chips / chips.sum()
    best_split, best_value = split, -1.0
    known: list[Strategy] = []
    for _ in range(_ANSWERS):
        game = _Game(holdings, policy, goal, longest_days, split)
        known = known or [plain, *(move(game, plain)[0] for move in _MOVES.values())]
        known.sort(key=game.cost)
        expected = game.cost(known[0])
        answer, value = min((_improved(game, start) for start in known[:2]), key=lambda pair: pair[1])
        if value > best_value:
            best_split, best_value = split, value
        known.append(answer)
        if len(holdings) == 1 or (len(known) > len(_MOVES) + 2 and not _is_better(value, expected)):
            break
        one = np.ones(len(holdings))
        exponents = np.stack(
            [_exponents(holdings, replace(policy, replacement=True), goal, each, one)[0] for each in known]
        )
        split = _against(np.minimum(exponents, _CERTAIN), chips, budget)
    return tuple(int(each) for each in whole_samples(samples=best_split, chips=chips))


def _against(exponents: FloatArray, chips: FloatArray, budget: int) -> FloatArray:
    """Returns the samples, at most `budget` together, whose least -log(miss) over strategies is largest.

    Args:
        exponents: -log(miss) of one sample, (strategies, holdings).
        chips: Of each holding, (holdings,).
        budget: Samples.
    """
    strategies, number = exponents.shape
    solved = optimize.linprog(
        c=[*np.zeros(number), -1.0],
        A_ub=np.vstack([np.hstack([-exponents * budget, np.ones((strategies, 1))]), [*np.ones(number), 0.0]]),
        b_ub=[*np.zeros(strategies), 1.0],
        bounds=[*((0.0, min(1.0, most / budget)) for most in chips), (None, None)],
    )
    return np.asarray(solved.x[:number] * budget)
