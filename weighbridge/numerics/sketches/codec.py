"""A sketch of one 16-bit output, and how a machine that rounds a few elements otherwise finds them with it.

Two stages over GF(2^m), position i standing for a^i:

1. *Parities.* Next to a rounding boundary a value is one of two neighbours, whose ordered integers differ in the lowest
   bit. The power sums of the positions with an odd integer name up to t positions by t words: a binary BCH code.
2. *Values.* Near zero there may be more than two values. Where the nearest one of the other parity is not the recorded
   one, or the distance is even, the first stage leaves an error. The power sums of whole values (Reed-Solomon) name up
   to u of them, positions and values, by 2u words. They too are made from remainders: one for each bit of the values.

The replayer looks for positions only among its own contested elements. What it finds is accepted if every new value is
one that it could have rounded to, and the output then has the recorded checksum. At most t positions have given power
sums of the first stage, and at most u those of the second, so a second solution within the capacities does not exist.
Exactly the positions that the first stage named have another parity in the result, or it is no solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.numerics.sketches import fields, remainders

Array = npt.NDArray[Any]

LEAST_DEGREE = 16
"""Values are field elements, so a field has at least their bits."""
VALUE_BITS = 16
MOST_WORK = 1 << 25
"""Contested elements times differences, beyond which a sketch is given up: honest ones take some 2^22 at most."""


class FailedError(Exception):
    """A sketch does not explain the difference: more differs than it can name."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many differences a sketch can name.

    Attributes:
        parities: t, positions at which the parity differs.
        values: u, positions at which the value differs after the parities were set right.
    """

    parities: int
    values: int


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is kept of an output.

    Attributes:
        degree: m.
        capacity: t and u.
        parities: Remainder of the positions of odd values, uint64 words.
        values: S_1 to S_2u of the values, int64.
    """

    degree: int
    capacity: Capacity
    parities: Array
    values: Array

    @property
    def bits(self) -> int:
        """How many bits it takes: both remainders, and twelve bits for each capacity."""
        return remainders.size(self.degree, self.capacity.parities) + self.degree * len(self.values) + 24


def degree_of(elements: int) -> int:
    """Returns the degree of the field for an output of so many elements."""
    return max(LEAST_DEGREE, elements.bit_length())


def prepare(elements: int, capacity: Capacity) -> None:
    """Makes the tables for outputs of a size, which are kept: the first sketch or decoding would take their time."""
    remainders.divide(np.zeros(1, dtype=np.int16), degree_of(elements), capacity.parities, capacity.values)


def warm() -> None:
    """Compiles all that sketches need, by making one and decoding it."""
    recorded, own = np.array([1, 4, 0], dtype=np.int16), np.array([0, 2, 0], dtype=np.int16)
    low, high = np.zeros(3, dtype=np.int64), np.full(3, 9, dtype=np.int64)
    recover(make(recorded, Capacity(3, 2)), own, np.arange(3), low, high, low == 0)


def make(ordered: Array, capacity: Capacity) -> Sketch:
    """Makes the sketch of an output from its ordered integers (int16), in physical order."""
    degree = degree_of(ordered.size)
    parities, planes = remainders.divide(ordered, degree, capacity.parities, capacity.values)
    return Sketch(degree, capacity, parities, _value_sums(planes, degree, capacity.values))


def _value_sums(planes: Array, degree: int, capacity: int) -> Array:
    """Returns the power sums of values from the remainders of their bits: a value is the sum of bit b times x^b."""
    f = fields.field(degree)
    total = np.zeros(2 * capacity, dtype=np.int64)
    for bit in range(len(planes) if capacity else 0):
        sums = remainders.power_sums(planes[bit], degree, capacity)
        total ^= np.where(sums == 0, 0, f.power[f.log[sums] + bit])
    return total


def recover(sketch: Sketch, own: Array, candidates: Array, low: Array, high: Array, up: Array) -> tuple[Array, Array]:
    """Finds what a sketch says of the elements that this machine rounded otherwise.

    Args:
        sketch: The recorded output's.
        own: This machine's ordered integers.
        candidates: Physical indices of its contested elements, ascending.
        low: For each candidate the least value that it could have rounded to.
        high: The largest.
        up: Whether the wide value is above the own rounded one.

    Returns:
        The positions that differ, ascending, and the recorded values there.

    Raises:
        FailedError: The sketch does not explain the difference.
    """
    degree, f, capacity = sketch.degree, fields.field(sketch.degree), sketch.capacity
    parities, planes = remainders.divide(own, degree, capacity.parities, capacity.values)
    sums = remainders.power_sums(sketch.parities ^ parities, degree, capacity.parities)
    found, _ = _positions(sums, candidates, f)
    fixed = own.astype(np.int64)
    if found.size:
        at = np.searchsorted(candidates, found)
        fixed[found] = nearest(fixed[found], low[at], high[at], up[at])
    if capacity.values:
        # Remainders are linear, so only what the first stage changed goes through the division again.
        sums = sketch.values ^ _value_sums(planes, degree, capacity.values)
        sums ^= _sums_of(found, (fixed[found] ^ own[found]) & 0xFFFF, 2 * capacity.values, f)
        rest, locator = _positions(sums, candidates, f)
        if rest.size:
            wrong = fields.error_values(sums, locator, rest, f.power, f.log, f.order)
            if (wrong >= 1 << VALUE_BITS).any():
                raise FailedError("a value of more bits than there are")
            patterns = (fixed[rest] & 0xFFFF) ^ wrong
            fixed[rest] = np.where(patterns >= 0x8000, patterns - 0x10000, patterns)
    changed = np.flatnonzero(fixed != own)
    if capacity.parities and not np.array_equal(changed[(fixed[changed] ^ own[changed]) & 1 == 1], found):
        raise FailedError("the two stages contradict each other")
    at = np.searchsorted(candidates, changed)
    if changed.size and not ((low[at] <= fixed[changed]) & (fixed[changed] <= high[at])).all():
        raise FailedError("a value that this machine could not have rounded to")
    return changed, fixed[changed]


def nearest(own: Array, low: Array, high: Array, up: Array) -> Array:
    """Returns the nearest value of the other parity that an element could have been rounded to; see `recover`."""
    return np.where((up & (own < high)) | (own <= low), own + 1, own - 1)


def _sums_of(positions: Array, values: Array, count: int, f: fields.Field) -> Array:
    """Returns the first power sums of values at positions."""
    sums = np.zeros(count, dtype=np.int64)
    for position, value in zip(positions.tolist(), values.tolist(), strict=True):
        if value:
            sums ^= f.power[(position * np.arange(1, count + 1) + f.log[value]) % f.order]
    return sums


def _positions(sums: Array, candidates: Array, f: fields.Field) -> tuple[Array, Array]:
    """Returns the positions whose power sums these are, among the candidates; and their locator."""
    none = np.empty(0, dtype=np.int64)
    if not sums.any():
        return none, none
    locator = fields.locator(sums, f.power, f.log, f.order)
    degree = locator.size - 1
    if not 0 < degree <= sums.size // 2 or not candidates.size:
        raise FailedError("more elements differ than the sketch can name")
    if degree * candidates.size > MOST_WORK:
        raise FailedError("to find what the sketch names among so many contested elements would take too long")
    found = fields.roots(locator, 0, candidates, f.power, f.log, f.order)
    if found.size != degree:
        raise FailedError("what the sketch names are not all contested elements")
    return found, locator
