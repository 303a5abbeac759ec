"""An adaptive binary range coder beside plain bits, in Numba, for rounding logs (docs/formats/rounding-log.md).

Everything is integer arithmetic, so every machine writes the same bytes. Coders keep their state in local variables,
which is what makes them fast: `c` is (the range coder's low end, or the code read less it; its range; its place in the
coded bytes), `d` is (the plain bits held, how many, the place in the plain bytes). Places are unsigned where they
index, or Numba would look for negative ones at every access.

Numba caches `logcoding`, into which this is compiled, by the age of that file: touch it after a change here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.core.jit import compiled

Array = npt.NDArray[Any]
Coder = tuple[int, int, int]

EVEN = 32768 << 8
"""A fresh context: the probability of 0 is one half; age 0."""

_RATES = np.array([1] + [2] * 2 + [3] * 4 + [4] * 8 + [5] * 16 + [6] * 32 + [7], dtype=np.int64)
_OLDEST = len(_RATES) - 1


jit = compiled()


@jit
def byte(data: Array, at: int) -> int:
    """Returns a byte as a signed number; zeros follow the last one."""
    return 0 + int(data[np.uint64(at)]) if at < data.size else 0


@jit
def put(c: Coder, contexts: Array, i: int, bit: int, out: Array) -> Coder:
    """Codes one bit in context `i`."""
    low, size, n = c
    j = np.uint64(i)
    state = contexts[j]
    p = state >> 8
    age = state & 255
    bound = (size >> 12) * ((p >> 4) | 1)
    rate = _RATES[np.uint64(age)]
    if bit == 0:
        size = bound
        p += (65536 - p) >> rate
    else:
        low += bound
        size -= bound
        p -= p >> rate
    contexts[j] = (p << 8) | min(age + 1, _OLDEST)
    while size < 1 << 24:
        low, n = shift(low, n, out)
        size <<= 8
    return low, size, n


@jit
def shift(low: int, n: int, out: Array) -> tuple[int, int]:
    """Writes the highest byte of the low end; a carry goes into the bytes before."""
    if low >= 1 << 32:
        j = n - 1
        while out[np.uint64(j)] == 255:
            out[np.uint64(j)] = 0
            j -= 1
        out[np.uint64(j)] += 1
        low &= 0xFFFFFFFF
    out[np.uint64(n)] = low >> 24
    return (low << 8) & 0xFFFFFFFF, n + 1


@jit
def put_plain(d: Coder, value: int, count: int, raw: Array) -> Coder:
    """Appends `count` bits, at most 48."""
    held, n, m = d
    held |= value << n
    n += count
    while n >= 8:
        raw[np.uint64(m)] = held & 255
        held >>= 8
        n -= 8
        m += 1
    return held, n, m


@jit
def put_number(
    c: Coder, d: Coder, contexts: Array, field: int, value: int, out: Array, raw: Array
) -> tuple[Coder, Coder]:
    """Codes a natural number below 2^40: the length of value + 1 in unary, its bits after the first plain."""
    v = value + 1
    n = 0
    while v >> (n + 1) > 0:
        c = put(c, contexts, field + n, 1, out)
        n += 1
    c = put(c, contexts, field + n, 0, out)
    return c, put_plain(d, v - (1 << n), n, raw)


@jit
def take(c: Coder, contexts: Array, i: int, coded: Array) -> tuple[int, Coder]:
    """Decodes one bit in context `i`; zeros follow the last byte."""
    code, size, n = c
    j = np.uint64(i)
    state = contexts[j]
    p = state >> 8
    age = state & 255
    bound = (size >> 12) * ((p >> 4) | 1)
    rate = _RATES[np.uint64(age)]
    if code < bound:
        bit = 0
        size = bound
        p += (65536 - p) >> rate
    else:
        bit = 1
        code -= bound
        size -= bound
        p -= p >> rate
    contexts[j] = (p << 8) | min(age + 1, _OLDEST)
    while size < 1 << 24:
        code = (code << 8) | byte(coded, n)
        size <<= 8
        n += 1
    return bit, (code, size, n)


@jit
def take_plain(d: Coder, count: int, raw: Array) -> tuple[int, Coder]:
    """Reads `count` bits, at most 48; zeros follow the last byte, and the place in the bytes goes on."""
    held, n, m = d
    while n < count:
        held |= byte(raw, m) << n
        n += 8
        m += 1
    return held & ((1 << count) - 1), (held >> count, n - count, m)


@jit
def take_number(c: Coder, d: Coder, contexts: Array, field: int, coded: Array, raw: Array) -> tuple[int, Coder, Coder]:
    """Decodes what `put_number` coded; -1 if it has more than 40 bits."""
    n = 0
    bit, c = take(c, contexts, field, coded)
    while bit == 1:
        n += 1
        if n > 40:
            return -1, c, d
        bit, c = take(c, contexts, field + n, coded)
    more, d = take_plain(d, n, raw)
    return (1 << n) - 1 + more, c, d


@jit
def finish(c: Coder, d: Coder, out: Array, raw: Array) -> tuple[int, int]:
    """Ends both streams: of the numbers in the range the one with the fewest bytes; no zero byte stays at the end."""
    low, size, n = c
    mask = 0xFFFFFFFF
    while (low + mask) & ~mask >= low + size:
        mask >>= 8
    low = (low + mask) & ~mask
    for _ in range(5):  # the fifth is a zero, after whatever carry there was
        low, n = shift(low, n, out)
    while n > 0 and out[n - 1] == 0:
        n -= 1
    held, left, m = d
    if left > 0:
        raw[m] = held & 255
        m += 1
    return n, m
