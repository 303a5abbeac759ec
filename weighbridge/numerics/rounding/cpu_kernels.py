"""The rounding pass on the CPU: one trip over memory that rounds, canonicalises, checks and finds contested elements.

Every kernel walks a float64 array `x` in physical order and writes float32 `out`. An element is *contested* iff
`float32(x - 2e) != float32(x + 2e)` for its bound e, or x or e is not finite. A block's contested elements are marked
while it is rounded and listed while it is in the cache. The checksum is the sum modulo 2^64 of `bits * weight(index)`;
being an integer sum it does not depend on the order of evaluation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.core.jit import compiled
from weighbridge.core.pointers import array_at, pointer

BLOCK = 2048
SLACK = 1.0 + 2.0**-20
"""Allowance for evaluating a bound in floating point, which Prover and Verifier do each with their own operands."""
REACH = 2.0 * SLACK
"""How many bounds away from a conforming result another one may lie."""
WEIGHT = 0x9E3779B1
CANONICAL_NAN = 0x7FC00000

Array = npt.NDArray[Any]
Strides = tuple[int, int, int]
_jit = compiled(fastmath=False, error_model="numpy")
"""No reassociation, no contraction."""


_LOW = np.uint64(0xFFFFFFFF)
_SIGNLESS = np.uint64(0x7FFFFFFF_7FFFFFFF)
_TO_SIGN = np.uint64(0x007FFFFF_007FFFFF)
"""What carries the magnitude of a NaN, and of nothing else, into the bit of the sign."""
_SIGNS = np.uint64(0x80000000_80000000)


@_jit
def finish(bits: Array, first: int) -> np.uint64:
    """Canonicalises NaN in the block of bit patterns that starts at index `first`; returns its part of the checksum."""
    # Two patterns a word: the processor multiplies the lower halves of words, and so wastes no lane. Slices that start
    # at 0 let LLVM see that no index is negative, which is what makes these loops vector code.
    whole = bits.size // 2 * 2
    words = bits[:whole].view(np.uint64)
    w = np.uint32(first) * np.uint32(WEIGHT)
    even, odd = np.uint64(w), np.uint64(np.uint32(w + np.uint32(WEIGHT)))
    step = np.uint64((2 * WEIGHT) & 0xFFFFFFFF)
    total, bad = np.uint64(0), np.uint64(0)
    for i in range(words.size):
        pair = words[i]
        total += (pair & _LOW) * (((even + np.uint64(i) * step) & _LOW) | np.uint64(1))
        total += (pair >> np.uint64(32)) * (((odd + np.uint64(i) * step) & _LOW) | np.uint64(1))
        bad |= (pair & _SIGNLESS) + _TO_SIGN
    if whole < bits.size:
        b = np.uint64(bits[whole])
        total += b * np.uint64(np.uint32(w + np.uint32(whole) * np.uint32(WEIGHT)) | np.uint32(1))
        bad |= (b & _SIGNLESS) + _TO_SIGN
    return total if bad & _SIGNS == np.uint64(0) else _without_nan(bits, w)


@_jit
def _without_nan(bits: Array, w: np.uint32) -> np.uint64:
    total = np.uint64(0)
    for i in range(bits.size):
        if (bits[i] & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
            bits[i] = np.uint32(CANONICAL_NAN)
        total += np.uint64(bits[i]) * np.uint64(np.uint32(w + np.uint32(i) * np.uint32(WEIGHT)) | np.uint32(1))
    return total


@_jit
def _round_block(x: Array, rel: float, absolute: float, f: float, e: Array, out: Array, odd: Array) -> int:
    """Rounds one block, marks its contested elements in `odd` and returns their number.

    The bound is rel*|x| + absolute + f*e; `e` may be empty, which is zero.
    """
    contested = 0
    if e.size == 0:
        for i in range(x.size):
            v = x[i]
            d = REACH * (rel * abs(v) + absolute)
            out[i] = np.float32(v) + np.float32(0.0)
            mark = (np.float32(v - d) != np.float32(v + d)) | (v - v != 0.0)
            odd[i] = mark
            contested += mark
    else:
        for i in range(x.size):
            v = x[i]
            d = REACH * (rel * abs(v) + absolute + f * e[i])
            out[i] = np.float32(v) + np.float32(0.0)
            mark = (np.float32(v - d) != np.float32(v + d)) | (v - v != 0.0) | (d - d != 0.0)
            odd[i] = mark
            contested += mark
    return contested


@_jit
def _list_block(
    x: Array, first: int, rel: float, absolute: float, f: float, e: Array, odd: Array, k: int,
    positions: Array, bounds: Array,
) -> int:  # fmt: skip
    """Writes the marked elements of the block that starts at `first` from place `k` on; returns the next free place."""
    words = odd.view(np.uint64)  # most groups of eight have none
    for w in range((x.size + 7) // 8):
        if words[w] != 0:
            for i in range(8 * w, min(8 * w + 8, x.size)):
                if odd[i] != 0:
                    positions[k] = first + i
                    bounds[k] = rel * abs(x[i]) + absolute + (f * e[i] if e.size > 0 else 0.0)
                    k += 1
    return k


@_jit
def pass_dense(
    x: Array, rel: float, absolute: float, e: Array, out: Array, bits: Array, positions: Array, bounds: Array
) -> tuple[np.uint64, int]:
    """Rounds with e = rel*|x| + absolute + e[i]; an empty `e` is zero.

    Args:
        x: Flat float64 values in physical order.
        rel: Relative part of the bound.
        absolute: Absolute part of the bound.
        e: Float64 bounds laid out like `x`, or empty.
        out: Flat float32 results.
        bits: `out` viewed as uint32.
        positions: Receives the physical indices (int64) of contested elements, as many blocks of them as fit.
        bounds: Receives their bounds (float64).

    Returns:
        The checksum, and the number of contested elements; if it is larger than `positions`, the lists are incomplete.
    """
    n = x.size
    total = np.uint64(0)
    odd = np.zeros(BLOCK, dtype=np.uint8)
    found = listed = start = 0
    while start < n:
        stop = min(n, start + BLOCK)
        count = _round_block(x[start:stop], rel, absolute, 1.0, e[start:stop], out[start:stop], odd)
        if count > 0:
            if listed == found and found + count <= positions.size:
                listed = _list_block(
                    x[start:stop], start, rel, absolute, 1.0, e[start:stop], odd, found, positions, bounds
                )
            found += count
        total += finish(bits[start:stop], start)
        start = stop
    return total, found


@_jit
def _expand(
    start: int, stop: int, rows: int, columns: int, left: Array, ls: Strides, right: Array, rs: Strides, e: Array
) -> None:
    """Writes the bounds left*right of physical indices start..stop of a (batches, rows, columns) array into `e`."""
    k = start
    while k < stop:  # one run of a row at a time, so that the inner loops are straight
        j0 = k % columns
        row = k // columns
        b = row // rows
        i = row % rows
        run = min(stop - k, columns - j0)
        p = b * ls[0] + i * ls[1] + j0 * ls[2]
        q = b * rs[0] + i * rs[1] + j0 * rs[2]
        target = e[k - start : k - start + run]
        if ls[2] == 0 and rs[2] == 1:
            f = left[p]
            source = right[q : q + run]
            for j in range(run):
                target[j] = f * source[j]
        elif ls[2] == 1 and rs[2] == 0:
            f = right[q]
            source = left[p : p + run]
            for j in range(run):
                target[j] = source[j] * f
        elif ls[2] == 0 and rs[2] == 0:
            f = left[p] * right[q]
            for j in range(run):
                target[j] = f
        else:
            for j in range(run):
                target[j] = left[p + j * ls[2]] * right[q + j * rs[2]]
        k += run


@_jit
def pass_rank_one(
    x: Array, rel: float, absolute: float, rows: int, columns: int,
    left: Array, ls: Strides, right: Array, rs: Strides,
    out: Array, bits: Array, positions: Array, bounds: Array,
) -> tuple[np.uint64, int]:  # fmt: skip
    """Rounds with e = rel*|x| + absolute + left*right over (batches, rows, columns), bounds made block by block.

    The longer rows of a product with a column of factors are blocks of their own: then nothing need be expanded.
    """
    n = x.size
    if ls[2] == 1 and rs[2] == 0:
        left, ls, right, rs = right, rs, left, ls
    straight = columns >= 128 and ls[2] == 0 and (rs[2] == 1 or rs[2] == 0)
    none = np.empty(0, dtype=np.float64)
    total = np.uint64(0)
    odd = np.zeros(BLOCK, dtype=np.uint8)
    scratch = np.empty(BLOCK, dtype=np.float64)
    found = listed = start = finished = 0
    while start < n:
        if straight:
            j = start % columns
            stop = start + min(BLOCK, columns - j)
            b, i = divmod(start // columns, rows)
            f, q, least = left[b * ls[0] + i * ls[1]], b * rs[0] + i * rs[1], absolute
            if rs[2] == 1:
                e = right[q + j : q + j + stop - start]
            else:
                e, least = none, absolute + f * right[q]
        else:
            stop = min(n, start + BLOCK)
            f, e, least = 1.0, scratch[: stop - start], absolute
            _expand(start, stop, rows, columns, left, ls, right, rs, e)
        count = _round_block(x[start:stop], rel, least, f, e, out[start:stop], odd)
        if count > 0:
            if listed == found and found + count <= positions.size:
                listed = _list_block(x[start:stop], start, rel, least, f, e, odd, found, positions, bounds)
            found += count
        start = stop
        if start - finished >= BLOCK or start == n:  # short rows together
            total += finish(bits[finished:start], finished)
            finished = start
    return total, found


@_jit
def _ordered(value: float) -> np.int64:
    """Maps a float64, rounded to float32, to an integer in the order of the values; both zeros to 0."""
    pattern = np.float32(value).view(np.int32)
    return np.int64(pattern) if pattern >= 0 else -np.int64(pattern & np.int32(0x7FFFFFFF))


@_jit
def encode(x: Array, e: Array, span: float, widths: Array, bits: Array) -> None:
    """Writes widths (uint8) and low bits (uint64) of the log entries for wide values `x` with bounds `e`.

    Args:
        x: Float64 values.
        e: Their bounds, float64.
        span: How many bounds apart the ends of the range are that the bits must tell apart, to either side.
        widths: Receives the number of bits; 0 where `x` or its bound is not finite, and the whole value is written.
        bits: Receives the low bits of the rounded value as an ordered integer, or its float32 pattern.
    """
    for i in range(x.size):
        v, d = x[i], span * e[i]
        if v - v == 0.0 and e[i] - e[i] == 0.0:
            apart = _ordered(v + d) - _ordered(v - d)
            k = np.int64(1)
            while (np.int64(1) << k) - 1 < apart:
                k += 1
            widths[i] = k
            bits[i] = np.uint64(_ordered(v) & ((np.int64(1) << k) - 1))
        else:
            widths[i] = 0
            pattern = np.float32(np.float32(v) + np.float32(0.0)).view(np.uint32)
            nan = (pattern & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            bits[i] = np.uint64(CANONICAL_NAN) if nan else np.uint64(pattern)


@_jit
def square_root(x: Array, out: Array) -> None:
    """Writes the correctly rounded square roots of float32 values: the processor's instruction, not a library's."""
    for i in range(x.size):
        out[i] = np.sqrt(x[i])


@_jit
def pass_plain(x: Array, out: Array, bits: Array) -> np.uint64:
    """Rounds without looking for contested elements: what a replay does before it follows the log."""
    n = x.size
    total = np.uint64(0)
    start = 0
    while start < n:
        stop = min(n, start + BLOCK)
        source, target = x[start:stop], out[start:stop]
        for i in range(stop - start):
            target[i] = np.float32(source[i]) + np.float32(0.0)
        total += finish(bits[start:stop], start)
        start = stop
    return total


@_jit
def pass_exact(bits: Array) -> np.uint64:
    """Canonicalises NaN in place and returns the checksum of an array of float32 bit patterns."""
    n = bits.size
    total = np.uint64(0)
    start = 0
    while start < n:
        stop = min(n, start + BLOCK)
        total += finish(bits[start:stop], start)
        start = stop
    return total


@_jit
def round_at(source: int, target: int, n: int) -> np.uint64:
    """Does what `pass_plain` does with `n` elements at two addresses."""
    out = array_at(pointer(target), n, np.float32)
    return pass_plain(array_at(pointer(source), n, np.float64), out, array_at(pointer(target), n, np.uint32))


def weights(index: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Returns the checksum weight of each physical index."""
    w = (index.astype(np.uint64) * np.uint64(WEIGHT)) & np.uint64(0xFFFFFFFF)
    return w | np.uint64(1)
