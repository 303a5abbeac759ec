"""One result of a unit that truncates: what the unit makes of its elements, and how probable it is that each flips.

How probable a flip is follows from the unit's errors at some of these elements, drawn at random: the share of these
errors, over the bound, that would carry the element past its boundary. Where in its interval an element lies, and how
large the unit's error is there, do not depend on each other. Elements of other kinds have other errors: where a sum is
nearly zero, many could flip, and few do.

Where a bound is not finite, the log may name a neighbour of the replayer's result, and where the result is not finite,
any other that is not. So these could flip too.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import torch

from weighbridge.numerics.arrays.physical import coordinates, flat
from weighbridge.numerics.rounding.bound import Bound, Judge, dense_bound
from weighbridge.numerics.rounding.formats import to_format

Tensor = torch.Tensor

PROBES = 64
"""Elements of a result, of those that could flip, at which the unit's error is looked at, and which are judged."""
UNSEEN = 1.0 / (4 * PROBES)
"""What is added to the probability of a flip: an error that none of these elements had is not impossible."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What some elements say of all that could flip; on the processor.

    Attributes:
        chances: How probable it is that each flips.
        weights: The bits that are charged for each that is not judged, and what they are drawn by.
        places: Which of them were looked at.
        right: Which of these are what the unit makes of them.
    """

    chances: Tensor
    weights: Tensor
    places: Tensor
    right: Tensor


@dataclass(frozen=True, slots=True)
class Result:
    """A result that was rounded to 16 bits.

    Attributes:
        wide: The replayer's wide result.
        bound: Its bound.
        judge: Says what the unit makes of its elements.
        out: The result as the log has it.
    """

    wide: Tensor
    bound: Bound
    judge: Judge
    out: Tensor

    def right(self, at: Tensor, unit: str = "", chain: int | None = None) -> Tensor:
        """Returns which elements, by physical index, are what a unit makes of them; on the processor."""
        if not len(at):
            return torch.zeros(0, dtype=torch.bool)
        return self.same(at, self.judge.at(coordinates(self.wide, at), unit, chain))

    def same(self, at: Tensor, wide: Tensor) -> Tensor:
        """Returns which elements, by physical index, these wide values are rounded to; on the processor."""
        rounded = to_format(wide.to(self.out.device), self.out.dtype).view(torch.int16)
        return (rounded == flat(self.out)[at].view(torch.int16)).cpu()

    def could_flip(self) -> Tensor:
        """Returns the elements, by physical index, for which the log could name another value.

        These have a boundary of rounding within their bound, or are not finite, or their bound is not.
        """
        y, e, dtype = flat(self.wide).double(), dense_bound(self.wide, self.bound).double(), self.out.dtype
        odd = to_format(y - e, dtype).view(torch.int16) != to_format(y + e, dtype).view(torch.int16)
        return (odd | ~torch.isfinite(y) | ~torch.isfinite(e)).nonzero().flatten()

    def looked_at(self, at: Tensor) -> Looked:
        """Judges some elements, drawn at random, and says how probable it is that each flips, as far as they show."""
        if not len(at):
            none = torch.zeros(0, dtype=torch.float64)
            return Looked(none, none, none.long(), none.bool())
        y, e = (t[at].cpu() for t in (flat(self.wide).double(), dense_bound(self.wide, self.bound).double()))
        size, dtype = y.abs(), self.out.dtype
        own = to_format(size, dtype)
        pattern, here = own.view(torch.int16), _value(own)
        above = (here + _value((pattern + 1).view(dtype))) / 2
        below = torch.where(pattern > 0, (here + _value((pattern - 1).view(dtype))) / 2, -above)
        limit = torch.where(torch.isfinite(e), e, above - below)  # without a bound, the log may name the next value
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        places = torch.unique(torch.randint(len(at), (PROBES,), generator=generator))
        probes = at[places.to(at.device)]
        found = self.judge.at(coordinates(self.wide, probes))
        errors = (found.double().cpu() - y[places]) * y[places].sign() / limit[places]
        errors = errors[torch.isfinite(errors)].sort().values
        chances = torch.zeros(len(at), dtype=torch.float64)
        if len(errors):
            down = torch.searchsorted(errors, (below - size) / limit)
            up = len(errors) - torch.searchsorted(errors, (above - size) / limit, right=True)
            chances = torch.where(torch.isfinite(y), (down + up).double() / len(errors), 0.0)
        weights = torch.where(torch.isfinite(y), chances + UNSEEN, 1.0)
        return Looked(chances, weights, places, self.same(probes, found))


def is_units(wide: Tensor, bound: Bound, out: Tensor, other: Tensor) -> bool:
    """Returns whether the unit has another result where two results differ; also if no unit is declared.

    Args:
        wide: The replayer's wide result.
        bound: Its bound.
        out: How that is rounded.
        other: How else it could be.
    """
    if bound.judge is None:
        return True
    changed = (flat(out).view(torch.int16) != flat(other).view(torch.int16)).nonzero().flatten()
    return bool(Result(wide, bound, bound.judge, other).right(changed).all())


def _value(x: Tensor) -> Tensor:
    """Returns numbers of 16 bits in float64; of what is beyond the largest, what would come after that."""
    end = 2.0 ** math.frexp(torch.finfo(x.dtype).max)[1]
    return x.double().nan_to_num(nan=end, posinf=end)
