"""How probably a probabilistic error bound is too small, and how probably an honest run is accused of that.

A replay compares two machines' results of one rounding, the recorder's and its own. Each lies within its bound, or the
bound failed. Where neither fails, no log entry is inadmissible and no unlogged element comes out otherwise. So an
honest run is accused for its roundings only if one of twice as many bounds failed. That is an upper limit: a result
must also lie that close to a boundary, and what `weighbridge.numerics.rounding.contested.explainable` explains makes a
replay inconclusive and accuses no party.

Readers of reports use this module, so it loads no PyTorch.
"""

from __future__ import annotations

import math

SPREAD = 14.0
"""Standard deviations that probabilistic bounds allow: lambda in Higham and Mary 2019."""
MOST_TERMS = 2.0**40
"""Terms that the sums of an element have at most: positions in a result are below that too."""
_U = 2.0**-53
_SURE = 1 << 200
"""So many bounds that one of them fails, for all that is known; numbers in answers and reports may be larger."""


def failure(rounded: int) -> float:
    """Returns the probability, at most, that one of so many probabilistic bounds is too small for one machine's result.

    2 exp(-lambda^2 (1 - u)^2 / 2) for each term of each sum (N. J. Higham and T. Mary, "A New Approach to Probabilistic
    Rounding Error Analysis", SIAM J. Sci. Comput. 41 (2019), theorem 3.1), of which an element has at most
    `MOST_TERMS`. They add up whether or not they are independent of each other; that roundings err independently with
    mean zero within a sum is assumed.

    Args:
        rounded: Rounded elements.
    """
    most = min(max(0, rounded), _SURE)
    return min(1.0, most * MOST_TERMS * 2 * math.exp(-((SPREAD * (1 - _U)) ** 2) / 2))


def false_accusation(rounded: int) -> float:
    """Returns the probability, at most, that replays of an honest run accuse it because such a bound is too small.

    Args:
        rounded: Elements that the replays rounded within probabilistic bounds.
    """
    return failure(2 * max(0, rounded))
