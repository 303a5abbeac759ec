"""A Prover under a truncating unit who chooses one rounding, with a log that says so, and goes on from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from weighbridge.numerics.arrays.physical import coordinates, flat
from weighbridge.numerics.rounding import formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.formats import to_format
from weighbridge.numerics.units import chunked_products


class Choosing:
    """Has one flip of a product suppressed, or made up. Stands in the place of `narrow.record`.

    Attributes:
        lies: How many it has told.
    """

    def __init__(self, shape: tuple[int, int], *, suppress: bool, honest: int = 0) -> None:
        """Takes the shape of the product's result, and how many such results come out honestly before."""
        self.suppress, self.lies = suppress, 0
        self._shape, self._honest = shape, honest

    def record(self, x: torch.Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
        if bound.judge is None or tuple(x.shape) != self._shape or self.lies:
            return narrow.record(x, bound, dtype, op, output)
        if self._honest:
            self._honest -= 1
            return narrow.record(x, bound, dtype, op, output)
        judge: Any = bound.judge
        y = chunked_products.chunked(judge.a, judge.b).sums.float() + judge.added
        other = (to_format(x, dtype) != to_format(y, dtype)).flatten()
        if self.suppress:
            (place, *_), value = other.nonzero().flatten().tolist(), flat(y)
        else:
            e = bound.factors[0].expand(x.shape)
            near = (to_format(y - e, dtype) != to_format(y, dtype)).flatten() & ~other
            (place, *_), value = near.nonzero().flatten().tolist(), flat(y - e)
        self.lies += 1
        lying = x.clone()
        flat(lying)[place] = value[place]
        assert float(judge.at(coordinates(x, torch.tensor([place])))) == float(flat(x)[place])
        return narrow.record(lying, bound, dtype, op, output)


class Flipping:
    """Flips the lowest bit of the first element of an operation's result, which no bound admits; no log says so.

    `support.disputed.cheat` with the same operation gives the leaves of such a run.
    """

    def __init__(self, op: int, honest: int) -> None:
        """Takes the operation's number in the step, and in how many steps it comes out honestly before."""
        self._op, self._honest = op, honest

    def record(self, x: torch.Tensor, bound: Bound, dtype: torch.dtype, op: int, output: int) -> Rounded:
        found = narrow.record(x, bound, dtype, op, output)
        self._honest -= op == self._op
        if op != self._op or self._honest != -1:
            return found
        out = flat(found.out)
        out.view(torch.int16)[0] ^= 1
        return replace(found, checksum=formats.checksum(out))
