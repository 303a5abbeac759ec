"""How many marks a draw shows, when a party may hide the worst of them afterwards.

Of N items n are marked and d different ones are drawn. Each of the J marked ones among them shows its mark with
probability q, independently; S of them do. Someone who knows the draw, and which drawn items show a mark, withholds w
of them. What is left shows nothing if S <= w and something if S > w. For q = 1 that is Pr(J > w).

J is hypergeometric. Its probabilities follow from each other by exact ratios, outwards from the most likely value, so
that no logarithm of a large factorial is needed; 60 standard deviations on either side leave out nothing that float64
could show.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from analysis.domain import FloatArray

_REACH = 60.0  # standard deviations on either side of the most likely value
_MORE = 100.0  # and so many items, where the standard deviation is small


def drawn_marks(total: float, marked: float, drawn: float) -> tuple[FloatArray, FloatArray]:
    """Returns the numbers of marked items that a draw may have, and the probability of each.

    Args:
        total: Items (N), whole, at least 1.
        marked: Marked ones (n), whole, at most `total`.
        drawn: Different items drawn (d), whole, at most `total`.

    Returns:
        Whole numbers in ascending order, and probabilities that sum to 1; both float64 of one shape.
    """
    least, most = max(0.0, marked + drawn - total), min(marked, drawn)
    mode = min(max(np.floor((drawn + 1) * ((marked + 1) / (total + 2))), least), most)
    spread = np.sqrt(drawn * (marked / total) * (1 - marked / total) * ((total - drawn) / max(total - 1, 1)))
    reach = np.ceil(_REACH * spread + _MORE)
    counts = np.arange(max(least, mode - reach), min(most, mode + reach) + 1)
    here = counts[:-1]
    up = np.log((marked - here) / (here + 1)) + np.log((drawn - here) / (total - marked - drawn + here + 1))
    place = int(mode - counts[0])
    logs = np.concatenate([-np.cumsum(up[:place][::-1])[::-1], [0.0], np.cumsum(up[place:])])
    weights = np.exp(logs)
    return counts, weights / weights.sum()


def shown_marks(total: float, marked: float, drawn: float, shown: float, most: int) -> FloatArray:
    """Returns the probabilities that 0, 1, ..., `most` marks are shown; float64 of shape (most + 1,).

    Args:
        total: Items (N), whole, at least 1.
        marked: Marked ones (n), whole, at most `total`.
        drawn: Different items drawn (d), whole, at most `total`.
        shown: Probability that a drawn marked item shows its mark (q), 0 to 1.
        most: The largest number of interest.
    """
    counts, chances = drawn_marks(total, marked, drawn)
    numbers = np.arange(most + 1)
    if shown == 1:
        found = np.zeros(most + 1)
        kept = counts <= most
        found[counts[kept].astype(np.int64)] = chances[kept]
        return found
    from scipy import stats  # noqa: PLC0415 (takes half a second, and each start of a Verifier would)

    return np.asarray(stats.binom.pmf(numbers[:, None], counts[None], shown) @ chances)


def more_marks_than(total: float, marked: float, drawn: float, shown: float, withheld: float) -> float:
    """Returns Pr(S > w), to about 12 digits even where it is tiny.

    Args:
        total: Items (N), whole, at least 1.
        marked: Marked ones (n), whole, at most `total`.
        drawn: Different items drawn (d), whole, at most `total`.
        shown: Probability that a drawn marked item shows its mark (q), 0 to 1.
        withheld: Drawn items that are withheld by someone who sees which of them show a mark (w), whole.
    """
    counts, chances = drawn_marks(total, marked, drawn)
    kept = counts > withheld
    if shown == 1:
        return float(min(1.0, chances[kept].sum()))
    return float(min(1.0, special.betainc(withheld + 1, counts[kept] - withheld, shown) @ chances[kept]))
