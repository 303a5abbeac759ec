"""The probability that an inspection sees a violation of a given size, had there been one.

The model is that of Shavit, "What does it take to catch a Chinchilla?" (arXiv 2303.11341), section 3.2 and appendix B.
A violation is a training run whose incriminating part uses at least `flops_threshold` (H) FLOPs within `run_days` (T)
days on the chips of one owner. Each chip takes snapshots at random moments, on average `snapshot_rate_per_day` (f).
The Verifier reads the logs of `samples` (s) of `chips` (C) chips each `period_days` (T_m) days.

Three answers are given. Equation 1 of the paper samples with replacement and lets a fraction of a chip be involved.
Its linearised form, log(1 - q) taken as -q, is what the paper's table 1 was computed with. The hypergeometric answer
samples without replacement over whole chips, as an inspection really does. All are probabilities of *seeing* a
violation of size H had there been one. None is the probability of compliance.

Every parameter may be a number or an array; see `analysis.domain`.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from analysis.domain import (
    FloatArray,
    InfeasibleError,
    Numbers,
    not_more_than_chips,
    plain,
    positive,
    refuse,
    together,
    whole,
)
from analysis.domain import probability as checked_probability
from analysis.hypergeometric import least_drawn, seen_probability

__all__ = [
    "detection_probability_eq1",
    "detection_probability_hypergeometric",
    "detection_probability_linearised",
    "involved_chips",
    "involved_fraction",
    "sample_hit_probability",
    "samples_needed",
    "samples_needed_hypergeometric",
    "samples_needed_linearised",
    "snapshot_probability",
]


def snapshot_probability(*, snapshot_rate_per_day: Numbers, days: Numbers) -> FloatArray:
    """Returns the probability that a chip takes at least one snapshot: 1 - exp(-f T) (appendix B, p_w).

    Args:
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f), of a Poisson process.
        days: Observed time in days.

    Raises:
        DetectionDomainError: An argument is not positive and finite.
    """
    rate, time = together(
        positive("snapshot_rate_per_day", snapshot_rate_per_day, "snapshots per day"), positive("days", days, "days")
    )
    return plain(-np.expm1(-rate * time))


def _fraction(
    flops_threshold: Numbers, chip_flops_per_day: Numbers, chips: Numbers, run_days: Numbers
) -> tuple[FloatArray, FloatArray]:
    """Returns b = H/(aTC), which may exceed 1, and C in the same shape."""
    flops, speed, total, days = together(
        positive("flops_threshold", flops_threshold, "FLOPs"),
        positive("chip_flops_per_day", chip_flops_per_day, "FLOPs per day"),
        whole("chips", chips, 1),
        positive("run_days", run_days, "days"),
    )
    fraction = flops / speed / days / total
    refuse(
        fraction == 0,
        flops,
        lambda v: f"flops_threshold = {v} is too small beside the chips' FLOPs to be told from zero",
    )
    return fraction, total


def involved_fraction(
    *, flops_threshold: Numbers, chip_flops_per_day: Numbers, chips: Numbers, run_days: Numbers
) -> FloatArray:
    """Returns b = H/(aTC): the smallest fraction of all chips that a violating run needs.

    Args:
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips that could be involved (C).
        run_days: Length of the run in days (T).

    Raises:
        DetectionDomainError: An argument is out of range, or the run does not fit on all chips (b > 1); the message
            says how many chips or days it would need.
    """
    fraction, total = _fraction(flops_threshold, chip_flops_per_day, chips, run_days)
    wrong = ~(fraction <= 1)
    if np.any(wrong):
        size, pace, count, span, needed = (
            float(values[wrong].flat[0])
            for values in together(
                np.asarray(flops_threshold, dtype=np.float64),
                np.asarray(chip_flops_per_day, dtype=np.float64),
                total,
                np.asarray(run_days, dtype=np.float64),
                fraction,
            )
        )
        raise InfeasibleError(
            f"no run of {size:g} FLOPs fits into {span:g} days on {count:.0f} chips of {pace:g} FLOPs a day "
            f"(H/(aTC) = {needed:.3g} > 1, so q is no probability): it would need "
            f"{np.ceil(size / pace / span):.0f} chips, or {size / pace / count:.4g} days on these"
        )
    return plain(fraction)


def sample_hit_probability(
    *,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns q of equation 1: the probability that one sampled chip shows a snapshot of the run.

    q = H/(aTC) (1 - exp(-f T_m)).

    Args:
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T), at least `period_days`.
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range, H does not fit on C chips, T < T_m, or q >= 1.
    """
    period = positive("period_days", period_days, "days")
    fraction = involved_fraction(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    days, month = together(np.asarray(run_days, dtype=np.float64), period)
    refuse(
        days < month,
        days,
        lambda v: (
            f"equation 1 needs run_days (T = {v}) to be at least period_days (T_m); a shorter run on more chips is no "
            "harder to catch (theorem 1), so use T = T_m"
        ),
        InfeasibleError,
    )
    held = snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=period)
    fraction, held = together(np.asarray(fraction), np.asarray(held))
    hit = fraction * held
    refuse(
        hit >= 1,
        hit,
        lambda v: (
            f"each sampled chip shows the run for certain (q >= 1; here {v}), so that the logarithm in equation 1 is "
            "not defined; sample one chip"
        ),
        InfeasibleError,
    )
    return plain(hit)


