"""Calls of what `weighbridge.numerics.rewrites.grids` decomposes."""

from __future__ import annotations

from support.operator_calls.draw import Call, Draw, call, of
from torch import Tensor


def _sampled(draw: Draw, d: int) -> tuple[Tensor, Tensor, int, int, bool]:
    """An image, points within and around it, none at or near the edge of a cell, and settings."""
    n, out = draw.size(1, 2), [draw.size(1, 3) for _ in range(d)]
    points = draw.whole(6, n, *out, d) - 3 + (draw.whole(96, n, *out, d) + 1).to(draw.dtype) / 97
    x = draw.real(n, draw.size(1, 3), *(draw.size() for _ in range(d)))
    return x, points, draw.size(0, 2 if d == 2 else 1), draw.size(0, 2), draw.flag()


@of("grid_sampler_2d.default", "grid_sampler_3d.default")
def _(draw: Draw, key: str) -> Call:
    return call(*_sampled(draw, 2 if "2d" in key else 3))


@of("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def _(draw: Draw, key: str) -> Call:
    x, points, *settings = _sampled(draw, 2 if "2d" in key else 3)
    return call(draw.real(*x.shape[:2], *points.shape[1:-1]), x, points, *settings, [draw.flag(), True])


@of("affine_grid_generator.default")
def _(draw: Draw) -> Call:
    n, d = draw.size(1, 2), draw.size(2, 3)
    return call(draw.real(n, d, d + 1), [n, 1, *(draw.size() for _ in range(d))], draw.flag())
