"""How many differences a sketch names: fixed by the elements of a block and by the share that is expected to differ.

A recording machine cannot know where others will round otherwise. It expects a share of 2^-(17 - scale) of all elements
to differ, and takes the number for negative binomial: Poisson, with a mean that varies from output to output. Both come
from the experiment in docs/benchmarks.md ("Sketches in place of logs"): there 9.2e-5 of the elements of the worst
operation differed, one in eleven of them by more than the first stage of the codec explains.

Nothing of this is read from a sketch but its scale. So what a hostile one can make a replayer compute is bounded.
"""

from __future__ import annotations

import math
from functools import lru_cache

from weighbridge.numerics.sketches.codec import Capacity

BLOCK = 1 << 19
"""Elements of a block: a larger output has one sketch for each of its blocks."""

SCALE = 4
"""What a Recorder takes: 1.2e-4 of all elements, 1.3 times what the worst operation of the experiment had."""

MOST_SCALE = 6
"""The largest scale, 4.9e-4: it bounds what a sketch takes and what decoding it costs."""

_REST = 0.1
"""Share of the differences that the first stage leaves."""
_SPREAD = 0.03
"""f of the negative binomial: variance = mean + f * mean^2."""
_FAILURE = 1e-6 / (2 * 256)
"""Probability that one of the stages of one block cannot name all differences: 1e-6 for a step of 256 blocks."""


@lru_cache(maxsize=4096)
def capacity(elements: int, scale: int) -> Capacity:
    """Returns what the sketch of a block of so many elements can name.

    Args:
        elements: At least 1, at most `BLOCK`.
        scale: 0 to `MOST_SCALE`.
    """
    mean = elements * 2.0 ** (scale - 17)
    # There is one table for each capacity, so capacities are few.
    t, u = (_rung(least(each)) for each in (mean, mean * _REST))
    t, u = min(t, elements), min(u, elements)
    # Where little differs, the second stage alone is shorter.
    return Capacity(0, t) if t <= 2 * u else Capacity(t, u)


def least(mean: float) -> int:
    """Returns the least count that a negative binomial of this mean exceeds with a probability of at most 2e-9."""
    size = 1 / _SPREAD
    going = _SPREAD * mean / (1 + _SPREAD * mean)
    probability = math.exp(-size * math.log1p(_SPREAD * mean))
    count, below = 0, probability
    while 1 - below > _FAILURE:
        probability *= (count + size) / (count + 1) * going
        count += 1
        below += probability
    return count


def _rung(count: int) -> int:
    """Returns the next number of those with at most three significant bits."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step
