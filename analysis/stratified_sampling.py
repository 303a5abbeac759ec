"""Fleets whose chips differ: in speed, logging, how reliably an inspection works on them, owner, and cost of a sample.

A stratum i has C_i chips of a_i FLOPs a day, and a sampled involved chip shows the run with probability r_i ("shown":
snapshot probability times reliability; zero for chips that log nothing). A run puts the share x_i of its H FLOPs there,
so that it uses the fraction u_i = x_i H/(a_i T C_i) of the stratum, at most all of it. With s_i samples,

    miss = prod_i (1 - u_i r_i)^(s_i).

The Prover chooses x, the Verifier s. The logarithm of the miss is linear in s and concave in x, so the two have an
equilibrium, and both sides of it are computed here. Strata lie along the last axis of every argument.

Provers who collude in one run are strata too, each inspected by itself. The paper's answer to them is to sample all
Provers as one (section 3.2): equation 1 over the sum of their chips, however they share the run.
"""

from __future__ import annotations

import numpy as np

from analysis.domain import (
    DetectionDomainError,
    FloatArray,
    InfeasibleError,
    Numbers,
    narrowed,
    not_negative,
    plain,
    positive,
    share,
    together,
    whole,
)

_HALVINGS = 100


def _capacity(flops_threshold: Numbers, speed: Numbers, chips: Numbers, run_days: Numbers) -> FloatArray:
    """Returns a_i T C_i / H: the largest share of the run that each stratum can do."""
    flops, pace, total, days = together(
        positive("flops_threshold", flops_threshold, "FLOPs"),
        positive("chip_flops_per_day", speed, "FLOPs per day"),
        np.atleast_1d(whole("chips", chips, 0)),
        positive("run_days", run_days, "days"),
    )
    capacity = pace / flops * days * total
    most = capacity.sum(axis=-1)
    if np.any(most < 1):
        raise InfeasibleError(
            f"the run does not fit on all strata together: they can do {float(most.min()):.3g} of it in run_days; "
            "lower flops_threshold, or raise run_days or chips"
        )
    return capacity


def strata_probability(
    *,
    samples: Numbers,
    shares: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    shown: Numbers,
) -> FloatArray:
    """Returns the detection probability of a run spread over strata: 1 - prod_i (1 - x_i H/(a_i T C_i) r_i)^(s_i).

    Args:
        samples: Chips sampled in each stratum (s_i), real or whole; last axis: strata.
        shares: Share of the run's FLOPs in each stratum (x_i), summing to 1; last axis: strata.
        flops_threshold: Size of the violation in FLOPs (H); against all strata, shape (..., 1) or a number.
        chip_flops_per_day: FLOPs that one chip of each stratum can do per day (a_i).
        chips: Chips in each stratum (C_i), whole.
        run_days: Length of the run in days (T).
        shown: Probability that a sampled involved chip shows the run (r_i), 0 to 1.

    Returns:
        Probabilities in the broadcast shape without its last axis.

    Raises:
        DetectionDomainError: An argument is out of range, shares do not sum to 1, or a stratum cannot do its share.
    """
    capacity, part, drawn, seen = together(
        _capacity(flops_threshold, chip_flops_per_day, chips, run_days),
        share("shares", shares),
        not_negative("samples", samples, "chips"),
        share("shown", shown),
    )
    if np.any(np.abs(part.sum(axis=-1) - 1) > 1e-9):
        raise DetectionDomainError("shares must sum to 1 over the strata")
    if np.any(part > capacity * (1 + 1e-9)):
        raise DetectionDomainError("a stratum has fewer chips than its share of the run needs; change shares")
    return plain(-np.expm1(-_exponent(part, capacity, drawn, seen).sum(axis=-1)))


def _exponent(part: FloatArray, capacity: FloatArray, drawn: FloatArray, seen: FloatArray) -> FloatArray:
    """Returns -s_i log(1 - x_i r_i / capacity_i), zero where nothing is sampled or used."""
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.where(part > 0, np.minimum(1.0, part / capacity), 0.0)
        return np.where(drawn * used * seen == 0, 0.0, -drawn * np.log1p(-used * seen))


