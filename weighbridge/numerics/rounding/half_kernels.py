"""Results of 16 bits on the CPU: one trip over memory that rounds, makes NaN canonical and takes the checksum.

Bit patterns are computed with integers, so the compiler makes vector code for processors without such conversions too.
Memory is given by address: NumPy has no bfloat16.
"""

from __future__ import annotations

import numpy as np
import torch

from weighbridge.core.jit import compiled
from weighbridge.core.pointers import array_at, pointer
from weighbridge.numerics.rounding.cpu_kernels import BLOCK, WEIGHT, Array

FLOAT32, BFLOAT16, FLOAT16 = range(3)
CODES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
"""What loops know formats by."""

_jit = compiled(fastmath=False, error_model="numpy")

_LEAST = np.float32(2.0**-14)
"""The least normal number of float16."""
_LOW, _HALF, _ONE = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF), np.uint64(1)


@_jit
def _to_bfloat16(x: Array, out: Array, drop: int) -> None:
    unwanted = np.uint32(drop)
    for i in range(x.size):
        u = np.float32(x[i]).view(np.uint32)
        odd = np.uint32(np.uint32(u >> np.uint32(16)) & np.uint32(1))
        r = np.uint32(np.uint32(u + np.uint32(np.uint32(0x7FFF) + odd)) >> np.uint32(16))
        r = np.uint32(0x7FC0) if np.uint32(u & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else r
        out[i] = np.uint16(np.uint32(0) if r == unwanted else r)


@_jit
def _to_float16(x: Array, out: Array, drop: int) -> None:
    unwanted = np.uint32(drop)
    for i in range(x.size):
        v = np.float32(x[i])
        u = v.view(np.uint32)
        size = np.uint32(u & np.uint32(0x7FFFFFFF))
        # The sum with 0.5 has the spacing of subnormal numbers, so the processor rounds to it.
        small = np.uint32(np.float32(abs(v) + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000))
        odd = np.uint32(np.uint32(size >> np.uint32(13)) & np.uint32(1))
        large = np.uint32(np.uint32(size + np.uint32(np.uint32(0xC8000FFF) + odd)) >> np.uint32(13))
        r = small if size < np.uint32(0x38800000) else large
        r = np.uint32(0x7C00) if size >= np.uint32(0x47800000) else r
        r = np.uint32(r | np.uint32(np.uint32(u >> np.uint32(16)) & np.uint32(0x8000)))
        r = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else r
        out[i] = np.uint16(np.uint32(0) if r == unwanted else r)


@_jit
def narrow_block(x: Array, out: Array, code: int, zeros: bool) -> None:
    """Rounds a block to 16 bits, by way of float32, with canonical NaN.

    Args:
        x: Float32 or float64 values.
        out: Receives bit patterns (uint16).
        code: BFLOAT16 or FLOAT16.
        zeros: Whether -0 becomes +0.
    """
    drop = 0x8000 if zeros else 0x10000  # the latter is no pattern
    if code == BFLOAT16:
        _to_bfloat16(x, out, drop)
    else:
        _to_float16(x, out, drop)


@_jit
def widen_block(bits: Array, out: Array, code: int) -> None:
    """Writes the float32 values of a block of 16-bit patterns; which NaN one becomes is not defined.

    Args:
        bits: The patterns (uint16).
        out: Receives the values.
        code: BFLOAT16 or FLOAT16.
    """
    target = out.view(np.uint32)
    if code == BFLOAT16:
        for i in range(bits.size):
            target[i] = np.uint32(np.uint32(bits[i]) << np.uint32(16))
    else:
        for i in range(bits.size):
            u = np.uint32(bits[i])
            size = np.uint32(np.uint32(u & np.uint32(0x7FFF)) << np.uint32(13))
            moved = np.uint32(size + np.uint32(0x38000000))
            # A subnormal is the distance to the least normal number, from what has its fraction and that exponent.
            small = np.uint32(moved + np.uint32(0x00800000)).view(np.float32) - _LEAST
            r = np.float32(small).view(np.uint32) if size < np.uint32(0x00800000) else moved
            r = np.uint32(moved + np.uint32(0x38000000)) if size >= np.uint32(0x0F800000) else r
            target[i] = np.uint32(r | np.uint32(np.uint32(u & np.uint32(0x8000)) << np.uint32(16)))


@_jit
def sum_block(bits: Array, first: int) -> np.uint64:
    """Returns the part of the checksum of the block of 16-bit patterns that starts at index `first`."""
    whole = bits.size // 4 * 4  # four patterns a word, as `cpu_kernels.finish` has two
    words = bits[:whole].view(np.uint64)
    w = np.uint32(first) * np.uint32(WEIGHT)
    w0, w1 = np.uint64(w), np.uint64(np.uint32(w + np.uint32(WEIGHT)))
    w2 = np.uint64(np.uint32(w + np.uint32((2 * WEIGHT) & 0xFFFFFFFF)))
    w3 = np.uint64(np.uint32(w + np.uint32((3 * WEIGHT) & 0xFFFFFFFF)))
    step = np.uint64((4 * WEIGHT) & 0xFFFFFFFF)
    total = np.uint64(0)
    for i in range(words.size):
        four, at = words[i], np.uint64(i) * step
        total += (four & _HALF) * (((w0 + at) & _LOW) | _ONE)
        total += ((four >> np.uint64(16)) & _HALF) * (((w1 + at) & _LOW) | _ONE)
        total += ((four >> np.uint64(32)) & _HALF) * (((w2 + at) & _LOW) | _ONE)
        total += (four >> np.uint64(48)) * (((w3 + at) & _LOW) | _ONE)
    for i in range(whole, bits.size):
        total += np.uint64(bits[i]) * np.uint64(np.uint32(w + np.uint32(i) * np.uint32(WEIGHT)) | np.uint32(1))
    return total


@_jit
def _pass(x: Array, out: Array, code: int) -> np.uint64:
    total, start = np.uint64(0), 0
    while start < x.size:
        stop = min(x.size, start + BLOCK)
        narrow_block(x[start:stop], out[start:stop], code, True)
        total += sum_block(out[start:stop], start)
        start = stop
    return total


@_jit
def round_at(source: int, target: int, n: int, double: bool, code: int) -> np.uint64:
    """Rounds wide results without looking for contested elements; -0 becomes +0.

    Args:
        source: Address of float32 or float64 values.
        target: Address of 16-bit results.
        n: How many.
        double: Whether they are float64.
        code: BFLOAT16 or FLOAT16.

    Returns:
        The checksum.
    """
    out = array_at(pointer(target), n, np.uint16)
    if double:
        return _pass(array_at(pointer(source), n, np.float64), out, code)
    return _pass(array_at(pointer(source), n, np.float32), out, code)


@_jit
def canonicalise_at(target: int, n: int, code: int) -> np.uint64:
    """Makes every NaN of 16-bit results canonical in place; returns their checksum."""
    bits = array_at(pointer(target), n, np.uint16)
    infinite = np.uint16(0x7F80 if code == BFLOAT16 else 0x7C00)
    nan = np.uint16(0x7FC0 if code == BFLOAT16 else 0x7E00)
    total, start = np.uint64(0), 0
    while start < n:
        stop = min(n, start + BLOCK)
        block = bits[start:stop]
        for i in range(block.size):
            b = block[i]
            block[i] = nan if np.uint16(b & np.uint16(0x7FFF)) > infinite else b
        total += sum_block(block, start)
        start = stop
    return total