def detection_probability_eq1(
    *,
    samples: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
    withheld: Numbers = 0,
) -> FloatArray:
    """Returns the detection probability p of Shavit's equation 1 (not the linearised form of its table 1).

    p = 1 - (1 - q)^(s T / T_m) with q = H/(aTC) (1 - exp(-f T_m)).

    The paper does not consider samples that a Prover who knew the draw withheld. With w of them in each period the
    binomial number of hits has to be above w: p = 1 - (1 - I_q(w + 1, s - w))^(T / T_m), where I is the regularised
    incomplete beta function.

    Args:
        samples: Chips drawn in each period (s), whole, those withheld included; 0 gives 0.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T), at least `period_days`.
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        withheld: Samples of each period that did not verify after the draw was known (w), whole.

    Raises:
        DetectionDomainError: An argument is out of range, H does not fit on C chips, s > C, T < T_m, or q >= 1.
    """
    drawn = whole("samples", samples, 0)
    not_more_than_chips(*together(drawn, whole("chips", chips, 1)))
    hit = sample_hit_probability(
        flops_threshold=flops_threshold,
        chip_flops_per_day=chip_flops_per_day,
        chips=chips,
        run_days=run_days,
        period_days=period_days,
        snapshot_rate_per_day=snapshot_rate_per_day,
    )
    drawn, hit, days, period, hidden = together(
        drawn, np.asarray(hit), *map(np.asarray, (run_days, period_days)), whole("withheld", withheld, 0)
    )
    return plain(-np.expm1((days / period) * log_miss_with_replacement(drawn, hit, hidden)))


def log_miss_with_replacement(samples: FloatArray, hit: FloatArray, withheld: FloatArray) -> FloatArray:
    """Returns the logarithm of the probability that at most w of s samples, drawn with replacement, are hits.

    Args:
        samples: s, whole; all arrays have one shape.
        hit: Probability that one sample is a hit (q), 0 to 1.
        withheld: w, whole.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # a hit that is certain; no samples of it
        none = np.where(samples == 0, 0.0, samples * np.log1p(-hit))
        seen = np.where(samples > withheld, special.betainc(withheld + 1, np.maximum(samples - withheld, 1), hit), 0.0)
        return np.where(withheld == 0, none, np.log1p(-seen))


def samples_needed(
    *,
    probability: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
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
    wanted = checked_probability("probability", probability)
    hit = sample_hit_probability(
        flops_threshold=flops_threshold,
        chip_flops_per_day=chip_flops_per_day,
        chips=chips,
        run_days=run_days,
        period_days=period_days,
        snapshot_rate_per_day=snapshot_rate_per_day,
    )
    wanted, hit, days, period = together(wanted, np.asarray(hit), *map(np.asarray, (run_days, period_days)))
    return plain(np.log1p(-wanted) / np.log1p(-hit) * (period / days))


def _linear_rate(
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns q T / T_m, in which the linearised form does not depend on T."""
    fraction, _ = _fraction(flops_threshold, chip_flops_per_day, chips, period_days)
    held = snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=period_days)
    fraction, held = together(fraction, np.asarray(held))
    return fraction * held


