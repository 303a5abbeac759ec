"""The other way round: the smallest run that a given number of samples would catch."""

from __future__ import annotations

import numpy as np

from analysis.detection import snapshot_probability
from analysis.domain import (
    ENOUGH,
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
from analysis.periods import seen_in_periods


def smallest_run_eq1(
    *,
    samples: Numbers,
    probability: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns the least H in FLOPs that equation 1 says is caught: (1 - (1 - p)^(T_m/(s T))) a T C / (1 - exp(-f T_m)).

    Args:
        samples: Chips sampled in each period (s), whole, at least 1.
        probability: Wanted detection probability (p), above 0 and below 1.
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T), at least `period_days`.
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range, or even a run on all chips would not be caught.
    """
    held = snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=period_days)
    drawn, wanted, speed, total, days, period, shown = together(
        whole("samples", samples, 1),
        checked_probability("probability", probability),
        positive("chip_flops_per_day", chip_flops_per_day, "FLOPs per day"),
        whole("chips", chips, 1),
        positive("run_days", run_days, "days"),
        positive("period_days", period_days, "days"),
        np.asarray(held),
    )
    not_more_than_chips(drawn, total)
    refuse(
        days < period,
        days,
        lambda v: f"equation 1 needs run_days (T = {v}) to be at least period_days (T_m)",
        InfeasibleError,
    )
    fraction = -np.expm1(np.log1p(-wanted) * period / (drawn * days)) / shown
    refuse(fraction > 1, drawn, _too_few, InfeasibleError)
    return plain(fraction * speed * days * total)


def smallest_run_chips(
    *,
    samples: Numbers,
    probability: Numbers,
    chips: Numbers,
    run_days: Numbers,
    period_days: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns the least number of involved chips n that is caught, sampling whole chips without replacement.

    Every run that needs n chips or more is caught with at least `probability`; n a T FLOPs is such a run.

    Args:
        samples: Different chips sampled in each period (s), whole, 1 to `chips`.
        probability: Wanted detection probability (p), above 0 and below 1.
        chips: Number of chips sampled from (C).
        run_days: Length of the run in days (T).
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Returns:
        Whole numbers as float64, in the broadcast shape.

    Raises:
        DetectionDomainError: An argument is out of range, or even a run on all chips would not be caught.
    """
    drawn, wanted, total, days, period, rate = together(
        whole("samples", samples, 1),
        checked_probability("probability", probability),
        whole("chips", chips, 1),
        *schedule(run_days, period_days, snapshot_rate_per_day),
    )

    not_more_than_chips(drawn, total)

    def reached(involved: FloatArray) -> FloatArray:
        return np.asarray(
            seen_in_periods(
                samples=drawn,
                involved=involved,
                chips=total,
                run_days=days,
                period_days=period,
                snapshot_rate_per_day=rate,
            )
        )

    wanted = wanted * ENOUGH
    refuse(reached(total) < wanted, drawn, _too_few, InfeasibleError)
    return plain(least_whole(lambda involved: reached(involved) >= wanted, np.zeros_like(total), total))


def _too_few(samples: str) -> str:
    return (
        f"{float(samples):.0f} samples a period do not catch even a run on all chips with this probability; "
        "raise samples or snapshot_rate_per_day, or lower probability"
    )
