"""Many operations with one right answer in one call: a loop walks a list of them, so that Python is asked only once.

An optimizer does a dozen such operations with each weight, and where weights are small, calling a kernel costs more
than its work. The loop evaluates what `exact` and `chains` define, on contiguous arrays of one size, makes NaN
canonical and takes the checksum of each result in the same trip over memory. Each operation is rounded to nearest even
by itself, and none is contracted, so the bits are those of the operations one by one. Operands of 16 bits are widened
to float32, and results of 16 bits rounded from it, block by block.

Memory is given by address. The caller that makes a list answers for it that the arrays exist, have as many elements as
it says, and are the same memory or have none in common.
"""

from __future__ import annotations

import numpy as np

from weighbridge.core.jit import compiled
from weighbridge.core.pointers import array_at, pointer
from weighbridge.numerics.rounding.cpu_kernels import BLOCK, Array, finish
from weighbridge.numerics.rounding.half_kernels import FLOAT32, narrow_block, sum_block, widen_block

LERP, ADDCMUL, ADDCDIV, ADD_SCALED, ADD, SUB, MUL, DIV, SQRT, ADD_ONE, SUB_ONE, MUL_ONE, DIV_ONE, READ, CAST = range(15)
"""What a line of a list does. Those that end in ONE take one number instead of a second array."""
COLUMNS = 8
"""Of a list, int64: operation; elements; places of the addresses of result, first and second operand; place of the
number, or -1 if the number is the first element of the second operand; place of the result's checksum, or of what
READ reads; formats of result, first, second and third operand (`half_kernels.CODES`), two bits each."""

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
    elif form == DIV_ONE:
        for i in range(out.size):
            out[i] = x[i] / value
    else:
        for i in range(out.size):
            out[i] = x[i]


@_jit
def _first(address: int, code: int) -> np.float32:
    """Returns the number at an address."""
    if code == FLOAT32:
        return array_at(pointer(address), 1, np.float32)[0]  # type: ignore[no-any-return]
    one = np.empty(1, dtype=np.float32)
    widen_block(array_at(pointer(address), 1, np.uint16), one, code)
    return one[0]  # type: ignore[no-any-return]


@_jit
def _part(address: int, n: int, code: int, start: int, stop: int, scratch: Array) -> Array:
    """Returns a part of an array in float32: where it is, or widened."""
    if code == FLOAT32:
        return array_at(pointer(address), n, np.float32)[start:stop]  # type: ignore[no-any-return]
    target = scratch[: stop - start]
    widen_block(array_at(pointer(address), n, np.uint16)[start:stop], target, code)
    return target


@_jit
def _mixed(form: int, n: int, out: int, x: int, first: int, second: int, formats: int, value: np.float32) -> np.uint64:
    """Evaluates one operation of which 16 bits take part, by the addresses of its arrays; returns the checksum."""
    rows = np.empty((4, BLOCK), dtype=np.float32)
    code, code_x, code_1, code_2 = formats & 3, formats >> 2 & 3, formats >> 4 & 3, formats >> 6 & 3
    total, start = np.uint64(0), 0
    while start < n:
        stop = min(n, start + BLOCK)
        xs = _part(x, n, code_x, start, stop, rows[1])
        one = _part(first, n, code_1, start, stop, rows[2]) if form < SQRT else xs
        two = _part(second, n, code_2, start, stop, rows[3]) if form < ADD_SCALED else one
        if code == FLOAT32:
            results = array_at(pointer(out), n, np.float32)[start:stop]
            _block(form, results, xs, one, two, value)
            total += finish(results.view(np.uint32), start)
        else:
            results = rows[0][: stop - start]
            _block(form, results, xs, one, two, value)
            bits = array_at(pointer(out), n, np.uint16)[start:stop]
            narrow_block(results, bits, code, False)
            total += sum_block(bits, start)
        start = stop
    return total


@_jit
def run(lines: Array, addresses: Array, numbers: Array, sums: Array, reads: Array) -> None:
    """Evaluates a list.

    Args:
        lines: int64 (lines, COLUMNS), C order.
        addresses: int64, of arrays.
        numbers: float32.
        sums: Receives checksums (uint64), of what CAST converts too.
        reads: Receives the numbers that READ reads (float64).
    """
    for k in range(lines.shape[0]):
        form, n, formats = lines[k, 0], lines[k, 1], lines[k, 7]
        if form == READ:
            reads[lines[k, 6]] = np.float64(_first(addresses[lines[k, 3]], formats >> 2 & 3))
            continue
        at, result = lines[k, 5], addresses[lines[k, 2]]
        value = numbers[at & 0xFFFFFFFF] if at >= 0 else np.float32(0.0)
        one = two = own = addresses[lines[k, 3]]
        if form < SQRT:
            one, two = addresses[lines[k, 4] & 0xFFFFFFFF], addresses[lines[k, 4] >> 32]
        elif SQRT < form < READ and at < 0:
            value = _first(addresses[lines[k, 4]], formats >> 4 & 3)
        if formats != 0:
            sums[lines[k, 6]] = _mixed(form, n, result, own, one, two, formats, value)
            continue
        out, bits = array_at(pointer(result), n, np.float32), array_at(pointer(result), n, np.uint32)
        x, first = array_at(pointer(own), n, np.float32), array_at(pointer(one), n, np.float32)
        second = array_at(pointer(two), n, np.float32)
        total = np.uint64(0)
        start = 0
        while start < n:
            stop = min(n, start + BLOCK)
            _block(form, out[start:stop], x[start:stop], first[start:stop], second[start:stop], value)
            total += finish(bits[start:stop], start)
            start = stop
        sums[lines[k, 6]] = total
