"""Pooling: means over windows, and gradients of means and maxima."""

from __future__ import annotations

import math

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.bounds import Call, Line, area, linear, unless_exact
from weighbridge.numerics.families.sources import SUMS
from weighbridge.numerics.rounding.bound import Bound


def _window(call: Call) -> int:
    size = call["kernel_size"]
    if len(size) == 1:  # one number is for all dimensions
        return int(size[0]) ** (3 if "3d" in call.name else 2)
    return math.prod(size)


def max_pool_backward(call: Call) -> list[Bound]:
    """max_pool{2,3}d_with_indices_backward: sums of at most a window of gradients, exact more often than not."""
    g, spatial = call.narrow("grad_output"), list(range(-len(call["kernel_size"]), 0))
    sums = linear("grad_output", lambda c: math.prod(c["kernel_size"]))(call)[0].factors[0]
    return [Bound(factors=(unless_exact(sums, reductions.sizes(g, spatial)[1]),))] if g.numel() else [Bound()]


LINES = (
    Line("avg_pool2d.default avg_pool3d.default", linear("self", _window), SUMS),
    Line("avg_pool2d_backward.default avg_pool3d_backward.default", linear("grad_output", _window), SUMS),
    Line("_adaptive_avg_pool2d.default _adaptive_avg_pool3d.default", linear("self", area), SUMS),
    Line(
        "_adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d_backward.default",
        linear("grad_output", area),
        SUMS,
    ),
    Line(
        "max_pool2d_with_indices_backward.default max_pool3d_with_indices_backward.default",
        max_pool_backward,
        SUMS,
        "gamma(window) * sum|gradient|; 0 where the sum is exact in float64 in any order",
    ),
)
