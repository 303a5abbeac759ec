"""Runs longer than a monitoring period: snapshots stay on the chips, so later inspections see more of them.

At the end of period j an involved chip holds a snapshot with probability w_j = 1 - exp(-f min(j T_m, T)). Equation 1
uses w_1 throughout and is a lower bound. A run of T days meets ceil(T/T_m) inspections, the last one after its end.

Three answers, from the paper's model to the whole truth: with replacement; without replacement, periods taken as
independent; and without replacement with the chips' memory followed from period to period. In the last, a chip that
held nothing in one period tends to hold nothing in the next, so that misses go together and p is a little lower than
the product says. The difference vanishes where many chips are involved.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import gammaln

from analysis.detection import involved_chips, involved_fraction, log_miss_with_replacement
from analysis.domain import (
    ENOUGH,
    DetectionDomainError,
    FloatArray,
    InfeasibleError,
    Numbers,
    least_whole,
    not_more_than_chips,
    plain,
    positive,
    refuse,
    schedule,
    together,
    whole,
)
from analysis.domain import probability as checked_probability
from analysis.hypergeometric import seen_probability

_MOST_PERIODS = 100_000
_MOST_FOLLOWED = 1000


def periods_of_run(*, run_days: Numbers, period_days: Numbers) -> FloatArray:
    """Returns ceil(T/T_m): how many inspections see a run of `run_days` days, the one after its end included.

    Raises:
        DetectionDomainError: An argument is not positive and finite, or there would be more than 100,000 periods.
    """
    days, period = together(positive("run_days", run_days, "days"), positive("period_days", period_days, "days"))
    count = np.maximum(1.0, np.ceil(days / period * (1 - 4 * np.finfo(float).eps)))
    refuse(count > _MOST_PERIODS, count, lambda v: f"{v} periods are too many; raise period_days")
    return plain(count)


def _held(run_days: FloatArray, period_days: FloatArray, rate: FloatArray) -> Iterator[FloatArray]:
    """Yields w_j of one period after the other; zero where the run's last one is over."""
    count = np.asarray(periods_of_run(run_days=run_days, period_days=period_days))
    for period in range(1, int(np.max(count, initial=1)) + 1):
        yield np.where(period <= count, -np.expm1(-rate * np.minimum(period * period_days, run_days)), 0.0)


