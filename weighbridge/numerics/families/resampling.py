"""Interpolation, and gradients of padding and of interpolation."""

from __future__ import annotations

import math

import torch

from weighbridge.numerics.bounds import BoundFunction, Call, Line, U, area, linear
from weighbridge.numerics.families.sources import ANALYSIS, SUMS
from weighbridge.numerics.rounding.bound import Bound


def interpolation(operand: str) -> BoundFunction:
    """gamma(n) * F(|x|) + 32*u*(longest side) * largest element of the plane (backward: sum of the plane).

    Bilinear interpolation and its backward: `linear`, and weights that err by a few u times the coordinate. A weight is
    the fraction of a coordinate c <= L, so it errs by a small multiple of u*L whatever its own size. An output sums at
    most 4 such errors times elements of its plane; an input's gradient at most all of its plane.
    """

    def bound(call: Call) -> list[Bound]:
        x, spatial = call[operand], list(range(2, call.x.dim()))
        own = linear(operand, lambda c: math.prod(c[operand].shape[2:]))(call)[0].factors[0]
        length = max(*x.shape[2:], *call.x.shape[2:])
        plane = x.abs().sum(dim=spatial, keepdim=True) if "grad" in operand else x.abs().amax(dim=spatial, keepdim=True)
        return [Bound(factors=(own + plane * (32 * U * length),))]

    return bound


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
        return [Bound(factors=(plane * (512 * U * length),))]

    return bound


_KEYS = "Keys 1981; first-order analysis in the code"

LINES = (
    Line(
        "reflection_pad1d_backward.default reflection_pad2d_backward.default reflection_pad3d_backward.default "
        "replication_pad1d_backward.default replication_pad2d_backward.default replication_pad3d_backward.default "
        "upsample_nearest1d_backward.default upsample_nearest2d_backward.default upsample_nearest3d_backward.default "
        "_upsample_nearest_exact1d_backward.default _upsample_nearest_exact2d_backward.default "
        "_upsample_nearest_exact3d_backward.default",
        linear("grad_output", area),
        SUMS,
    ),
    Line("upsample_bilinear2d.default upsample_trilinear3d.default", interpolation("self"), ANALYSIS),
    Line(
        "upsample_bilinear2d_backward.default upsample_trilinear3d_backward.default",
        interpolation("grad_output"),
        ANALYSIS,
    ),
    Line("upsample_bicubic2d.default", cubic("self"), _KEYS),
    Line("upsample_bicubic2d_backward.default", cubic("grad_output"), _KEYS),
)
