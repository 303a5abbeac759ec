"""The 2H rule, and catching a run before it is finished.

Snapshots of the first H FLOPs of a run prove nothing: they may be of a permitted run. Only what follows incriminates.
So a guarantee computed for H holds for runs of 2H and more, and to catch runs of R one computes with H = R/2; to catch
them by the time a fraction phi is done, with H = phi R/2.
"""

from __future__ import annotations

import numpy as np

from analysis.detection import involved_fraction
from analysis.domain import (
    DetectionDomainError,
    FloatArray,
    Numbers,
    not_negative,
    plain,
    positive,
    refuse,
    schedule,
    share,
    together,
    whole,
)

_MOST_INSPECTIONS = 100_000


def threshold_to_catch(*, run_flops: Numbers, by_fraction: Numbers = 1.0) -> FloatArray:
    """Returns the H to compute with so that runs of `run_flops` are caught by the time `by_fraction` of them is done.

    H = by_fraction run_flops / 2: then H FLOPs are incriminating at that time.

    Args:
        run_flops: Size of the run that must not go unseen, in FLOPs.
        by_fraction: Fraction of it that may be done at the latest, above 0 and at most 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    flops, part = together(positive("run_flops", run_flops, "FLOPs"), share("by_fraction", by_fraction))
    refuse(part == 0, part, lambda v: f"by_fraction must be above 0, not {v}")
    return plain(part * flops / 2)


def incriminating_flops(*, run_flops: Numbers, flops_threshold: Numbers) -> FloatArray:
    """Returns what of a run comes after its first H FLOPs, in FLOPs; 0 for a run that stays below H.

    Args:
        run_flops: Size of the run in FLOPs.
        flops_threshold: Size above which a run is a violation, in FLOPs (H).

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    flops, limit = together(
        positive("run_flops", run_flops, "FLOPs"), positive("flops_threshold", flops_threshold, "FLOPs")
    )
    return plain(np.maximum(0.0, flops - limit))


def probability_by_day(
    *,
    elapsed_days: Numbers,
    samples: Numbers,
    run_flops: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns the probability that a run has been detected by a day counted from its start.

    The run uses run_flops/(a run_days) chips, and is past H after run_days H/run_flops days; from then on its snapshots
    incriminate. Inspections happen every `period_days` from the start of the run; each samples s chips with
    replacement, and sees all snapshots taken so far.

    Args:
        elapsed_days: Days since the run began, 0 or more; it may lie after the run's end.
        samples: Chips sampled in each inspection (s), whole.
        run_flops: Size of the whole run in FLOPs.
        flops_threshold: Size above which it is a violation, in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the whole run in days.
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range, the run does not fit, or there are over 100,000 inspections.
    """
    now, drawn, flops, limit, days, period, rate, fraction = together(
        not_negative("elapsed_days", elapsed_days, "days"),
        whole("samples", samples, 0),
        positive("run_flops", run_flops, "FLOPs"),
        positive("flops_threshold", flops_threshold, "FLOPs"),
        *schedule(run_days, period_days, snapshot_rate_per_day),
        np.asarray(
            involved_fraction(
                flops_threshold=run_flops, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=run_days
            )
        ),
    )
    done = _inspections(now, period)
    crossing = days * np.minimum(1.0, limit / flops)
    log_miss = np.zeros(now.shape)
    with np.errstate(divide="ignore"):
        for number in range(1, int(np.max(done, initial=0)) + 1):
            watched = np.maximum(0.0, np.minimum(number * period, days) - crossing)
            held = np.where(number <= done, -np.expm1(-rate * watched), 0.0)
            log_miss += np.log1p(-fraction * held)
    with np.errstate(invalid="ignore"):
        return plain(np.where(drawn == 0, 0.0, -np.expm1(drawn * log_miss)))


def _inspections(days: FloatArray, period: FloatArray) -> FloatArray:
    """Returns how many inspections there are in so many days.

    Raises:
        DetectionDomainError: There are over 100,000.
    """
    count = np.floor(days / period * (1 + 4 * np.finfo(float).eps))
    if np.any(count > _MOST_INSPECTIONS):
        raise DetectionDomainError(f"more than {_MOST_INSPECTIONS} inspections; raise period_days")
    return count


def fraction_done_when_detected(
    *,
    samples: Numbers,
    run_flops: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns the expected fraction of a run that is done when it is detected; 1 if it is detected later or never.

    Arguments and errors as `probability_by_day`.
    """
    days, period = together(positive("run_days", run_days, "days"), positive("period_days", period_days, "days"))
    inspections = _inspections(days, period)
    saved: FloatArray = np.zeros(())
    before: FloatArray = np.zeros(())
    for number in range(1, int(np.max(inspections, initial=0)) + 1):
        found = probability_by_day(
            elapsed_days=np.minimum(number * period, days),
            samples=samples,
            run_flops=run_flops,
            flops_threshold=flops_threshold,
            chip_flops_per_day=chip_flops_per_day,
            chips=chips,
            run_days=days,
            period_days=period,
            snapshot_rate_per_day=snapshot_rate_per_day,
        )
        saved = saved + (found - before) * np.maximum(0.0, 1 - number * period / days)
        before = found
    return plain(1 - saved)
