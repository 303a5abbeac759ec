"""Bounds on the error of wide results, as docs/bounds.md states them for the strict policy, in NumPy.

They are needed only where a rounding log has an entry: to know which values it may choose among.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weighbridge.execution.second.memory import Array

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

U = 2.0**-53
_NEAR_ZERO = 5.0
"""Of a product within so many bounds of zero, the bound is made of the absolute terms instead of norms."""


def gamma(n: float) -> float:
    """Bounds the relative error of n successive roundings in float64."""
    return n * U / (1 - n * U)


def block_length(terms: int, least: int) -> int:
    """Returns how many terms a block of a product has under a policy with blocks, as docs/bounds.md states it."""
    blocks = -(-terms // max(least, math.isqrt(terms)))
    return -(-terms // blocks)


def roundings(terms: int, least: int) -> int:
    """Returns how many roundings a product of so many terms counts; `least` is 0 under policies without blocks."""
    if not least or terms <= least:
        return terms
    length = block_length(terms, least)
    return length + -(-terms // length)


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound `rel*|x| + absolute + product(factors)` for every element of a result x.

    Attributes:
        rel: Relative part.
        absolute: Absolute part.
        factors: At most two arrays that broadcast to x.
        products: For matrix products: the operands, (..., M, K) and (..., K, N), and what their sums of absolute terms
            are multiplied with near zero.
    """

    rel: float = 0.0
    absolute: float = 0.0
    factors: tuple[Array, ...] = ()
    products: tuple[Array, Array, float] | None = None

    def at(self, values: Floats, places: tuple[Ints, ...], shape: Sequence[int]) -> Floats:
        """Returns the bounds of some elements.

        Args:
            values: Their values.
            places: Their indices, one array a dimension.
            shape: The shape of x.
        """
        with np.errstate(all="ignore"):
            plain = self.rel * np.abs(values) + self.absolute
            found = plain
            if self.factors:
                product: Array = np.ones_like(values)
                for factor in self.factors:
                    product = product * np.broadcast_to(factor, shape)[places]
                found = plain + product
            if self.products is None:
                return found
            near = np.flatnonzero(np.abs(values) <= _NEAR_ZERO * found)
            if near.size:
                left, right, multiple = self.products
                *outer, row, column = (place[near] for place in places)
                sizes = np.sum(
                    np.abs(left[(*outer, row)].astype(np.float64))
                    * np.abs(np.swapaxes(right, -1, -2)[(*outer, column)].astype(np.float64)),
                    axis=-1,
                )
                found = found.copy()
                found[near] = np.minimum(found[near], plain[near] + sizes * multiple)
            return found


def norm(x: Array, axes: tuple[int, ...]) -> Floats:
    """Returns Euclidean norms over some dimensions, which stay with length 1."""
    wide = x.astype(np.float64)
    root: Floats = np.sqrt(np.sum(wide * wide, axis=axes, keepdims=True))
    return root


def of_sum(x: Array, axes: tuple[int, ...], n: int, *, keep: bool = False) -> Bound:
    """gamma(n) * sum|x|, and nothing where the sum is exact in float64 in any order."""
    size = np.abs(x.astype(np.float64))
    total = np.sum(size, axis=axes, keepdims=keep)
    least = np.min(np.where(size == 0, np.inf, size), axis=axes, keepdims=keep, initial=np.inf)
    return Bound(factors=(inexact(total, least) * gamma(max(1, n) + 2),))


def inexact(total: Array, least: Array) -> Array:
    """Returns sums of absolute values, 0 where all partial sums have at most 53 bits whatever their order.

    Float32 addends are multiples of 2^(E-23), E being the exponent of the least that is not zero. Sums below 2^(E+29)
    have no more bits.
    """
    return np.asarray(total * ~(total <= least * 2.0**29))


def over(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Returns how many elements are added up over some dimensions, at least 1."""
    return max(1, math.prod(shape[d] for d in axes))
