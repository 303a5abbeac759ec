"""Power sums of sets of positions, made as a checksum is: the remainder of a polynomial with one bit for each element.

Of the positions i of bits that are set, S_j is the sum of a^(i*j) in GF(2^m). The remainder of their polynomial by the
generator of the binary BCH code with designed distance 2t + 1 determines S_1 to S_2t, and it has at most t*m bits. So
t words of m bits name up to t differences, and making them costs eight look-ups in tables for every 64 elements.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.core.jit import compiled
from weighbridge.numerics.sketches.fields import Field, field, times

Array = npt.NDArray[Any]
_jit = compiled(fastmath=False, error_model="numpy")
_WORD = (1 << 64) - 1


def _minimal(exponent: int, f: Field) -> tuple[int, frozenset[int]]:
    """Returns the minimal polynomial of a^exponent over GF(2) as an integer, and the exponents of all its roots."""
    conjugates = [exponent]
    while (following := conjugates[-1] * 2 % f.order) != exponent:
        conjugates.append(following)
    polynomial = [1]
    for each in conjugates:
        root = int(f.power[each])
        shifted = [0, *polynomial]
        scaled = [times(c, root, f.power, f.log) for c in polynomial] + [0]
        polynomial = [a ^ b for a, b in zip(shifted, scaled, strict=True)]
    return sum(c << i for i, c in enumerate(polynomial)), frozenset(conjugates)


@cache
def generator(degree: int, capacity: int) -> int:
    """Returns the generator of the code for `capacity` errors over GF(2^degree), as an integer with a bit a power."""
    f, product = field(degree), 1
    done: set[int] = set()
    for exponent in range(1, 2 * capacity, 2):
        if exponent % f.order not in done:
            factor, roots = _minimal(exponent % f.order, f)
            done |= roots
            product, old = 0, product
            for i in range(factor.bit_length()):
                if factor >> i & 1:
                    product ^= old << i
    return product


@cache
def _tables(degree: int, capacity: int) -> tuple[Array, int]:
    """Returns the remainder of each of eight bytes above the register, aligned at its top; and the register's bits."""
    g = generator(degree, capacity)
    bits = g.bit_length() - 1
    words = -(-bits // 64)
    tables = np.zeros((8, 256, words), dtype=np.uint64)
    every, rest = np.arange(256), g ^ (1 << bits)
    for power in range(64):
        aligned = rest << (64 * words - bits)
        row = np.array([aligned >> (64 * (words - 1 - k)) & _WORD for k in range(words)], dtype=np.uint64)
        tables[power // 8, every >> (power % 8) & 1 == 1] ^= row
        rest <<= 1
        if rest >> bits & 1:
            rest ^= g
    return tables, bits


@_jit
def _push(register: Array, word: np.uint64, tables: Array) -> None:
    """Takes in the next 64 coefficients, the highest first."""
    words = register.size
    top = register[0] ^ word
    for k in range(words - 1):
        register[k] = register[k + 1]
    register[words - 1] = np.uint64(0)
    for s in range(8):
        row = tables[s, (top >> np.uint64(8 * s)) & np.uint64(0xFF)]
        for k in range(words):
            register[k] ^= row[k]


@_jit
def _transposed(x: np.uint64) -> np.uint64:
    """Turns eight bytes of eight bits about their diagonal."""
    t = (x ^ (x >> np.uint64(7))) & np.uint64(0x00AA00AA00AA00AA)
    x = x ^ t ^ (t << np.uint64(7))
    t = (x ^ (x >> np.uint64(14))) & np.uint64(0x0000CCCC0000CCCC)
    x = x ^ t ^ (t << np.uint64(14))
    t = (x ^ (x >> np.uint64(28))) & np.uint64(0x00000000F0F0F0F0)
    return x ^ t ^ (t << np.uint64(28))


@_jit
def _planes(values: Array, planes: Array) -> None:
    """Writes bit b of up to 64 values into word b."""
    planes[:] = np.uint64(0)
    for group in range(0, values.size, 8):
        low, high = np.uint64(0), np.uint64(0)
        for i in range(min(8, values.size - group)):
            v = np.uint64(values[group + i])
            low |= (v & np.uint64(0xFF)) << np.uint64(8 * i)
            high |= (v >> np.uint64(8)) << np.uint64(8 * i)
        low, high = _transposed(low), _transposed(high)
        for bit in range(8):
            planes[bit] |= ((low >> np.uint64(8 * bit)) & np.uint64(0xFF)) << np.uint64(group)
            planes[8 + bit] |= ((high >> np.uint64(8 * bit)) & np.uint64(0xFF)) << np.uint64(group)


@_jit
def _divide(values: Array, first: Array, first_tables: Array, registers: Array, tables: Array) -> None:
    """Divides the polynomials of all bits of `values`, and that of their lowest bits by another generator as well."""
    planes = np.zeros(16, dtype=np.uint64)
    for block in range((values.size + 63) // 64 - 1, -1, -1):
        _planes(values[64 * block : min(64 * block + 64, values.size)], planes)
        if first.size > 0:
            _push(first, planes[0], first_tables)
        if registers.shape[1] > 0:
            for bit in range(16):
                _push(registers[bit], planes[bit], tables)


@_jit
def _evaluate(bits: Array, first: int, sums: Array, power: Array, order: int) -> None:
    """Writes S_1, S_2, ... of a remainder whose bit k stands for position `first` + k."""
    for j in range(1, sums.size + 1):
        at = (np.int64(first) * j) % order
        total = np.int64(0)
        for k in range(bits.size):
            if bits[k]:
                total ^= power[at]
            at += j
            if at >= order:
                at -= order
        sums[j - 1] = total


def divide(values: Array, degree: int, parities: int, planes: int) -> tuple[Array, Array]:
    """Returns remainders of the lowest bits of values, and of each of their sixteen bits.

    Args:
        values: Integers of 16 bits in the order of their positions, int16; fewer than 2^degree.
        degree: Of the field.
        parities: How many differences the first remainder shall name.
        planes: How many each of the others.

    Returns:
        uint64 words, the highest first: of shape (words,) and (16, words).
    """
    first_tables, tables = _tables(degree, parities)[0], _tables(degree, planes)[0]
    first = np.zeros(first_tables.shape[2], dtype=np.uint64)
    registers = np.zeros((16, tables.shape[2]), dtype=np.uint64)
    _divide(np.ascontiguousarray(values).view(np.uint16), first, first_tables, registers, tables)
    return first, registers


def size(degree: int, capacity: int) -> int:
    """Returns how many bits a remainder has."""
    return generator(degree, capacity).bit_length() - 1


def power_sums(difference: Array, degree: int, capacity: int) -> Array:
    """Returns S_1 to S_2t of the positions in which two sets differ, from the exclusive or of their remainders."""
    f, (_, bits) = field(degree), _tables(degree, capacity)
    sums = np.zeros(2 * capacity, dtype=np.int64)
    if bits:
        top_first = np.unpackbits(difference.astype(">u8").view(np.uint8))[:bits]
        # The register is the remainder of the polynomial times x^bits.
        _evaluate(np.ascontiguousarray(top_first[::-1]), -bits % f.order, sums, f.power, f.order)
    return sums
