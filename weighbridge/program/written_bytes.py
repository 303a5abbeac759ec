"""Which bytes of a storage a program wrote, by arithmetic on sizes and strides.

References are claims of a tape: a few bytes of it can name 2^40 elements. So nothing here takes time or memory by the
number of elements, only by the number of references and, up to a limit, of contiguous runs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.transcript.tape import DTYPES, Ref

MOST_RUNS = 1 << 14
"""Runs that are looked at one by one, for each storage; beyond them, bytes are counted only."""

_MOST_UNIONS = 32


def contiguous(ref: Ref) -> tuple[int, list[tuple[int, int]]]:
    """Takes a reference apart.

    Returns:
        Elements of one contiguous run, and the (stride, length) of the dimensions along which runs repeat, strides
        ascending, in elements; no run if the reference has no elements. Dimensions of one element or of stride 0
        repeat nothing. Runs may overlap.
    """
    _, _, shape, stride, _ = ref
    if 0 in shape:
        return 0, []
    run, outer = 1, list[tuple[int, int]]()
    for step, length in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1 and s):
        if step <= run and not outer:
            run += step * (length - 1)
        else:
            outer.append((step, length))
    return run, outer


def whole(ref: Ref, size: int) -> bool:
    """Whether a reference covers a storage of `size` bytes without gaps."""
    run, outer = contiguous(ref)
    return not size or (not outer and not ref[4] and run * DTYPES[ref[1]].itemsize == size)


class Coverage:
    """The bytes of one storage that some references cover together."""

    def __init__(self, size: int, *, doubted: bool = False) -> None:
        """Begins with nothing.

        Args:
            size: Bytes of the storage.
            doubted: Whether a storage of which too much would have to be looked at counts as not covered.
        """
        self._beyond = not doubted
        self._size = size
        self._seen: set[tuple[Any, ...]] = set()
        self._starts: list[NDArray[np.int64]] = []
        self._ends: list[NDArray[np.int64]] = []
        self._runs = self._counted = self._unions = 0

    def add(self, ref: Ref) -> bool:
        """Adds what a reference covers.

        Of more runs than are looked at one by one, and of references that keep covering what others did, only the
        number of bytes counts: such a storage counts as covered once as many bytes were written as it has.

        Returns:
            Whether the storage is covered now.
        """
        if whole(ref, self._size):
            return True
        if ref[1:] in self._seen:
            return False
        self._seen.add(ref[1:])
        item = DTYPES[ref[1]].itemsize
        run, outer = contiguous(ref)
        count = math.prod(length for _, length in outer) if run else 0
        self._counted += min(count * run * item, self._size)
        if self._runs + count <= MOST_RUNS:
            starts = np.array([ref[4] * item], dtype=np.int64)[:count]
            for step, length in outer:
                starts = np.add.outer(starts, np.arange(length, dtype=np.int64) * (step * item)).ravel()
            self._starts.append(starts)
            self._ends.append(starts + run * item)
        self._runs += count
        if self._counted < self._size:
            return False
        if self._runs > MOST_RUNS or self._unions >= _MOST_UNIONS:
            return self._beyond
        return self._union()

    def _union(self) -> bool:
        """Counts exactly what is covered."""
        self._unions += 1
        starts, ends = np.concatenate(self._starts), np.concatenate(self._ends)
        order = np.argsort(starts, kind="stable")
        starts, reached = starts[order], np.maximum.accumulate(ends[order])
        first = np.concatenate(([True], starts[1:] > reached[:-1]))
        last = np.concatenate((first[1:], [True]))
        self._starts, self._ends = [starts[first]], [reached[last]]
        self._counted = int((self._ends[0] - self._starts[0]).sum())
        return self._counted >= self._size
