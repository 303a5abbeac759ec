"""Bounds on the error of wide results: their form, and what they come to for all elements, or for some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.numerics.arrays.physical import coordinates, flat, in_physical_order
from weighbridge.numerics.arrays.product_elements import Products

Ints = npt.NDArray[np.int64]


class Judge(Protocol):
    """Says what a declared unit makes of single elements of a result, to the bit."""

    @property
    def terms(self) -> int:
        """Products in the sum of each element."""

    def at(self, coordinates: Sequence[torch.Tensor], unit: str = "", chain: int | None = None) -> torch.Tensor:
        """Returns the wide values of elements, float32.

        Args:
            coordinates: Their indices, one int64 tensor for each dimension of the result.
            unit: Another unit than the declared one.
            chain: Products in a chain in place of the declared order; 0 is one chain.
        """


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on |computed - exact| for every element of one wide result x.

    The bound of an element is `rel*|x| + absolute + product(factors)`, factors broadcast against x by logical shape.

    Attributes:
        rel: Relative part, dimensionless.
        absolute: Absolute part, in units of x.
        factors: At most two non-negative tensors of x's dtype that broadcast to x's shape.
        products: For matrix products a @ b: the operands. Where x is nearly zero, `product(factors)` gives way to a
            multiple of |a| @ |b|, which is smaller (`sharpened`).
        exact: Every bit of x is prescribed, also where it is infinite or NaN: a result of 16 bits that is rounded from
            it has no log entry.
        judge: For products of a unit that truncates: what the unit makes of them.
    """

    rel: float = 0.0
    absolute: float = 0.0
    factors: tuple[torch.Tensor, ...] = ()
    products: Products | None = None
    exact: bool = False
    judge: Judge | None = None

    def scaled(self, by: float) -> Bound:
        """Returns the bound multiplied by a number."""
        first = tuple(f * by for f in self.factors[:1])
        products = None if self.products is None else self.products.scaled(by)
        return Bound(self.rel * by, self.absolute * by, first + self.factors[1:], products, self.exact, self.judge)


def dense_bound(x: torch.Tensor, bound: Bound) -> torch.Tensor:
    """Returns the whole bound as a flat float64 tensor in x's physical order."""
    e = flat(x).abs() * bound.rel + bound.absolute
    if bound.factors:
        product = in_physical_order(x, bound.factors[0])
        for factor in bound.factors[1:]:
            product = product * in_physical_order(x, factor)
        e = e + product.reshape(-1)
    return e


def bound_at(x: torch.Tensor, bound: Bound, positions: torch.Tensor) -> torch.Tensor:
    """Returns the bound at physical `positions` (int64), float64, without building it everywhere."""
    e = flat(x)[positions].abs() * bound.rel + bound.absolute
    if bound.factors:
        places = coordinates(x, positions)
        product = torch.ones_like(e)
        for factor in bound.factors:
            product = product * factor.expand(x.shape)[tuple(places)] if x.dim() else product * factor
        e = e + product
    return e


_NEAR = 5.0
"""How many bounds from zero a replayer's value can lie whose recorder found it within its reach of zero."""


def sharpened(
    x: torch.Tensor, bound: Bound, positions: Ints, xs: npt.NDArray[Any], es: npt.NDArray[Any], near: float = _NEAR
) -> npt.NDArray[Any]:
    """Returns bounds where those of values within `near` bounds of zero are made from absolute values, not norms.

    A product of vectors that have no element other than zero in common is exactly zero in any order, while their norms
    say otherwise; and a range around zero holds half of all numbers, so its entries are the longest. The recorder takes
    the sharp bound within its reach of zero. The replayer takes it wherever the recorder can have taken it; where it
    alone does, its smaller range has no two values with the same bits either.

    Args:
        x: The wide result.
        bound: Its bound.
        positions: Physical indices.
        xs: The wide values there.
        es: Their bounds.
        near: How near to zero.
    """
    if bound.products is None:
        return es
    near_zero = np.flatnonzero(np.abs(xs) <= near * es)
    if not near_zero.size:
        return es
    sums = bound.products.sizes(coordinates(x, torch.from_numpy(positions[near_zero]).to(x.device)))
    sharp = np.abs(xs[near_zero]) * bound.rel + bound.absolute + sums * bound.products.multiple
    result = es.copy()
    result[near_zero] = np.minimum(es[near_zero], sharp.astype(es.dtype))
    return result


def exact_ties(
    x: torch.Tensor, bound: Bound, positions: Ints, xs: npt.NDArray[Any], dropped: int
) -> npt.NDArray[np.bool_]:
    """Returns which elements lie half way between two narrow values, and are exact, so that no device can differ.

    Sums of few terms of few bits are often ties: an even mean of two bfloat16 values, say. Only the recorder need know:
    what it does not log, a replayer rounds as it is.

    Args:
        x: The wide result, float64 or float32.
        bound: Its bound.
        positions: Physical indices.
        xs: The wide values there.
        dropped: By how many bits the narrow type is shorter than the wide one.
    """
    tie = np.zeros(len(xs), dtype=np.bool_)
    if bound.products is None or not bound.products.alone:
        return tie
    pattern = xs.view(np.uint64).astype(np.int64) if xs.dtype == np.float64 else xs.view(np.uint32).astype(np.int64)
    index = np.flatnonzero((pattern & ((1 << dropped) - 1)) == 1 << (dropped - 1))
    if index.size:
        places = coordinates(x, torch.from_numpy(positions[index]).to(x.device))
        tie[index] = bound.products.exact(places, 53 if xs.dtype == np.float64 else 24)
    return tie
