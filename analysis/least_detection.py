"""The least detection probability of samples that were drawn from several groups, over whole chips.

A run of H FLOPs in T days needs chips n_i in the groups i with sum_i a_i T n_i >= H. Of the N_i chips of a group s_i
different ones were drawn, and each involved one among them shows the run with probability w_i. Draws of different
groups are independent, so the probability of a miss is exp(-sum_i g_i(n_i)) with

    g_i(n) = -log E[(1 - w_i)^J],  J hypergeometric(N_i, n, s_i).

The Prover chooses the n_i after the s_i are known. Each g_i is convex in n: with f(n) = E[(1 - w)^J] and the other
chips fixed, f(n)^2 - f(n-1) f(n+1) is a multiple of (B^2 - A C) w^2, where A, B, C are three neighbouring elementary
symmetric polynomials of positive numbers, and Newton's inequality says B^2 >= A C. So the cheapest chip is taken next
until the run fits, and no other choice is missed more often. Groups that cannot be inspected have s_i = 0 or w_i = 0;
chips drawn with certainty are a group with s_i = N_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.domain import FloatArray, InfeasibleError, Numbers, least_whole, positive, share, together, whole
from analysis.hypergeometric import seen_probability

_HALVINGS = 80
_ROUNDING = 1e-12
_CERTAIN = 30.0  # beyond a miss of exp(-30) float64 no longer tells one chip more


@dataclass(frozen=True)
class LeastProbability:
    """The worst case over all spreads of a run.

    Attributes:
        probability: p against a Prover who knows how many chips were drawn of each group, but not which.
        involved: How many chips of each group that Prover uses; the last one may be used in part.
    """

    probability: float
    involved: tuple[float, ...]


def least_probability(
    *,
    chips: Numbers,
    drawn: Numbers,
    shown: Numbers,
    chip_flops_per_day: Numbers,
    flops_threshold: float,
    run_days: float,
) -> LeastProbability:
    """Returns the probability that the draw shows a run of H FLOPs which is spread so as to be missed most often.

    Exact where all groups have chips of one speed, and there equal to `seen_probability` for one group. Where speeds
    differ, the last chip may count in part, so that the result is a lower bound.

    Args:
        chips: Chips in each group (N_i), whole; one axis.
        drawn: Different chips drawn in each group (s_i), whole, at most `chips`.
        shown: Probability that a drawn involved chip shows the run (w_i), 0 to 1.
        chip_flops_per_day: FLOPs that one chip of each group can do per day (a_i).
        flops_threshold: Size of the violation in FLOPs (H).
        run_days: Length of the run in days (T).

    Raises:
        DetectionDomainError: An argument is out of range, more chips were drawn than there are, or the run does not fit
            on all groups together.
    """
    total, taken, weight, speed = together(
        np.atleast_1d(whole("chips", chips, 0)),
        whole("drawn", drawn, 0),
        share("shown", shown),
        positive("chip_flops_per_day", chip_flops_per_day, "FLOPs per day"),
    )
    if np.any(taken > total):
        raise InfeasibleError("more chips cannot have been drawn from a group than there are in it; lower drawn")
    needed = float(positive("flops_threshold", flops_threshold, "FLOPs")) / float(
        positive("run_days", run_days, "days")
    )
    if needed > float((total * speed).sum()) * (1 + _ROUNDING):
        raise InfeasibleError(
            "the run does not fit on all chips together; lower flops_threshold, or raise run_days or chips"
        )
    alike = bool(np.all(speed == speed[0]))
    if alike:  # whole chips are needed
        needed = float(speed[0] * np.ceil(needed / speed[0] * (1 - _ROUNDING)))

    known: dict[bytes, FloatArray] = {}  # the searches below ask for the same again and again

    def exponent(involved: FloatArray) -> FloatArray:
        """Returns g_i."""
        key = involved.tobytes()
        if key not in known:
            seen = seen_probability(population=np.maximum(total, 1), marked=involved, drawn=taken, shown=weight)
            with np.errstate(divide="ignore"):
                known[key] = -np.log1p(-np.asarray(seen))
        return known[key]

    def price(involved: FloatArray) -> FloatArray:
        """Returns what the last of so many chips costs the Prover for each FLOP a day; 0 for the none of none."""
        before = exponent(np.maximum(involved - 1, 0))
        with np.errstate(invalid="ignore"):
            step = exponent(involved) - before
        return np.where(involved < 1, 0.0, np.where(before < _CERTAIN, np.maximum(step, 0), np.inf)) / speed

    def affordable(limit: float, least: FloatArray, most: FloatArray) -> FloatArray:
        """Returns how many chips of each group cost at most `limit`, which is known to be from `least` to `most`."""
        none = price(np.minimum(least + 1, most)) > limit
        found = least_whole(lambda n: price(n) > limit, least, np.maximum(most, least + 1)) - 1
        return np.where(price(most) <= limit, most, np.where(none, least, found))

    def room(involved: FloatArray) -> float:
        return float((involved * speed).sum())

    if total.size == 1:  # nothing to spread
        only = np.array([needed / speed[0]])
        return LeastProbability(float(-np.expm1(-exponent(only)[0])), (float(only[0]),))

    nothing = np.zeros_like(total)
    free = affordable(0.0, nothing, total)
    if room(free) >= needed * (1 - _ROUNDING):
        return LeastProbability(0.0, tuple(_fill(nothing, free, speed, needed, alike).tolist()))
    prices = price(total)
    low, high = 0.0, float(np.max(prices, where=np.isfinite(prices), initial=0.0)) or 1.0
    fewest, most = free, affordable(high, free, total)
    while room(most) < needed * (1 - _ROUNDING):
        if high * float(speed.max()) > 1e3:  # the run needs chips that are certain to show it
            found = _fill(most, total, speed, needed, alike)
            return LeastProbability(float(-np.expm1(-exponent(np.floor(found)).sum())), tuple(found.tolist()))
        low, high = high, high * 4
        fewest, most = most, affordable(high, most, total)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high or np.all(fewest == most):
            break
        between = affordable(middle, fewest, most)
        if room(between) >= needed * (1 - _ROUNDING):
            high, most = middle, between
        else:
            low, fewest = middle, between
    found = _fill(fewest, most, speed, needed, alike)
    partly = found - np.floor(found)
    exponents = exponent(np.floor(found)) + np.where(partly > 0, partly * speed * low, 0.0)
    return LeastProbability(float(-np.expm1(-exponents.sum())), tuple(found.tolist()))


def _fill(low: FloatArray, high: FloatArray, speed: FloatArray, needed: float, alike: bool) -> FloatArray:
    """Returns chips between `low` and `high` that together do `needed` FLOPs a day, whole ones if all are alike."""
    found = low.copy()
    for group in range(found.size):
        missing = (needed - float((found * speed).sum())) / float(speed[group])
        missing = float(np.round(missing)) if alike else missing
        found[group] += min(max(missing, 0.0), float(high[group] - low[group]))
    return found
