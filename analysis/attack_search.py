"""The Prover who chooses best: a search for the strategy that is least likely to be found.

`best_strategy` tries moves one by one and together. It is a search: what it returns is attained, and that nothing else
does better is checked where theory says what must come out (theorem 1, and the equilibrium of
`analysis.stratified_sampling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import permutations

import numpy as np
from scipy import optimize

from analysis.domain import FloatArray, InfeasibleError, positive
from analysis.strategies import OUTSIDE, Goal, Holding, Policy, Strategy, crews
from analysis.strategy_probability import exponents, found_probability, mixed

ROUNDING = 1e-9  # relative

_GRID = 17  # points of a knob that are tried before the best one's neighbourhood is searched
_SLICES = (1, 2, 3, 5, 10, 20)
_WORTH_IT = 5e-3  # of the probability, or of its complement; rounding to whole chips alone may gain less
_SAME = 1e-4  # relative difference of two lengths that does not matter
_MOST_LENGTHS = 30
_PRECISION = 1e-3  # of the distance between the grid's points
_ROUNDS = 20


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
class Game:
    """What the Prover plays against, and the search along single knobs of a strategy.

    Attributes:
        holdings: The fleet.
        policy: How it is inspected; `samples` takes the place of its own.
        goal: The run.
        longest: Days that the run may take at most.
        samples: Drawn a period in each pool, real numbers; (pools,).
    """

    holdings: tuple[Holding, ...]
    policy: Policy
    goal: Goal
    longest: float
    samples: FloatArray

    def cost(self, strategy: Strategy) -> float:
        """Returns the probability to minimise; infinity for what cannot be done."""
        if strategy.length(self.goal) > self.longest * (1 + ROUNDING):
            return np.inf
        try:
            exponent = exponents(self.holdings, self.policy, self.goal, strategy, self.samples)
            return mixed(exponent.sum(axis=1), self.policy)
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
    if longest < goal.days * done * (1 - ROUNDING):
        raise InfeasibleError(f"the run takes {goal.days * done:g} days; raise longest_days to that at least")
    game = Game(holdings, policy, goal, longest, np.array([float(drawn) for drawn, _ in policy.pools(holdings)]))
    plain = plain_strategy(holdings, done)
    crews(plain, goal, holdings, policy)  # raises if the run does not fit

    def exact(strategy: Strategy) -> float:
        try:
            return found_probability(holdings=holdings, policy=policy, goal=goal, strategy=strategy)
        except InfeasibleError:
            return np.inf  # rounding up to whole chips may leave no room

    alone = {name: move(game, plain)[0] for name, move in MOVES.items()}
    starts = (plain, *alone.values())
    costs = {strategy: exact(strategy) for strategy in (*starts, *(improved(game, start)[0] for start in starts))}
    least = min(costs.values())
    # Of strategies that are about as good, the simplest.
    found = min((strategy for strategy in costs if not is_better(least, costs[strategy])), key=_changes)
    return Attack(found, costs[found], costs[plain], {name: (move, costs[move]) for name, move in alone.items()})


def _changes(strategy: Strategy) -> int:
    return sum(getattr(strategy, field.name) != field.default for field in fields(strategy))


def plain_strategy(holdings: tuple[Holding, ...], done: float) -> Strategy:
    """Returns the run that hides by nothing but its place in all holdings."""
    if len(holdings) == 1:
        return Strategy(done=done)
    power = np.array([holding.chips * holding.chip_flops_per_day for holding in holdings])
    return Strategy(done=done, shares=tuple(float(part) for part in power / power.sum()))


def is_better(value: float, cost: float) -> bool:
    """Tells whether a probability is so much lower than another that a move is worth it."""
    return value < cost - _WORTH_IT * min(cost, 1 - cost)


def improved(game: Game, start: Strategy) -> tuple[Strategy, float]:
    """Returns the strategy at which no single move helps any more."""
    found, cost = start, game.cost(start)
    for _ in range(_ROUNDS):
        before = cost
        for move in MOVES.values():
            strategy, value = move(game, found)
            if is_better(value, cost):
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


def _stretch(game: Game, at: Strategy) -> tuple[Strategy, float]:
    unstretched = at.length(game.goal) / at.stretch
    # Ending just at an inspection saves the next one.
    ends = game.policy.period_days * np.arange(1, _MOST_LENGTHS + 1) - at.start_day
    factors = (float(np.log(end / unstretched)) for end in ends if end > 0)
    most = float(np.log(max(1.0, game.longest / unstretched)))
    return game.along(lambda knob: replace(at, stretch=float(np.exp(knob))), 0.0, most, also=tuple(factors))


def _spread(game: Game, at: Strategy) -> tuple[Strategy, float]:
    power = sum(holding.chips * holding.chip_flops_per_day for holding in game.holdings)
    most = power * game.goal.days * at.stretch / game.goal.flops
    joint = replace(at, spread=1.0, sliced=False)
    return game.along(lambda knob: replace(joint, spread=float(np.exp(knob))), 0.0, float(np.log(max(1.0, most))))


def _slice(game: Game, at: Strategy) -> tuple[Strategy, float]:
    return game.best(replace(at, spread=float(count), sliced=count > 1) for count in _SLICES)


def _split(game: Game, at: Strategy) -> tuple[Strategy, float]:
    innocent = game.goal.innocent_flops
    enough = int(np.ceil(game.goal.flops / innocent)) if 0 < innocent < game.goal.flops else 1
    return game.best(replace(at, pieces=count) for count in {1, 2, min(enough, 1000)})


def _wait(game: Game, at: Strategy) -> tuple[Strategy, float]:
    latest = game.policy.period_days * (1 - 1e-6)
    return game.along(lambda day: replace(at, start_day=day), 0.0, latest)


def _collude(game: Game, at: Strategy) -> tuple[Strategy, float]:
    """Moves work between holdings, two at a time, after trying each of them alone."""
    number = len(game.holdings)
    if number == 1:
        return at, game.cost(at)
    corners = (tuple(float(index == place) for index in range(number)) for place in range(number))
    found, cost = game.best(
        replace(at, shares=shares) for shares in (at.shares, plain_strategy(game.holdings, 1.0).shares, *corners)
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
        if value < cost * (1 - ROUNDING):
            found, cost = strategy, value
    return found, cost


def _sell(game: Game, at: Strategy) -> tuple[Strategy, float]:
    buyers = (None, OUTSIDE, *range(len(game.holdings)))
    return game.best(
        replace(each, sell_to=buyer)
        for buyer in buyers
        for each in (at, *(replace(at, spread=float(count), sliced=True) for count in _SLICES[1:]))
    )


def _swap(game: Game, at: Strategy) -> tuple[Strategy, float]:
    return game.best(replace(at, swap=swap) for swap in (False, True))


def _tamper(game: Game, at: Strategy) -> tuple[Strategy, float]:
    return game.best(replace(at, tampered=part) for part in (0.0, 1.0))


MOVES: dict[str, Callable[[Game, Strategy], tuple[Strategy, float]]] = {
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
