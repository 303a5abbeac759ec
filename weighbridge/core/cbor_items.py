"""Counting the items of CBOR before any of them becomes an object.

A byte of CBOR can become a hundred bytes of Python. So what is large is counted first, in one pass over the bytes that
allocates nothing. `bounded` imports this module only then: compiling loops takes Numba.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weighbridge.core.jit import compiled

MALFORMED = -1


@compiled()
def count(data: NDArray[np.uint8], most: int) -> int:
    """Counts CBOR items (RFC 8949, section 3): a number, a text, an array, a map and each of their parts are one each.

    Args:
        data: Any bytes.
        most: Where to stop counting.

    Returns:
        How many there are; `most + 1` if there are more; `MALFORMED` if lengths are indefinite, reserved or lead past
        the end.
    """
    size, at, items = data.size, 0, 0
    while at < size:
        if items == most:
            return most + 1
        items += 1
        major, short = int(data[at]) >> 5, int(data[at]) & 31
        at += 1
        if short > 27:
            return MALFORMED
        wide = 0 if short < 24 else 1 << (short - 24)
        if wide > size - at:
            return MALFORMED
        if major == 2 or major == 3:  # bytes and text are followed by themselves
            length = 0 if wide else short
            for place in range(at, at + wide):
                length = length * 256 + data[place]
            at += wide
            if length < 0 or length > size - at:  # eight bytes may be more than a signed number holds
                return MALFORMED
            at += length
        else:
            at += wide
    return items
