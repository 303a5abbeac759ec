"""Arithmetic in GF(2^m), 4 <= m <= 22, by tables of logarithms, and decoding of power sums, as compiled loops.

A field element is an integer whose bits are the coefficients of a polynomial over GF(2); `a` is the class of x, which
generates the multiplicative group. Tables take 12 * 2^m bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.core.jit import compiled

Array = npt.NDArray[Any]

PRIMITIVE = {
    4: 0x13, 5: 0x25, 6: 0x43, 7: 0x83, 8: 0x11D, 9: 0x211, 10: 0x409, 11: 0x805, 12: 0x1053, 13: 0x201B, 14: 0x4443,
    15: 0x8003, 16: 0x1100B, 17: 0x20009, 18: 0x40081, 19: 0x80027, 20: 0x100009, 21: 0x200005, 22: 0x400003,
}  # fmt: skip
"""A primitive polynomial of each degree."""

_jit = compiled(fastmath=False, error_model="numpy")


@dataclass(frozen=True, slots=True)
class Field:
    """GF(2^m).

    Attributes:
        degree: m.
        order: 2^m - 1, the number of its elements other than zero.
        power: a^i for i from 0 to 2 * order - 1, int32.
        log: The inverse, int32; of zero it is not defined.
    """

    degree: int
    order: int
    power: Array
    log: Array


@cache
def field(degree: int) -> Field:
    """Returns GF(2^degree).

    Raises:
        ValueError: There is no table of this degree.
    """
    if degree not in PRIMITIVE:
        raise ValueError(f"there is no field of degree {degree}; take one from {min(PRIMITIVE)} to {max(PRIMITIVE)}")
    order = (1 << degree) - 1
    power = np.zeros(2 * order, dtype=np.int32)
    log = np.zeros(order + 1, dtype=np.int32)
    if _fill(power, log, PRIMITIVE[degree], order) != 1:
        raise ValueError(f"the polynomial of degree {degree} is not primitive")
    return Field(degree, order, power, log)


@_jit
def _fill(power: Array, log: Array, polynomial: int, order: int) -> int:
    value = 1
    for i in range(order):
        power[i] = value
        power[i + order] = value
        log[value] = i
        value <<= 1
        if value > order:
            value ^= polynomial
        if value == 1 and i != order - 1:
            return 0
    return value


@_jit
def times(x: Any, y: Any, power: Array, log: Array) -> int:
    """Returns the product of two elements."""
    if x == 0 or y == 0:
        return 0
    return int(power[np.int64(log[x]) + np.int64(log[y])])


@_jit
def locator(sums: Array, power: Array, log: Array, order: int) -> Array:
    """Returns the shortest recurrence of a sequence (Berlekamp and Massey), with 1 at index 0.

    Args:
        sums: Power sums S_1, S_2, ... of the errors.
        power: See `Field`.
        log: See `Field`.
        order: See `Field`.

    Returns:
        Coefficients of the polynomial whose roots are the inverses of a^position; its degree is their number. Empty if
        the recurrence is longer than its polynomial, which no set of errors has.
    """
    size = sums.size + 2
    c, b, t = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    c[0] = b[0] = 1
    length, shift, last = 0, 1, np.int64(1)
    for n in range(sums.size):
        d = np.int64(sums[n])
        for i in range(1, length + 1):
            d ^= times(c[i], np.int64(sums[n - i]), power, log)
        if d == 0:
            shift += 1
            continue
        scale = times(d, power[(order - log[last]) % order], power, log)
        longer = 2 * length <= n
        if longer:
            t[:] = c
        for i in range(size - shift):
            if b[i] != 0:
                c[i + shift] ^= times(scale, b[i], power, log)
        if longer:
            length, last, shift = n + 1 - length, d, 1
            b[:] = t
        else:
            shift += 1
    if length >= size or c[length] == 0:
        return c[:0]
    return c[: length + 1]


@_jit
def roots(polynomial: Array, count: int, positions: Array, power: Array, log: Array, order: int) -> Array:
    """Returns the positions i for which a^-i is a root of a polynomial (Chien).

    Args:
        polynomial: Coefficients, that of index 0 is 1.
        count: How many positions there are, if `positions` is empty: 0 to count - 1.
        positions: The positions to try, ascending, or empty.
        power: See `Field`.
        log: See `Field`.
        order: See `Field`.
    """
    degree = polynomial.size - 1
    found = np.empty(degree, dtype=np.int64)
    k = 0
    tries = positions.size if positions.size > 0 else count
    for j in range(tries):
        i = positions[j] if positions.size > 0 else j
        step = order - i
        value = np.int64(0)
        at = np.int64(0)
        for e in range(degree + 1):
            if polynomial[e] != 0:
                value ^= power[log[polynomial[e]] + at]
            at += step
            if at >= order:
                at -= order
        if value == 0 and k < degree:
            found[k] = i
            k += 1
    return found[:k]


@_jit
def error_values(sums: Array, polynomial: Array, positions: Array, power: Array, log: Array, order: int) -> Array:
    """Returns what was added at each position (Forney), for a locator of exactly these positions.

    Args:
        sums: Power sums S_1, S_2, ..., at least as many as positions.
        polynomial: The locator.
        positions: Where.
        power: See `Field`.
        log: See `Field`.
        order: See `Field`.
    """
    degree = polynomial.size - 1
    omega = np.zeros(degree, dtype=np.int64)  # sums(x) * locator(x) mod x^degree, sums(x) = S_1 + S_2 x + ...
    for n in range(degree):
        for i in range(n + 1):
            omega[n] ^= times(polynomial[i], sums[n - i], power, log)
    out = np.zeros(positions.size, dtype=np.int64)
    for j in range(positions.size):
        inverse = (order - positions[j]) % order
        top, slope = np.int64(0), np.int64(0)
        for n in range(degree):
            top ^= times(omega[n], power[(inverse * n) % order], power, log)
            if n % 2 == 0:  # the derivative keeps the odd coefficients
                slope ^= times(polynomial[n + 1], power[(inverse * n) % order], power, log)
        if slope != 0 and top != 0:
            out[j] = power[log[top] + order - log[slope]]
    return out