def accumulating_probability(
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
    """Returns 1 - prod_j (1 - H/(aTC) w_j)^s: equation 1 with snapshots that accumulate, sampling with replacement.

    Args:
        samples: Chips sampled in each period (s), whole.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T); it need not be a multiple of the period.
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        withheld: Samples of each period that stay unverified once the draw is known (w), whole.

    Raises:
        DetectionDomainError: An argument is out of range, or H does not fit on C chips.
    """
    fraction, drawn, total, hidden, days, period, rate = together(
        np.asarray(
            involved_fraction(
                flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
            )
        ),
        whole("samples", samples, 0),
        whole("chips", chips, 1),
        whole("withheld", withheld, 0),
        *schedule(run_days, period_days, snapshot_rate_per_day),
    )
    not_more_than_chips(drawn, total)
    log_miss = np.zeros(fraction.shape)
    for held in _held(days, period, rate):
        log_miss = log_miss + log_miss_with_replacement(drawn, fraction * held, hidden)
    return plain(-np.expm1(log_miss))


def accumulating_samples(
    *,
    probability: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns the samples per period (real) with which `accumulating_probability` reaches `probability`.

    Raises:
        DetectionDomainError: An argument is out of range, or H does not fit on C chips.
    """
    wanted, log_miss = together(
        checked_probability("probability", probability),
        _log_miss(flops_threshold, chip_flops_per_day, chips, run_days, period_days, snapshot_rate_per_day),
    )
    return plain(np.log1p(-wanted) / log_miss)


def _log_miss(
    flops_threshold: Numbers, speed: Numbers, chips: Numbers, run_days: Numbers, period_days: Numbers, rate: Numbers
) -> FloatArray:
    """Returns the logarithm of the probability that one sample in each period misses."""
    fraction, days, period, frequency = together(
        np.asarray(
            involved_fraction(flops_threshold=flops_threshold, chip_flops_per_day=speed, chips=chips, run_days=run_days)
        ),
        *schedule(run_days, period_days, rate),
    )
    total = np.zeros(fraction.shape)
    with np.errstate(divide="ignore"):  # a sample that cannot miss
        for held in _held(days, period, frequency):
            total = total + np.log1p(-fraction * held)
    return total


def accumulating_probability_hypergeometric(
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
    """Returns the detection probability for whole chips without replacement, periods taken as independent.

    n = ceil(H/(aT)) chips are involved; each period draws s different chips anew. For a run within one period this
    is exact, and equal to `detection_probability_hypergeometric`; for more it is a little high (see the module).

    Args:
        samples: Different chips sampled in each period (s), whole, at most `chips`.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T).
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        withheld: Drawn chips of each period that stay unverified once the draw is known (w), whole.

    Raises:
        DetectionDomainError: An argument is out of range, H does not fit on C chips, or `samples` exceeds `chips`.
    """
    involved = involved_chips(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    return seen_in_periods(
        samples=samples,
        involved=involved,
        chips=chips,
        run_days=run_days,
        period_days=period_days,
        snapshot_rate_per_day=snapshot_rate_per_day,
        withheld=withheld,
    )


def seen_in_periods(
    *,
    samples: Numbers,
    involved: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
    withheld: Numbers = 0,
) -> FloatArray:
    """Returns `accumulating_probability_hypergeometric` for a given number of involved chips instead of a size.

    With w chips of each period withheld by a Prover who knows the draw, the run is missed if no period has more than w
    drawn chips that show it.

    Raises:
        DetectionDomainError: An argument is out of range, or more chips are involved or sampled than there are.
    """
    drawn, some, total, days, period, rate, hidden = together(
        whole("samples", samples, 0),
        whole("involved", involved, 0),
        whole("chips", chips, 1),
        *schedule(run_days, period_days, snapshot_rate_per_day),
        whole("withheld", withheld, 0),
    )
    not_more_than_chips(drawn, total)
    log_miss = np.zeros(drawn.shape)
    with np.errstate(divide="ignore"):
        for shown in _held(days, period, rate):
            seen = seen_probability(population=total, marked=some, drawn=drawn, shown=shown, withheld=hidden)
            log_miss += np.log1p(-np.asarray(seen))
    return plain(-np.expm1(log_miss))


def accumulating_samples_hypergeometric(
    *,
    probability: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
    withheld: Numbers = 0,
) -> FloatArray:
    """Returns the least whole samples per period at which the function before reaches `probability`.

    Raises:
        DetectionDomainError: An argument is out of range, H does not fit on C chips, or sampling all is not enough.
    """
    involved = involved_chips(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
    )
    wanted, some, total, days, period, rate, hidden = together(
        checked_probability("probability", probability),
        np.asarray(involved),
        whole("chips", chips, 1),
        *schedule(run_days, period_days, snapshot_rate_per_day),
        whole("withheld", withheld, 0),
    )

    def reached(samples: FloatArray) -> FloatArray:
        return np.asarray(
            seen_in_periods(
                samples=samples,
                involved=some,
                chips=total,
                run_days=days,
                period_days=period,
                snapshot_rate_per_day=rate,
                withheld=hidden,
            )
        )

    wanted = wanted * ENOUGH
    most = reached(total)
    refuse(
        most < wanted,
        most,
        lambda v: (
            f"sampling every chip in every period detects the run with probability {float(v):.6g} only, because chips "
            "may hold no snapshot or be withheld; raise snapshot_rate_per_day, or lower withheld or probability"
        ),
        InfeasibleError,
    )
    return plain(least_whole(lambda samples: reached(samples) >= wanted, np.zeros_like(total), total))


def accumulating_probability_followed(
    *, samples: int, involved: int, chips: int, run_days: float, period_days: float, snapshot_rate_per_day: float
) -> float:
    """Returns the exact probability for several periods: without replacement, and chips remember (numbers only).

    The number of involved chips that hold a snapshot grows from period to period as a Markov chain, which is followed
    state by state; hence at most 1000 involved chips. For more, `seen_in_periods` is right to many digits.

    Args:
        samples: Different chips sampled in each period (s).
        involved: Involved chips (n), at most 1000.
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T).
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    count = int(whole("involved", involved, 0))
    if count > _MOST_FOLLOWED:
        raise DetectionDomainError(f"at most {_MOST_FOLLOWED} involved chips are followed, not {count}")
    holding = np.arange(count + 1)
    missed = 1 - np.asarray(
        seen_probability(population=chips, marked=holding, drawn=whole("samples", samples, 0), shown=1.0)
    )
    rate = float(positive("snapshot_rate_per_day", snapshot_rate_per_day, "snapshots per day"))
    weights = np.zeros(count + 1)
    weights[0] = 1.0
    before = 0.0
    for number in range(1, int(periods_of_run(run_days=run_days, period_days=period_days)) + 1):
        now = min(number * float(period_days), float(run_days))
        weights = (weights @ _growth(count, -np.expm1(-rate * (now - before)))) * missed
        before = now
    return float(1 - weights.sum())


def _growth(count: int, chance: float) -> FloatArray:
    """Returns the matrix of probabilities to go from m holding chips to m', each other chip joining with `chance`."""
    old, new = np.meshgrid(np.arange(count + 1.0), np.arange(count + 1.0), indexing="ij")
    if chance >= 1:
        return np.asarray(new == count, dtype=np.float64)
    joined, free = new - old, count - old
    with np.errstate(invalid="ignore", divide="ignore"):
        log_ways = gammaln(free + 1) - gammaln(joined + 1) - gammaln(free - joined + 1)
        matrix = np.exp(log_ways + joined * np.log(chance) + (free - joined) * np.log1p(-chance))
    return np.where(joined >= 0, matrix, 0.0)
