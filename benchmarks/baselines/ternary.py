"""The dense code of the published rounding log: one ternary digit for every rounded element, five digits to a byte.

3^5 = 243 fits into a byte, so an element takes 1.6 bits. Digits of a byte weigh 1, 3, 9, 27 and 81, the first the
least; unused digits of the last byte are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weighbridge.core.errors import LogError, UsageError

DOWN, CLEAR, UP = 0, 1, 2
"""Rounded down near a boundary; far from any boundary; rounded up near a boundary."""

PER_BYTE = 5
_WEIGHTS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
_LIMIT = 3**PER_BYTE


def size(count: int) -> int:
    """Returns the number of bytes that `count` elements take."""
    return -(-count // PER_BYTE)


def encode(codes: NDArray[np.uint8]) -> bytes:
    """Returns the code of a tensor.

    Args:
        codes: uint8, flat, each `DOWN`, `CLEAR` or `UP`.

    Raises:
        UsageError: Another value is among them.
    """
    if codes.ndim != 1 or (codes.size and int(codes.max()) > UP):
        raise UsageError("the codes of a ternary log are a flat array of 0, 1 and 2; flatten and classify first")
    digits = np.zeros(size(codes.size) * PER_BYTE, dtype=np.uint8)
    digits[: codes.size] = codes
    packed = np.zeros(size(codes.size), dtype=np.uint8)
    for place, weight in enumerate(_WEIGHTS):  # column by column: a matrix product of bytes is slower
        packed += digits[place::PER_BYTE] * weight
    return packed.tobytes()


def decode(data: bytes, count: int) -> NDArray[np.uint8]:
    """Returns the codes of a tensor of `count` elements, uint8.

    Raises:
        LogError: The bytes are too few or too many, one is no code, or digits after the last element are not 0.
    """
    if len(data) != size(count):
        raise LogError(
            f"a ternary log of {count} elements has {size(count)} bytes, this one {len(data)}; ask for it again"
        )
    packed = np.frombuffer(data, dtype=np.uint8)
    if packed.size and int(packed.max()) >= _LIMIT:
        raise LogError("a byte of the ternary log is above 242, which is no five digits; ask for the log again")
    digits = np.empty((packed.size, PER_BYTE), dtype=np.uint8)
    rest = packed
    for place in range(PER_BYTE):
        rest, digits[:, place] = np.divmod(rest, 3)
    flat = digits.reshape(-1)
    if flat[count:].any():
        raise LogError("digits after the last element of the ternary log are not zero; ask for the log again")
    return flat[:count]
