"""Unmonitored chips: older ones without logging, and ones exempt because they do something else.

They work for the Prover for free. A run of H FLOPs need only do on monitored chips what is left, and a run that fits on
unmonitored ones is never seen: that is the floor of what any number of inspections can catch. A sample that falls on an
exempt chip is wasted as well, unless exempt chips are taken out of the population that is sampled.
"""

from __future__ import annotations

import numpy as np

from analysis.domain import FloatArray, InfeasibleError, Numbers, not_negative, plain, positive, together, whole


def unmonitored_flops(
    *, legacy_chips: Numbers, legacy_flops_per_day: Numbers, exempt_chips: Numbers, chip_flops_per_day: Numbers,
    run_days: Numbers,
) -> FloatArray:  # fmt: skip
    """Returns what unmonitored chips can do in a run, in FLOPs: the smallest detectable run is larger than that.

    Args:
        legacy_chips: Chips without logging, whole, 0 for none.
        legacy_flops_per_day: FLOPs that one of these can do per day.
        exempt_chips: Chips of the current kind that are not inspected, whole, 0 for none.
        chip_flops_per_day: FLOPs that one chip of the current kind can do per day (a).
        run_days: Length of the run in days (T).

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    old, old_speed, free, speed, days = together(
        whole("legacy_chips", legacy_chips, 0),
        not_negative("legacy_flops_per_day", legacy_flops_per_day, "FLOPs per day"),
        whole("exempt_chips", exempt_chips, 0),
        positive("chip_flops_per_day", chip_flops_per_day, "FLOPs per day"),
        positive("run_days", run_days, "days"),
    )
    return plain((old * old_speed + free * speed) * days)


def monitored_flops(*, flops_threshold: Numbers, unmonitored: Numbers) -> FloatArray:
    """Returns the part of a violation that has to run on monitored chips, in FLOPs; use it as H in the formulas.

    Args:
        flops_threshold: Size of the violation in FLOPs (H).
        unmonitored: What unmonitored chips can do meanwhile, in FLOPs; see `unmonitored_flops`.

    Raises:
        DetectionDomainError: An argument is out of range, or the whole violation fits on unmonitored chips.
    """
    flops, free = together(
        positive("flops_threshold", flops_threshold, "FLOPs"), not_negative("unmonitored", unmonitored, "FLOPs")
    )
    left = flops - free
    if np.any(left <= 0):
        raise InfeasibleError(
            f"a run of {float(flops[left <= 0].flat[0]):g} FLOPs fits on unmonitored chips, which can do "
            f"{float(free[left <= 0].flat[0]):g}; no number of inspections catches it: raise flops_threshold above that"
        )
    return plain(left)


def sampled_waste(*, chips: Numbers, exempt_chips: Numbers) -> FloatArray:
    """Returns C/(C - exempt): how many times as many samples are needed if exempt chips stay among those sampled.

    Args:
        chips: All chips (C), whole.
        exempt_chips: Those of them whose inspection shows nothing, whole, fewer than `chips`.

    Raises:
        DetectionDomainError: An argument is out of range, or every chip is exempt.
    """
    total, free = together(whole("chips", chips, 1), whole("exempt_chips", exempt_chips, 0))
    if np.any(free >= total):
        raise InfeasibleError("every chip is exempt, so there is nothing to inspect; lower exempt_chips")
    return plain(total / (total - free))
