"""Training k times as long on 1/k of the chips: what it costs the Verifier (Shavit, appendix C.1 and figure 2).

Snapshots are taken as always present. With b = H/(CaT) and the s that catches the unstretched run with probability p,
a run stretched k times is seen with p_d(k) = 1 - (1 - b/k)^(k s), which falls with k to 1 - exp(-b s).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis.domain import FloatArray, Numbers, narrowed, numbers, plain, refuse, together
from analysis.domain import probability as checked_probability


def _checked(probability: Numbers, involved_fraction: Numbers) -> list[FloatArray]:
    return together(
        checked_probability("probability", probability), checked_probability("involved_fraction", involved_fraction)
    )


def stretch_probability(*, probability: Numbers, involved_fraction: Numbers, stretch: Numbers) -> FloatArray:
    """Returns p_d(k) = 1 - (1 - p)^(k ln(1 - b/k) / ln(1 - b)).

    Args:
        probability: Detection probability of the unstretched run (p), between 0 and 1.
        involved_fraction: Fraction of all chips that it uses (b), between 0 and 1.
        stretch: How many times as long the run takes (k), at least 1; infinity gives the limit.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    factor = numbers("stretch", stretch)
    refuse(~(factor >= 1), factor, lambda v: f"stretch must be at least 1, not {v}")
    wanted, fraction, factor = together(*_checked(probability, involved_fraction), factor)
    with np.errstate(invalid="ignore"):  # infinity times zero
        slowed = np.where(np.isinf(factor), -fraction, factor * np.log1p(-fraction / factor))
    return plain(-np.expm1(np.log1p(-wanted) * (slowed / np.log1p(-fraction))))


def stretch_limit(*, probability: Numbers, involved_fraction: Numbers) -> FloatArray:
    """Returns the limit of p_d(k) for endless stretching: 1 - (1 - p)^(b / -ln(1 - b)).

    Args:
        probability: Detection probability of the unstretched run (p), between 0 and 1.
        involved_fraction: Fraction of all chips that it uses (b), between 0 and 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    return stretch_probability(probability=probability, involved_fraction=involved_fraction, stretch=np.inf)


def stretch_ratio(*, probability: Numbers, involved_fraction: Numbers, stretch: Numbers) -> FloatArray:
    """Returns p_d(k) / p_d(1), the quantity of figure 2; arguments and errors as `stretch_probability`."""
    found = stretch_probability(probability=probability, involved_fraction=involved_fraction, stretch=stretch)
    return plain(found / checked_probability("probability", probability))


def largest_fraction(*, probability: Numbers, stretch: Numbers, loss: Numbers) -> FloatArray:
    """Returns the b up to which stretching costs at most `loss`: p_d(k)/p_d(1) >= 1 - loss.

    Args:
        probability: Detection probability of the unstretched run (p), between 0 and 1.
        stretch: How many times as long the run takes (k), at least 1; infinity for any.
        loss: Relative loss of detection probability, between 0 and 1.

    Returns:
        Fractions between 0 and 1, to about twelve digits; 1 where the loss is never reached.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    wanted, factor, lost = together(
        checked_probability("probability", probability),
        numbers("stretch", stretch),
        checked_probability("loss", loss),
    )
    low, high = np.full(wanted.shape, 1e-15), np.full(wanted.shape, 1 - 1e-15)

    def fine(fraction: FloatArray) -> npt.NDArray[np.bool_]:
        return np.asarray(stretch_ratio(probability=wanted, involved_fraction=fraction, stretch=factor)) >= 1 - lost

    low, high = narrowed(fine, low, high, 60)
    return plain(np.where(high == 1 - 1e-15, 1.0, low))
