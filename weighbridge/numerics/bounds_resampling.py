"""Error bounds of interpolation with weights of both signs; notation and contract as in `bounds`."""

from __future__ import annotations

import torch

from weighbridge.numerics import bounds
from weighbridge.numerics.bounds import BoundFunction, Call
from weighbridge.numerics.rounding import Bound


def cubic(operand: str) -> BoundFunction:
    """Bicubic interpolation and its backward: 512*u*L times the largest element, or the sum, of the plane.

    A weight is a cubic of the fraction t of a coordinate c <= L (Keys 1981, "Cubic convolution interpolation", with
    a = -0.75): |w| <= 1, |dw/dt| <= 2, and the four of one direction add up to at most 1.5 in absolute value. t errs
    by at most 4*u*L, and the cubic by 16 roundings. So an output, a sum of 16 elements with products of two weights,
    errs by less than 2*1.5*4*(2*4*u*L + 16*u) + 32*u times the largest element, below 512*u*L; an input's gradient by
    as much of each gradient in its plane. Weights are continuous, so nothing jumps where c crosses a whole number.
    """

    def bound(call: Call) -> list[Bound]:
        x, spatial = call[operand], [2, 3]
        length = max(*x.shape[2:], *call.x.shape[2:])
        if not x.numel():
            return [Bound()]
        plane: torch.Tensor = (
            x.abs().sum(dim=spatial, keepdim=True) if "grad" in operand else x.abs().amax(dim=spatial, keepdim=True)
        )
        return [Bound(factors=(plane * (512 * bounds.U * length),))]

    return bound
