"""The probability that a run hidden by a strategy is found in time: the formula behind `analysis.attack`.

It holds for any strategy of `analysis.strategies`: the chips that each crew has in what is drawn from, times the chance
that one of them shows something by then, over all inspections that are in time. The simulator
(`analysis.simulated_fleet`) checks it.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from analysis.domain import FloatArray
from analysis.hypergeometric import seen_probability
from analysis.strategies import OUTSIDE, Crew, Goal, Holding, Policy, Strategy, crews, cycle_days
from analysis.withheld_marks import shown_marks

_CERTAIN = 500.0  # -log(miss); exp(-500) is nothing


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
        return mixed(exponents(holdings, policy, goal, strategy, samples, whole_chips).sum(axis=1), policy)
    marked = _marked(holdings, policy, goal, strategy, whole_chips)
    if policy.withheld:
        return mixed(_despite(pools, marked, policy.withheld), policy)
    exponent = np.zeros(2)
    for (drawn, chips), (involved, hits) in zip(pools, marked, strict=True):
        shares = np.divide(hits, involved, out=np.zeros_like(hits), where=involved > 0)
        seen = np.asarray(seen_probability(population=chips, marked=involved, drawn=drawn, shown=shares))
        with np.errstate(divide="ignore"):
            exponent -= np.log1p(-seen).sum(axis=1)
    return mixed(exponent, policy)


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


def mixed(exponent: FloatArray, policy: Policy) -> float:
    """Returns the probability from -log(miss) with replays that work, and with a transcript that fools them all."""
    works, fooled = -np.expm1(-exponent)
    return float((1 - policy.soundness_error) * works + policy.soundness_error * fooled)


def exponents(
    holdings: tuple[Holding, ...],
    policy: Policy,
    goal: Goal,
    strategy: Strategy,
    drawn: FloatArray,
    whole_chips: bool = False,
) -> FloatArray:
    """Returns -log(miss) of `drawn` samples a period in each pool, real numbers of them; (2, pools) as in `mixed`."""
    found = []
    marked = _marked(holdings, policy, goal, strategy, whole_chips)
    with np.errstate(divide="ignore", invalid="ignore"):
        for samples, (_, chips), (involved, hits) in zip(drawn, policy.pools(holdings), marked, strict=True):
            exponent = -samples * np.log1p(-np.minimum(1.0, hits / chips))
            if not policy.replacement:
                each = -involved * np.log1p(-hits / involved * min(1.0, samples / chips))
                exponent = np.fmax(exponent, np.where(hits > 0, each, 0.0))
            found.append(np.where(samples * hits > 0, exponent, 0.0))
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
        return [np.where(each > 0, np.minimum(seen, _CERTAIN) * each / together, 0.0) for each in exponents]


def _marked(
    holdings: tuple[Holding, ...], policy: Policy, goal: Goal, strategy: Strategy, whole_chips: bool
) -> list[tuple[FloatArray, FloatArray]]:
    """Returns for each pool, at each inspection, the involved chips, (inspections,), and how many of them show the run.

    The latter has shape (2, inspections) as in `mixed`.
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
