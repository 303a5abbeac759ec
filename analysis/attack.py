"""The Prover who chooses best, and the Verifier who expects that: what an inspection policy is worth.

`found_probability` is the formula, `best_strategy` the Prover's search. `best_policy` searches the periods and samples
of one budget for those against which the best strategy fares worst. What it returns is attained; something better may
exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from analysis.attack_search import MOVES, ROUNDING, Attack, Game, best_strategy, improved, is_better, plain_strategy
from analysis.costs import DAYS_PER_YEAR
from analysis.domain import FloatArray, InfeasibleError, positive
from analysis.strategies import Goal, Holding, Policy, Strategy
from analysis.strategy_probability import exponents, found_probability
from analysis.stratified_sampling import whole_samples

__all__ = ["Attack", "Defence", "best_policy", "best_strategy", "found_probability"]

_ANSWERS = 25  # of the Prover, at most
_CERTAIN = 50.0  # -log(miss); exp(-50) is nothing
_PERIODS = (1.0, 0.5, 0.25, 0.125)  # of the longest, tried by `best_policy`


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
    plain = plain_strategy(holdings, done)
    best: tuple[Policy, Attack] | None = None
    tried: list[tuple[float, tuple[int, ...], float]] = []
    for part in _PERIODS:
        days = policy.period_days * part
        budget = int(yearly * days / DAYS_PER_YEAR * (1 + ROUNDING))
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
        game = Game(holdings, policy, goal, longest_days, split)
        known = known or [plain, *(move(game, plain)[0] for move in MOVES.values())]
        known.sort(key=game.cost)
        expected = game.cost(known[0])
        answer, value = min((improved(game, start) for start in known[:2]), key=lambda pair: pair[1])
        if value > best_value:
            best_split, best_value = split, value
        known.append(answer)
        if len(holdings) == 1 or (len(known) > len(MOVES) + 2 and not is_better(value, expected)):
            break
        one = np.ones(len(holdings))
        each_alone = np.stack(
            [exponents(holdings, replace(policy, replacement=True), goal, each, one)[0] for each in known]
        )
        split = _against(np.minimum(each_alone, _CERTAIN), chips, budget)
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
