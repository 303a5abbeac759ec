"""Many operations with one right answer in one call: a loop walks a list of them, so that Python is asked only once.

An optimizer does a dozen such operations with each weight, and where weights are small, calling a kernel costs more
than its work. The loop evaluates what `exact` and `chains` define, on contiguous float32 arrays of one size, makes NaN
canonical and takes the checksum of each result in the same trip over memory. Each operation is rounded to nearest even
by itself, and none is contracted, so the bits are those of the operations one by one.

Memory is given by address. The caller that makes a list answers for it that the arrays exist, have as many elements as
it says, and are the same memory or have none in common.
"""

from __future__ import annotations

import numpy as np

from weighbridge.core.jit import compiled
from weighbridge.core.pointers import array_at, pointer
from weighbridge.numerics.rounding.cpu_kernels import BLOCK, Array, finish

LERP, ADDCMUL, ADDCDIV, ADD_SCALED, ADD, SUB, MUL, DIV, SQRT, ADD_ONE, SUB_ONE, MUL_ONE, DIV_ONE, READ = range(14)
"""What a line of a list does. Those that end in ONE take one number instead of a second array."""
COLUMNS = 7
"""Of a list, int64: operation; elements; places of the addresses of result, first and second operand; place of the
number, or -1 if the number is the first element of the second operand; place of the result's checksum, or of what
READ reads."""

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a line can have."""

_jit = compiled(fastmath=False, error_model="numpy")


@_jit
def _block(form: int, out: Array, x: Array, first: Array, second: Array, value: np.float32) -> None:
    """Evaluates one operation on a block; `second` is of `addcmul` and `addcdiv` only."""
    if form == LERP:
        for i in range(out.size):
            out[i] = x[i] + (first[i] - x[i]) * value
    elif form == ADDCMUL:
        for i in range(out.size):
            out[i] = x[i] + (first[i] * second[i]) * value
    elif form == ADDCDIV:
        for i in range(out.size):
            out[i] = x[i] + (first[i] / second[i]) * value
    elif form == ADD_SCALED:
        for i in range(out.size):
            out[i] = x[i] + first[i] * value
    elif form == ADD:
        for i in range(out.size):
            out[i] = x[i] + first[i]
    elif form == SUB:
        for i in range(out.size):
            out[i] = x[i] - first[i]
    elif form == MUL:
        for i in range(out.size):
            out[i] = x[i] * first[i]
    elif form == DIV:
        for i in range(out.size):
            out[i] = x[i] / first[i]
    elif form == SQRT:
        for i in range(out.size):
            out[i] = np.sqrt(x[i])
    elif form == ADD_ONE:
        for i in range(out.size):
            out[i] = x[i] + value
    elif form == SUB_ONE:
        for i in range(out.size):
            out[i] = x[i] - value
    elif form == MUL_ONE:
        for i in range(out.size):
            out[i] = x[i] * value
    else:
        for i in range(out.size):
            out[i] = x[i] / value


@_jit
def run(lines: Array, addresses: Array, numbers: Array, sums: Array, reads: Array) -> None:
    """Evaluates a list.

    Args:
        lines: int64 (lines, COLUMNS), C order.
        addresses: int64, of float32 arrays.
        numbers: float32.
        sums: Receives checksums (uint64).
        reads: Receives the numbers that READ reads (float64).
    """
    for k in range(lines.shape[0]):
        form, n = lines[k, 0], lines[k, 1]
        x = array_at(pointer(addresses[lines[k, 3]]), n, np.float32)
        if form == READ:
            reads[lines[k, 6]] = np.float64(x[0])
            continue
        out = array_at(pointer(addresses[lines[k, 2]]), n, np.float32)
        bits = array_at(pointer(addresses[lines[k, 2]]), n, np.uint32)
        at = lines[k, 5]
        value = numbers[at & 0xFFFFFFFF] if at >= 0 else np.float32(0.0)
        first = second = x
        if form < SQRT:
            first = array_at(pointer(addresses[lines[k, 4] & 0xFFFFFFFF]), n, np.float32)
            second = array_at(pointer(addresses[lines[k, 4] >> 32]), n, np.float32)
        elif form > SQRT and at < 0:
            value = array_at(pointer(addresses[lines[k, 4]]), 1, np.float32)[0]
        total = np.uint64(0)
        start = 0
        while start < n:
            stop = min(n, start + BLOCK)
            _block(form, out[start:stop], x[start:stop], first[start:stop], second[start:stop], value)
            total += finish(bits[start:stop], start)
            start = stop
        sums[lines[k, 6]] = total
