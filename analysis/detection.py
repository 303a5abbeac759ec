"""The probability that an inspection sees a violation of a given size, had there been one.

The model is that of Shavit, "What does it take to catch a Chinchilla?" (arXiv 2303.11341), section 3.2 and appendix B.
A violation is a training run whose incriminating part uses at least `flops_threshold` (H) FLOPs within `run_days` (T)
days on the chips of one owner. Each chip takes snapshots at random moments, on average `snapshot_rate_per_day` (f).
The Verifier reads the logs of `samples` (s) of `chips` (C) chips each `period_days` (T_m) days.

Two answers are given. Equation 1 of the paper samples with replacement and lets a fraction of a chip be involved. The
hypergeometric answer samples without replacement over whole chips, as an inspection really does. Both are probabilities
of *seeing* a violation of size H had there been one. Neither is the probability of compliance.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln


class DetectionDomainError(ValueError):
    """The inputs describe no possible inspection or no possible violation; the message says which input and why."""


def _positive(name: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise DetectionDomainError(f"{name} must be a positive finite number of {unit}, not {value!r}")


def _whole(name: str, value: int, least: int) -> None:
    if not float(value).is_integer() or value < least:
        raise DetectionDomainError(f"{name} must be a whole number of at least {least}, not {value!r}")


def snapshot_probability(*, snapshot_rate_per_day: float, days: float) -> float:
    """Returns the probability that a chip takes at least one snapshot: 1 - exp(-f T) (appendix B, p_w).

    Args:
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f), of a Poisson process.
        days: Observed time in days.

    Raises:
        DetectionDomainError: An argument is not positive and finite.
    """
    _positive("snapshot_rate_per_day", snapshot_rate_per_day, "snapshots per day")
    _positive("days", days, "days")
    return -math.expm1(-snapshot_rate_per_day * days)


def involved_fraction(*, flops_threshold: float, chip_flops_per_day: float, chips: int, run_days: float) -> float:
    """Returns b = H/(aTC): the smallest fraction of all chips that a violating run needs.

    Args:
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips that could be involved (C).
        run_days: Length of the run in days (T).

    Raises:
        DetectionDomainError: An argument is out of range, or the run does not fit on all chips (b > 1).
    """
    _positive("flops_threshold", flops_threshold, "FLOPs")
    _positive("chip_flops_per_day", chip_flops_per_day, "FLOPs per day")
    _positive("run_days", run_days, "days")
    _whole("chips", chips, 1)
    fraction = flops_threshold / (chip_flops_per_day * run_days * chips)
    if not fraction <= 1:
        raise DetectionDomainError(
            f"no run of {flops_threshold:g} FLOPs fits into {run_days:g} days on {chips} chips of "
            f"{chip_flops_per_day:g} FLOPs a day: it would need {fraction:.3g} times as many; "
            "lower flops_threshold or raise run_days"
        )
    if fraction == 0:
        raise DetectionDomainError("flops_threshold is too small beside the chips' FLOPs to be told from zero")
    return fraction


def _sample_hit(
    flops_threshold: float, chip_flops_per_day: float, chips: int, run_days: float, period_days: float, rate: float
) -> float:
    """Returns q of equation 1: the probability that one sampled chip shows a snapshot of the run."""
    _positive("period_days", period_days, "days")
    fraction = involved_fraction(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    if run_days < period_days:
        raise DetectionDomainError(
            f"equation 1 needs run_days (T = {run_days:g}) to be at least period_days (T_m = {period_days:g}); "
            "a shorter run on more chips is no harder to catch (theorem 1), so use T = T_m"
        )
    hit = fraction * snapshot_probability(snapshot_rate_per_day=rate, days=period_days)
    if hit >= 1:
        raise DetectionDomainError(
            "each sampled chip shows the run for certain (q >= 1), so that the logarithm in equation 1 is not defined; "
            "sample one chip"
        )
    return hit


def detection_probability_eq1(
    *,
    samples: int,
    flops_threshold: float,
    chip_flops_per_day: float,
    chips: int,
    run_days: float,
    period_days: float,
    snapshot_rate_per_day: float,
) -> float:
    """Returns the detection probability p of Shavit's equation 1 (not the linearised form of its table 1).

    p = 1 - (1 - q)^(s T / T_m) with q = H/(aTC) (1 - exp(-f T_m)).

    Args:
        samples: Chips sampled in each period (s); 0 gives 0.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T), at least `period_days`.
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range, H does not fit on C chips, T < T_m, or q >= 1.
    """
    _whole("samples", samples, 0)
    hit = _sample_hit(flops_threshold, chip_flops_per_day, chips, run_days, period_days, snapshot_rate_per_day)
    return -math.expm1(samples * (run_days / period_days) * math.log1p(-hit))


def samples_needed(
    *,
    probability: float,
    flops_threshold: float,
    chip_flops_per_day: float,
    chips: int,
    run_days: float,
    period_days: float,
    snapshot_rate_per_day: float,
) -> float:
    """Returns the right-hand side of Shavit's equation 1: how many samples per period reach a detection probability.

    s >= log(1 - p) / log(1 - q) * T_m / T. The value is real; an inspection samples it rounded up.

    Args:
        probability: Wanted detection probability (p), above 0 and below 1.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T), at least `period_days`.
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: As `detection_probability_eq1`, or `probability` is not between 0 and 1.
    """
    if not 0 < probability < 1:
        raise DetectionDomainError(f"probability must lie between 0 and 1 exclusively, not {probability!r}")
    hit = _sample_hit(flops_threshold, chip_flops_per_day, chips, run_days, period_days, snapshot_rate_per_day)
    return math.log1p(-probability) / math.log1p(-hit) * (period_days / run_days)


def involved_chips(*, flops_threshold: float, chip_flops_per_day: float, chips: int, run_days: float) -> int:
    """Returns n = ceil(H/(aT)): the least whole number of chips that a violating run needs.

    Raises:
        DetectionDomainError: As `involved_fraction`.
    """
    fraction = involved_fraction(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    # The product may exceed a whole number by a rounding error only; that must not add a chip.
    return min(chips, max(1, math.ceil(fraction * chips * (1 - 4 * np.finfo(float).eps))))


def detection_probability_hypergeometric(
    *,
    samples: int,
    flops_threshold: float,
    chip_flops_per_day: float,
    chips: int,
    run_days: float,
    snapshot_rate_per_day: float,
) -> float:
    """Returns the exact detection probability for one inspection, sampling whole chips without replacement.

    n = ceil(H/(aT)) of C chips are involved; each holds a snapshot of the run with probability 1 - exp(-f T),
    independently. Of the s sampled chips J are involved, where J is hypergeometric, and the violation is missed when
    none of those holds a snapshot: p = 1 - E[exp(-f T J)].

    Args:
        samples: Different chips sampled (s), at most `chips`; 0 gives 0.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T); the inspection comes after it.
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range, H does not fit on C chips, or `samples` exceeds `chips`.
    """
    _whole("samples", samples, 0)
    involved = involved_chips(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    if samples > chips:
        raise DetectionDomainError(f"{samples} different chips cannot be sampled from {chips}")
    held = snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=run_days)
    if samples == 0:
        return 0.0
    drawn = np.arange(max(0, samples - (chips - involved)), min(involved, samples) + 1, dtype=np.float64)
    log_pmf = (
        _log_binomial(involved, drawn)
        + _log_binomial(chips - involved, samples - drawn)
        - _log_binomial(chips, np.float64(samples))
    )
    if held == 1.0:  # exp(-fT) underflows; only "no involved chip was drawn" misses.
        missed = float(np.exp(log_pmf[0])) if drawn[0] == 0 else 0.0
    else:
        missed = float(np.exp(log_pmf + drawn * math.log1p(-held)).sum())
    return min(1.0, max(0.0, 1.0 - missed))


def _log_binomial(total: int, chosen: np.ndarray | np.float64) -> np.ndarray:
    """Returns log C(total, chosen), elementwise."""
    return np.asarray(gammaln(total + 1.0) - gammaln(chosen + 1.0) - gammaln(total - chosen + 1.0), dtype=np.float64)
