"""Using more chips for a shorter time each does not help the Prover (Shavit, appendix C.2: theorem 1 and lemma 1).

The proof printed for lemma 1 has a slip in its derivative; the lemma is true. See `docs/paper.md`, erratum E7.
"""

from __future__ import annotations

import numpy as np

from analysis.detection import involved_fraction, snapshot_probability
from analysis.domain import FloatArray, Numbers, numbers, plain, refuse, together, whole
from analysis.domain import probability as checked_probability


def spread_probability(
    *,
    samples: Numbers,
    flops_threshold: Numbers,
    chip_flops_per_day: Numbers,
    chips: Numbers,
    days_per_chip: Numbers,
    snapshot_rate_per_day: Numbers,
) -> FloatArray:
    """Returns p_d(t) = 1 - (1 - H/(aCt) (1 - exp(-f t)))^s for a run that gives each of its chips t days.

    By theorem 1 it falls with t: all days on few chips is what is hardest to see. It holds alike for chips used at the
    same time and one after the other, as long as the inspection comes after the run.

    Args:
        samples: Chips sampled after the run (s), whole.
        flops_threshold: Size of the violation in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        chips: Number of chips sampled from (C).
        days_per_chip: Days that each involved chip works on the run (t).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).

    Raises:
        DetectionDomainError: An argument is out of range, or the run does not fit on C chips in t days.
    """
    fraction = involved_fraction(
        flops_threshold=flops_threshold, chip_flops_per_day=chip_flops_per_day, chips=chips, run_days=days_per_chip
    )
    held = snapshot_probability(snapshot_rate_per_day=snapshot_rate_per_day, days=days_per_chip)
    drawn, fraction, held = together(whole("samples", samples, 0), np.asarray(fraction), np.asarray(held))
    with np.errstate(divide="ignore", invalid="ignore"):  # every chip shows the run for certain
        found = -np.expm1(drawn * np.log1p(-fraction * held))
    return plain(np.where(drawn == 0, 0.0, found))


def _lemma(ratio: Numbers, base: Numbers) -> list[FloatArray]:
    factor = numbers("ratio", ratio)
    refuse(~((factor >= 1) & np.isfinite(factor)), factor, lambda v: f"ratio must be finite and at least 1, not {v}")
    return together(factor, checked_probability("base", base))


def lemma_1(*, ratio: Numbers, base: Numbers) -> FloatArray:
    """Returns g (1 - b^(1/g)) - (1 - b), which lemma 1 says is never negative.

    Args:
        ratio: g = T/t, at least 1.
        base: b = exp(-f T), between 0 and 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    g, b = _lemma(ratio, base)
    return plain(-g * np.expm1(np.log(b) / g) - (1 - b))


def lemma_1_slope(*, ratio: Numbers, base: Numbers) -> FloatArray:
    """Returns the derivative of `lemma_1` with respect to g: 1 - b^(1/g) + b^(1/g) ln(b) / g.

    With x = -ln(b) / g it is 1 - exp(-x) (1 + x), which is never negative because exp(x) >= 1 + x.

    Args:
        ratio: g = T/t, at least 1.
        base: b = exp(-f T), between 0 and 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    g, b = _lemma(ratio, base)
    x = -np.log(b) / g
    return plain(-np.expm1(-x) - x * np.exp(-x))