def detection_probability_linearised(
    *,
    samples: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns p of equation 1 with log(1 - q) taken as -q: 1 - exp(-s H/(a T_m C) (1 - exp(-f T_m))).

    The length of the run drops out. It is never above `detection_probability_eq1`, and close to it where few chips
    are involved. It has a value even for runs that do not fit on the chips.

    Args:
        samples: Chips sampled in each period (s), whole; 0 gives 0.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    rate = _linear_rate(flops_threshold, chip_flops_per_day, chips, period_days, snapshot_rate_per_day)
    drawn, total, rate = together(whole("samples", samples, 0), whole("chips", chips, 1), rate)
    not_more_than_chips(drawn, total)
    return plain(-np.expm1(-drawn * rate))


def samples_needed_linearised(
    *,
    probability: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns the samples per period of the linearised equation 1: -log(1 - p) a T_m C / (H (1 - exp(-f T_m))).

    Args:
        probability: Wanted detection probability (p), above 0 and below 1.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    rate = _linear_rate(flops_threshold, chip_flops_per_day, chips, period_days, snapshot_rate_per_day)
    wanted, rate = together(checked_probability("probability", probability), rate)
    return plain(-np.log1p(-wanted) / rate)


def involved_chips(
    *, flops_threshold: Numbers, chip_flops_per_day: Numbers, chips: Numbers, run_days: Numbers
) -> FloatArray:
    """Returns n = ceil(H/(aT)): the least whole number of chips that a violating run needs.

    Raises:
        DetectionDomainError: As `involved_fraction`.
    """
    fraction = involved_fraction(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    fraction, total = together(np.asarray(fraction), np.asarray(chips, dtype=np.float64))
    # The product may exceed a whole number by rounding errors only; that must not add a chip.
    least = np.ceil(fraction * total * (1 - 8 * np.finfo(float).eps))
    return plain(np.minimum(total, np.maximum(1.0, least)))


def detection_probability_hypergeometric(
    *,
    samples: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    snapshot_rate_per_day: Numbers,
    withheld: Numbers = 0,
) -> FloatArray:
    """Returns the exact detection probability for one inspection, sampling whole chips without replacement.

    n = ceil(H/(aT)) of C chips are involved; each holds a snapshot of the run with probability 1 - exp(-f T),
    independently. Of the s sampled chips J are involved, where J is hypergeometric, and the violation is missed when
    none of those holds a snapshot: p = 1 - E[exp(-f T J)]. For several inspections see `analysis.periods`.

    A chip that did not verify *after the draw was known* is withheld, not unsampled: the Prover chose it. With w of
    them the violation is missed when at most w sampled chips hold a snapshot of it; where each surely holds one,
    p = Pr(J > w).

    Args:
        samples: Different chips drawn (s), at most `chips`, those withheld included; 0 gives 0.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T); the inspection comes after it.
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        withheld: Drawn chips that did not verify after the draw was known (w), whole.

    Raises:
        DetectionDomainError: An argument is out of range, H does not fit on C chips, or `samples` exceeds `chips`.
    """
    involved = involved_chips(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    not_more_than_chips(*together(whole("samples", samples, 0), whole("chips", chips, 1)))
    held = snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=run_days)
    return seen_probability(population=chips, marked=involved, drawn=samples, shown=held, withheld=withheld)


def samples_needed_hypergeometric(
    *,
    probability: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    snapshot_rate_per_day: Numbers,
    withheld: Numbers = 0,
) -> FloatArray:
    """Returns the least number of chips that one inspection must sample, exactly; see the function before.

    Args:
        probability: Wanted detection probability (p), above 0 and below 1.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T); the inspection comes after it.
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        withheld: Drawn chips that may stay unverified after the draw is known (w), whole; 0 expects none.

    Returns:
        Whole numbers as float64, in the broadcast shape.

    Raises:
        DetectionDomainError: An argument is out of range, H does not fit on C chips, or sampling all is not enough.
    """
    wanted = checked_probability("probability", probability)
    involved = involved_chips(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    held = snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=run_days)
    return least_drawn(population=chips, marked=involved, shown=held, wanted=wanted, withheld=withheld)
