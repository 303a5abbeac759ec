"""What inspections and snapshots cost: samples a year, inspectors, stalled chips, bytes kept."""

from __future__ import annotations

import numpy as np

from analysis.domain import FloatArray, Numbers, not_negative, plain, positive, refuse, together, whole

DAYS_PER_YEAR = 365.0  # as in the paper's table 1
SECONDS_PER_DAY = 86400.0


def annual_samples(*, samples: Numbers, period_days: Numbers) -> FloatArray:
    """Returns 365 s / T_m: samples a year.

    Args:
        samples: Chips sampled in each period (s).
        period_days: Monitoring period in days (T_m).

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    drawn, period = together(not_negative("samples", samples, "chips"), positive("period_days", period_days, "days"))
    return plain(DAYS_PER_YEAR * drawn / period)


def inspectors_needed(*, samples_per_year: Numbers, samples_per_inspector: Numbers = 1000) -> FloatArray:
    """Returns how many inspectors that takes, rounded up.

    Args:
        samples_per_year: Chips inspected a year.
        samples_per_inspector: Chips that one inspector can inspect a year; the paper's footnote 5 takes 1000.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    drawn, each = together(
        not_negative("samples_per_year", samples_per_year, "chips"),
        positive("samples_per_inspector", samples_per_inspector, "chips"),
    )
    return plain(np.ceil(drawn / each * (1 - 4 * np.finfo(float).eps)))


def stall_fraction(*, job_chips: Numbers, snapshot_rate_per_day: Numbers, stall_seconds: Numbers) -> FloatArray:
    """Returns the fraction of a job's time that is lost to snapshots: n f d / 86400.

    A synchronous job of n chips waits whenever one of them takes a snapshot; for one whose chips do not wait for each
    other, n is 1. Snapshots are rare enough not to coincide.

    Args:
        job_chips: Chips that stand still while one of them takes a snapshot (n), whole.
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        stall_seconds: Seconds that a snapshot takes (d), 0 or more.

    Raises:
        DetectionDomainError: An argument is out of range, or the job would do nothing but wait.
    """
    count, rate, seconds = together(
        whole("job_chips", job_chips, 1),
        positive("snapshot_rate_per_day", snapshot_rate_per_day, "snapshots per day"),
        not_negative("stall_seconds", stall_seconds, "seconds"),
    )
    lost = count * rate * seconds / SECONDS_PER_DAY
    refuse(
        lost >= 1,
        lost,
        lambda v: f"the job would wait {float(v):.3g} times as long as there is time; lower the rate or stall_seconds",
    )
    return plain(lost)


def stored_bytes(
    *, chips: Numbers, snapshot_rate_per_day: Numbers, snapshot_bytes: Numbers, kept_days: Numbers
) -> FloatArray:
    """Returns the bytes that are kept at any time: C f b days.

    Args:
        chips: Number of chips (C), whole.
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        snapshot_bytes: Bytes kept of one snapshot (b): a few hundred for a token, the memory's size for its contents.
        kept_days: Days until an inspection allows them to be deleted.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    total, rate, size, days = together(
        whole("chips", chips, 1),
        positive("snapshot_rate_per_day", snapshot_rate_per_day, "snapshots per day"),
        not_negative("snapshot_bytes", snapshot_bytes, "bytes"),
        positive("kept_days", kept_days, "days"),
    )
    return plain(total * rate * size * days)


def interrupt_probability_per_cycle(*, snapshot_rate_per_day: Numbers, clock_hz: Numbers) -> FloatArray:
    """Returns the probability with which firmware interrupts at each clock cycle: f / (86400 Hz).

    Args:
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        clock_hz: Clock cycles per second.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    rate, clock = together(
        positive("snapshot_rate_per_day", snapshot_rate_per_day, "snapshots per day"),
        positive("clock_hz", clock_hz, "cycles per second"),
    )
    return plain(rate / SECONDS_PER_DAY / clock)
