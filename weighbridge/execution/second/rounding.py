"""Rounding to float32, checksums, and what a rounding log chooses, from docs/formats/rounding-log.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.execution.second.memory import Array

Float32s = npt.NDArray[np.float32]

NAN = 0x7FC00000
_WEIGHT, _LOW, _ALL = 0x9E3779B1, 0xFFFFFFFF, (1 << 64) - 1
REACH = 2 * (1 + 2.0**-20)
"""How many bounds from the replayer's wide value the recorder's can lie."""
_PATTERNS = {2: (np.uint16, 0x7E00), 4: (np.uint32, NAN), 8: (np.uint64, 0x7FF8 << 48)}


def canonical(x: Array) -> Array:
    """Returns a copy in row-major order whose NaN are all the canonical one."""
    out = np.array(x, order="C")
    if out.dtype.kind == "f":
        words, pattern = _PATTERNS[out.itemsize]
        out.view(words)[np.isnan(out)] = pattern
    return out


def to_float32(x: Array) -> Float32s:
    """Rounds to nearest; zeros become +0 and NaN the canonical one."""
    with np.errstate(over="ignore", invalid="ignore"):
        return canonical(x.astype(np.float32) + np.float32(0))


def checksum(flat: Float32s) -> int:
    """Returns the sum modulo 2^64 of the bit patterns, each times the weight of its place."""
    bits = np.ascontiguousarray(flat).view(np.uint32).astype(np.uint64)
    places = np.arange(bits.size, dtype=np.uint64)
    weights = ((places * np.uint64(_WEIGHT)) & np.uint64(_LOW)) | np.uint64(1)
    return int(np.sum(bits * weights, dtype=np.uint64))


def ordered(value: Any) -> int:
    """Maps a float32 number to an integer, in the order of numbers; both zeros to 0."""
    bits = int(np.float32(value).view(np.uint32))
    return -(bits & 0x7FFFFFFF) if bits >> 31 else bits


def number(place: int) -> np.float32:
    """Inverse of `ordered`."""
    return np.uint32(0x80000000 | -place if place < 0 else place).view(np.float32)


def _float32(value: float) -> np.float32:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.float32(np.float64(value))


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rounding log says of one element: so many low bits of its place in the order, or all of it (width 0)."""

    width: int
    bits: int

    def choose(self, wide: float, bound: float) -> np.float32 | None:
        """Returns the only value that a conforming recorder can have meant, or None if it can have meant none.

        Args:
            wide: The wide value here.
            bound: The bound on its error.
        """
        if not (math.isfinite(wide) and math.isfinite(bound)):
            return self._whole(wide)
        low, high = (ordered(_float32(wide + REACH * side)) for side in (-bound, bound))
        count = 1 << self.width
        if not 1 <= self.width <= 33 or high - low >= count:
            return None
        place = low + (self.bits - low) % count
        return number(place) if place <= high else None

    def _whole(self, wide: float) -> np.float32 | None:
        if self.width != 0 or self.bits > _LOW or self.bits == 0x80000000:
            return None
        value: np.float32 = np.uint32(self.bits).view(np.float32)
        if np.isnan(value) and self.bits != NAN:
            return None
        if math.isfinite(wide):  # only the bound is not: the value or a neighbour
            return value if abs(ordered(value) - ordered(_float32(wide))) <= 1 else None
        return None if np.isfinite(value) else value
