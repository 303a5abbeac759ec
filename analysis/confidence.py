"""What an inspection that found k violations among s chips says about all chips.

Two intervals. Clopper and Pearson's is for sampling with replacement, or from so many chips that it does not matter.
The hypergeometric one counts whole chips of a known fleet. Both cover the truth with at least the stated confidence.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from analysis.domain import (
    FloatArray,
    Numbers,
    not_more_than_chips,
    plain,
    positive,
    probability,
    refuse,
    together,
    whole,
)


def clopper_pearson(*, found: Numbers, samples: Numbers, confidence: Numbers) -> tuple[FloatArray, FloatArray]:
    """Returns lower and upper bounds on the fraction of chips in violation, with (1 - confidence)/2 on either side.

    A one-sided bound at confidence c is the same side of the interval at 2c - 1.

    Args:
        found: Samples in violation (k), whole.
        samples: Chips sampled (s), whole, at least 1.
        confidence: Probability that the interval covers the truth, between 0 and 1.

    Raises:
        DetectionDomainError: An argument is out of range, or k > s.
    """
    hits, drawn, tail = _tails(found, samples, confidence)
    with np.errstate(invalid="ignore"):
        low = np.where(hits == 0, 0.0, special.betaincinv(np.maximum(hits, 1), drawn - hits + 1, tail))
        high = np.where(hits == drawn, 1.0, special.betainccinv(hits + 1, np.maximum(drawn - hits, 1), tail))
    return plain(low), plain(high)


def _tails(found: Numbers, samples: Numbers, confidence: Numbers) -> tuple[FloatArray, FloatArray, FloatArray]:
    hits, drawn, sure = together(
        whole("found", found, 0), whole("samples", samples, 1), probability("confidence", confidence)
    )
    refuse(hits > drawn, hits, lambda v: f"found = {v} cannot exceed samples")
    return hits, drawn, (1 - sure) / 2


def hypergeometric_bounds(
    *, found: Numbers, samples: Numbers, chips: Numbers, confidence: Numbers
) -> tuple[FloatArray, FloatArray]:
    """Returns the least and the greatest number of chips in violation that do not contradict the sample.

    Those m for which neither P(J >= k) nor P(J <= k) is at most (1 - confidence)/2, J being hypergeometric.

    Args:
        found: Samples in violation (k), whole.
        samples: Different chips sampled (s), whole, 1 to `chips`.
        chips: Number of chips (C), whole.
        confidence: Probability that the interval covers the truth, between 0 and 1.

    Returns:
        Whole numbers as float64, in the broadcast shape.

    Raises:
        DetectionDomainError: An argument is out of range, k > s, or s > C.
    """
    hits, drawn, tail = _tails(found, samples, confidence)
    hits, drawn, tail, total = together(hits, drawn, tail, whole("chips", chips, 1))
    not_more_than_chips(drawn, total)
    least, most = np.empty(hits.shape), np.empty(hits.shape)
    for place in np.ndindex(hits.shape):
        sample = int(hits[place]), int(drawn[place]), int(total[place]), float(tail[place])
        least[place], most[place] = _bounds(*sample)
    return plain(least), plain(most)


def _bounds(found: int, drawn: int, total: int, tail: float) -> tuple[int, int]:
    """Returns the bounds for one sample."""
    least, most = found, total - (drawn - found)
    if found > 0:
        low, high = found - 1, most
        while high - low > 1:
            middle = (low + high) // 2
            plausible = 1 - _at_most(found - 1, middle, drawn, total) > tail
            low, high = (low, middle) if plausible else (middle, high)
        least = high
    if found < drawn:
        low, high = found, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            plausible = _at_most(found, middle, drawn, total) > tail
            low, high = (middle, high) if plausible else (low, middle)
        most = low
    return least, most


def _at_most(found: int, marked: int, drawn: int, total: int) -> float:
    """Returns P(J <= found), J hypergeometric."""
    if marked + drawn - total > found:
        return 0.0
    j = np.arange(max(0, marked + drawn - total), min(found, marked) + 1, dtype=np.float64)
    if drawn == total:
        return float(marked <= found)
    rate = drawn / total
    log_pmf = (
        _log_binomial_pmf(j, marked, rate)
        + _log_binomial_pmf(drawn - j, total - marked, rate)
        - _log_binomial_pmf(np.asarray(float(drawn)), total, rate)
    )
    return min(1.0, float(np.exp(log_pmf).sum()))


def _log_binomial_pmf(k: FloatArray, n: float, p: float) -> FloatArray:
    """Returns log P(Bin(n, p) = k) without subtracting large logarithms of factorials (Loader's saddle-point form)."""
    rest = n - k
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = (
            _stirling_error(np.asarray(float(n)))
            - _stirling_error(k)
            - _stirling_error(rest)
            - special.rel_entr(k, n * p) - (n * p - k)
            - special.rel_entr(rest, n * (1 - p)) - (n * (1 - p) - rest)
            + 0.5 * np.log(n / (2 * np.pi * k * rest))
        )  # fmt: skip
        log_pmf: FloatArray = np.where(k == 0, n * np.log1p(-p), np.where(rest == 0, n * np.log(p), inner))
    return log_pmf


def _stirling_error(n: FloatArray) -> FloatArray:
    """Returns log n! minus Stirling's approximation of it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * n * n)) / (n * n)) / (n * n)) / n
        direct = special.gammaln(n + 1) - ((n + 0.5) * np.log(n) - n + 0.5 * np.log(2 * np.pi))
    return np.where(n > 15, series, direct)


def largest_hidden_run(
    *,
    chips_in_violation: Numbers,
    chip_flops_per_day: Numbers,
    run_days: Numbers,
    snapshot: Numbers,
) -> FloatArray:
    """Returns the FLOPs of the largest run that a bound on chips in violation leaves room for: m a T / w.

    Args:
        chips_in_violation: Upper bound on the chips that hold a snapshot of it (m).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        run_days: Length of the run in days (T).
        snapshot: Probability that an involved chip holds a snapshot (w), between 0 and 1; on average m = n w.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    bound, speed, days, held = together(
        whole("chips_in_violation", chips_in_violation, 0),
        positive("chip_flops_per_day", chip_flops_per_day, "FLOPs per day"),
        positive("run_days", run_days, "days"),
        probability("snapshot", snapshot),
    )
    return plain(bound * speed * days / held)
