"""How many bits each scheme takes for an output, given how many differences it must be able to name."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.special import gammaln, logsumexp

from benchmarks.sketches.capacity import FAILURES, Model, least
from weighbridge.numerics.sketches.codec import LEAST_DEGREE, VALUE_BITS, Capacity, degree_of

HEADER = 24
BLOCKS = tuple(1 << k for k in range(6, 22))
_PEELED = {3: 0.818, 4: 0.772, 5: 0.702, 6: 0.637, 7: 0.581, 8: 0.534, 9: 0.494}
"""Keys a cell up to which tables with so many hashes are peeled, if they are large."""


def floor(candidates: int, differing: int, values: float) -> float:
    """Bits that say which of the candidates differ and how: what one would send who knew the replayer's own values."""
    subset = float(gammaln(candidates + 1) - gammaln(differing + 1) - gammaln(candidates - differing + 1))
    return math.log2(candidates + 1) + subset / math.log(2) + values


def floor_of_capacity(candidates: int, differences: int) -> float:
    """Bits that any scheme takes that can name up to so many of the candidates, whichever they are."""
    count = np.arange(min(differences, candidates) + 1)
    logs = gammaln(candidates + 1) - gammaln(count + 1) - gammaln(candidates - count + 1)
    return float(logsumexp(logs)) / math.log(2)


def two_stages(elements: int, capacity: Capacity) -> float:
    """Parities by a binary code, what is left by Reed-Solomon (`weighbridge.numerics.sketches.codec`)."""
    return degree_of(elements) * (capacity.parities + 2 * capacity.values) + HEADER


def reed_solomon(elements: int, differences: int) -> float:
    """Power sums of whole values over the whole output: two words for each difference."""
    return 2 * degree_of(elements) * differences + HEADER


def reed_solomon_blocks(model: Model, place: int, elements: int, block: int, margin: float) -> float:
    """The same over blocks of neighbours, each decoded by itself."""
    blocks = -(-elements // block)
    # Blocks of one output share its mean, so each has the spread of an output.
    capacity = least(model.means[place][0] * margin / blocks, model.spreads[0], FAILURES / (blocks * len(model.means)))
    return 2 * blocks * capacity * max(LEAST_DEGREE, min(block, elements).bit_length()) + HEADER


def iblt(elements: int, differences: int, outputs: int) -> float:
    """An invertible Bloom lookup table; a cell has a position and a value, and the number of hashes is the best.

    A cell needs no check of its own: a position must be a candidate that hashes to the cell. The number of cells is the
    least for which two or three keys that share all their cells are rare enough, and not below the threshold of
    peeling: a lower bound on what a table takes.
    """
    return _cells(differences, FAILURES / outputs) * (elements.bit_length() + VALUE_BITS) + HEADER


@cache
def _cells(keys: int, failures: float) -> int:
    if not keys:
        return 0
    best = 1 << 62
    for hashes, threshold in _PEELED.items():
        cells = max(hashes, math.ceil(keys / threshold))
        while cells < best:
            choices = (cells / hashes) ** hashes  # one cell of each part
            if math.comb(keys, 2) / choices + math.comb(keys, 3) / choices**2 <= failures:
                best = cells
            cells = math.ceil(cells * 1.02)
    return best
