"""Drawing whole chips without replacement when a marked chip shows itself only with some probability.

Of N items n are marked; d different items are drawn, so that the number J of marked ones among them is hypergeometric;
each of these shows its mark with probability w, independently. Everything here rests on

    P(at least one mark is seen) = 1 - E[(1 - w)^J].

A sum over J has up to min(n, d) terms, and its terms are ratios of factorials whose logarithms lose nine digits at
N = 1e9. Instead the expectation is read off its generating function,

    E[(1 - w)^J] * C(N, d) = coefficient of x^d in (1 + x)^(N - n) * (1 + (1 - w) x)^n,

as Cauchy's integral over a circle, divided by the same integral of (1 + x)^N. With the radius d / (N - d) the integrand
is a bell curve around angle zero, for which equally spaced points converge faster than any power of their number; 128
points on the half circle give the last digits of float64 for every N, n and d, in the same time. The integral of one
minus the ratio of the two integrands is taken, so that tiny probabilities keep their digits too.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from analysis.domain import (
    ENOUGH,
    FloatArray,
    InfeasibleError,
    Numbers,
    least_whole,
    plain,
    probability,
    refuse,
    share,
    together,
    whole,
)
from analysis.withheld_marks import more_marks_than

_NODES = 128  # on half the circle; the other half is the complex conjugate
_WHOLE_CIRCLE = 20.0  # standard deviations of the bell curve's transform up to which it is integrated everywhere
_WIDTH = 10.0  # half width of the window otherwise, in standard deviations of the bell curve
_BLOCK = 4096  # elements computed at a time, to bound the memory


def seen_probability(
    *, population: Numbers, marked: Numbers, drawn: Numbers, shown: Numbers, withheld: Numbers = 0
) -> FloatArray:
    """Returns the probability that at least one mark is seen: 1 - E[(1 - w)^J], to about 15 digits.

    With some of the drawn items withheld by someone who sees which of them show a mark, it is the probability that
    more marks show than items were withheld (`analysis.withheld_marks`), to about 12 digits. Taking the withheld items
    for not drawn would be wrong: they were not chosen at random.

    Args:
        population: Number of items (N), whole.
        marked: Number of marked items (n), whole, at most `population`.
        drawn: Number of different items drawn (d), whole, at most `population`; the withheld ones are among them.
        shown: Probability that a drawn marked item shows its mark (w), 0 to 1.
        withheld: Drawn items that were withheld after the draw was known, whole.

    Returns:
        Probabilities in the broadcast shape.

    Raises:
        DetectionDomainError: An argument is out of range, or more items are marked or drawn than there are.
    """
    checked = together(
        whole("population", population, 1),
        whole("marked", marked, 0),
        whole("drawn", drawn, 0),
        share("shown", shown),
        whole("withheld", withheld, 0),
    )
    total, some, taken, _, hidden = checked
    refuse(taken > total, taken, lambda v: f"{float(v):.0f} items cannot be drawn from fewer", InfeasibleError)
    refuse(some > total, some, lambda v: f"{float(v):.0f} items cannot be marked among fewer", InfeasibleError)
    flat = [array.reshape(-1) for array in checked]
    found = np.concatenate(
        [np.empty(0)]
        + [_seen(*(array[start : start + _BLOCK] for array in flat[:4])) for start in range(0, flat[0].size, _BLOCK)]
    )
    for place in np.flatnonzero(hidden):
        found[place] = more_marks_than(*(float(array[place]) for array in flat))
    return plain(found.reshape(total.shape))


def _seen(total: FloatArray, marked: FloatArray, drawn: FloatArray, weight: FloatArray) -> FloatArray:
    """Returns the probabilities of one block; all arrays have one dimension."""
    # The circle may be gone round for the drawn items or for those left: the fewer, the smaller the phases.
    fewer = np.minimum(drawn, total - drawn)
    sigma = np.sqrt(fewer * (1 - fewer / total))
    reach = np.where(sigma < _WHOLE_CIRCLE, np.pi, _WIDTH / np.maximum(sigma, 1.0))
    angle = reach[:, None] * (np.arange(_NODES) + 0.5) / _NODES
    turned = -2 * np.sin(angle / 2) ** 2 + 1j * np.sin(angle)  # exp(i angle) - 1 without cancellation
    part = (fewer / total)[:, None] * turned
    bell = total[:, None] * special.log1p(part) - 1j * fewer[:, None] * angle
    rate = (drawn / total)[:, None]
    # x / (1 + x) on the circle, in terms of whichever of the two was chosen above.
    chance = np.where((drawn <= total - drawn)[:, None], rate * (1 + turned), rate) / (1 + part)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        ratio = marked[:, None] * special.log1p(-weight[:, None] * chance)
        small = np.exp(bell) * -special.expm1(ratio)
        large = np.exp(bell) - np.exp(bell + ratio)  # where exp(ratio) alone would overflow
        numerator = np.where(ratio.real > 1, large, small).real.sum(axis=1)
        denominator = np.exp(bell).real.sum(axis=1)
    certain = (marked + drawn > total) & (weight == 1)  # a marked item cannot be avoided
    found = np.where(certain, 1.0, np.clip(numerator / denominator, 0.0, 1.0))
    return np.where((marked == 0) | (drawn == 0) | (weight == 0), 0.0, found)


def least_drawn(
    *, population: Numbers, marked: Numbers, shown: Numbers, wanted: Numbers, withheld: Numbers = 0
) -> FloatArray:
    """Returns the least number of draws that shows a mark with probability `wanted`.

    Args:
        population: Number of items (N), whole.
        marked: Number of marked items (n), whole, at least 1.
        shown: Probability that a drawn marked item shows its mark (w), 0 to 1.
        wanted: Probability to reach, between 0 and 1.
        withheld: Drawn items that may be withheld after the draw is known, whole.

    Returns:
        Whole numbers as float64, in the broadcast shape.

    Raises:
        DetectionDomainError: As `seen_probability`, or drawing every item is not enough.
    """
    total, some, weight, aim, hidden = together(
        whole("population", population, 1),
        whole("marked", marked, 1),
        share("shown", shown),
        probability("wanted", wanted),
        whole("withheld", withheld, 0),
    )
    aim = aim * ENOUGH

    def seen(draws: FloatArray) -> FloatArray:
        return np.asarray(seen_probability(population=total, marked=some, drawn=draws, shown=weight, withheld=hidden))

    most = seen(total)
    if np.any(most < aim):
        raise InfeasibleError(
            f"drawing every item shows a mark with probability {float(most[most < aim].flat[0]):.6g} only; a higher "
            "shown probability (more snapshots, better replays), fewer withheld items or a lower wanted probability is "
            "needed"
        )
    return plain(least_whole(lambda draws: np.asarray(seen(draws) >= aim), np.zeros_like(total), total))