def worst_shares(
    *,
    samples: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    shown: Numbers,
) -> FloatArray:
    """Returns how a Prover who knows the samples spreads the run so that it is least likely to be seen.

    What is not sampled or shows nothing is filled first; then all strata in use have the same marginal risk.

    Args:
        samples: Chips sampled in each stratum (s_i); last axis: strata.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip of each stratum can do per day (a_i).
        chips: Chips in each stratum (C_i), whole.
        run_days: Length of the run in days (T).
        shown: Probability that a sampled involved chip shows the run (r_i), 0 to 1.

    Returns:
        Shares x_i in the broadcast shape, summing to 1 over the last axis.

    Raises:
        DetectionDomainError: An argument is out of range, or the run does not fit.
    """
    capacity, drawn, seen = together(
        _capacity(flops_threshold, chip_flops_per_day, chips, run_days),
        not_negative("samples", samples, "chips"),
        share("shown", shown),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(capacity > 0, drawn * seen / capacity, np.inf)  # risk per share at x_i = 0

        def spread(weight: FloatArray) -> FloatArray:
            """Returns the shares at which the marginal risk is 1/weight, or as near to it as the stratum allows."""
            inner = (1 - slope * weight) * np.where(seen > 0, capacity / seen, np.inf)
            return np.where(slope == 0, capacity, np.where(capacity == 0, 0.0, np.clip(inner, 0.0, capacity)))

        free = np.where(slope == 0, capacity, 0.0).sum(axis=-1, keepdims=True)
        low = np.zeros_like(free)
        high = np.max(np.where((slope > 0) & (capacity > 0), 1 / slope, 0.0), axis=-1, keepdims=True)
        low, _ = narrowed(lambda weight: spread(weight).sum(axis=-1, keepdims=True) >= 1, low, high, _HALVINGS)
        found = np.where(free >= 1, np.where(slope == 0, capacity, 0.0), spread(low))
    return plain(found / found.sum(axis=-1, keepdims=True))


def best_samples(
    *,
    budget: Numbers,
    sample_cost: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    shown: Numbers,
) -> FloatArray:
    """Returns the samples per stratum with which the worst spread of the run is most likely to be seen.

    In equilibrium the Prover makes every sampled stratum equally worth sampling, so that the same chance of a hit is
    bought everywhere per unit of cost, and the Verifier makes the Prover's marginal risk the same in all of them.

    Args:
        budget: What may be spent on samples, in any unit of cost; shape (..., 1) or a number.
        sample_cost: What one sample costs in each stratum, in the same unit.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip of each stratum can do per day (a_i).
        chips: Chips in each stratum (C_i), whole.
        run_days: Length of the run in days (T).
        shown: Probability that a sampled involved chip shows the run (r_i), 0 to 1.

    Returns:
        Real numbers of samples in the broadcast shape, which cost `budget` together.

    Raises:
        DetectionDomainError: An argument is out of range, the run does not fit, or it fits on what shows nothing.
    """
    capacity, cost, seen, money = together(
        _capacity(flops_threshold, chip_flops_per_day, chips, run_days),
        positive("sample_cost", sample_cost, "units of cost"),
        share("shown", shown),
        not_negative("budget", budget, "units of cost"),
    )
    blind = np.where(seen == 0, capacity, 0.0).sum(axis=-1)
    if np.any(blind >= 1):
        raise InfeasibleError(
            f"the run fits on chips that show nothing (they can do {float(blind.max()):.3g} of it), so no sample "
            "helps; raise flops_threshold or bring those chips under monitoring"
        )
    cheapest = cost.min(axis=-1, keepdims=True)

    def spread(value: FloatArray) -> FloatArray:
        """Returns the shares at which a unit of cost buys the exponent `value`/cheapest in each stratum."""
        hit = -np.expm1(-value * cost / cheapest)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(seen == 0, capacity, np.minimum(capacity, hit * capacity / seen))

    low, high = np.zeros_like(cheapest), np.full_like(cheapest, 64.0)  # exp(-64) is nothing beside 1
    _, high = narrowed(lambda value: spread(value).sum(axis=-1, keepdims=True) < 1, low, high, _HALVINGS)
    part = spread(high)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.where((part < capacity) & (seen > 0), capacity / seen - part, 0.0)
    if np.any(weights.sum(axis=-1) == 0):
        raise InfeasibleError("the run needs every chip of every stratum; raise run_days or lower flops_threshold")
    return plain(weights * money / (weights * cost).sum(axis=-1, keepdims=True))


def whole_samples(*, samples: Numbers, chips: Numbers) -> FloatArray:
    """Returns real numbers of samples as whole ones that never exceed them in total or the chips of a stratum.

    Each is rounded down, then the largest remainders get one more as long as the total allows.

    Args:
        samples: Real numbers of samples; one axis.
        chips: Chips in each stratum, whole; same shape.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    drawn, most = together(np.atleast_1d(not_negative("samples", samples, "chips")), whole("chips", chips, 0))
    drawn = np.minimum(drawn, most)
    rounded = np.floor(drawn)
    spare = int(np.floor((drawn - rounded).sum() + 1e-9))
    for place in np.argsort(rounded - drawn, kind="stable")[:spare]:
        rounded[place] = min(rounded[place] + 1, most[place])
    return rounded
