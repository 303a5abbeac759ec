"""Sampling at the points of a grid, its gradients and affine grids, in any number of dimensions.

Along each dimension a point has taps: places, each with a weight. A value is the sum over all combinations of taps of
the element there times the product of its weights. Coordinates and weights are sequences of IEEE operations, each with
one right answer, which are their definition: only sums over taps, channels and points are rounded. Where PyTorch's
kernels differ in the last bits of a coordinate, a point on the edge of a cell may lie on its other side here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes
from weighbridge.numerics.rewrites.single_precision import single

Tensor = torch.Tensor

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1
_A = -0.75
_FAR = 2.0**31
_OUTSIDE = -100.0
"""Where PyTorch's kernels put a point whose coordinate is no number or fits no integer: outside of every image."""


@dataclass(frozen=True)
class _Axis:
    """The taps of every point along one dimension.

    Attributes:
        places: Elements along the dimension (batch, taps, points); 0 for what lies outside.
        inside: Which of them there are.
        weights: What they count, of the same shape.
        slopes: Derivatives of the weights by the coordinate, of the same shape; None if they were not asked for.
        scale: The derivative of the coordinate by the grid's number (batch, points).
    """

    places: Tensor
    inside: Tensor
    weights: Tensor
    slopes: Tensor | None = None
    scale: Tensor | float = 1.0


def _reflected(x: Tensor, size: int, align_corners: bool) -> tuple[Tensor, Tensor | None]:
    """Returns coordinates reflected at the edges, and where they run backwards; None if all are one."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return torch.zeros_like(x), None
    away = (x - low).abs()
    flips = (away / span).floor()
    rest = away - flips * span
    half = flips * 0.5
    odd = half != half.floor()
    return torch.where(odd, span - rest, rest) + low, odd ^ (x < low)


def _clipped(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns coordinates within the image, 0 for what is no number, and which of them were inside before."""
    above = x > 0
    x = torch.where(above, x, 0.0)
    below = x < size - 1
    return torch.where(below, x, size - 1.0), above & below


def _padded(x: Tensor, size: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns coordinates as the padding moves them, which of them still move, and which of these backwards."""
    if padding == _ZEROS:
        return torch.where(x.abs() < _FAR, x, _OUTSIDE), None, None
    moved, backwards = (x, None) if padding == _BORDER else _reflected(x, size, align_corners)
    return *_clipped(moved, size), backwards


def _speed(x: Tensor, scale: float, free: Tensor | None, backwards: Tensor | None) -> Tensor | float:
    """Returns the derivative of padded coordinates by the grid's numbers."""
    if free is None:
        return scale
    forwards = torch.full_like(x, scale)
    return torch.where(free, forwards if backwards is None else torch.where(backwards, -forwards, forwards), 0.0)


def _near(u: Tensor) -> Tensor:
    """The cubic kernel at a distance of at most 1."""
    return (u * (_A + 2) - (_A + 3)) * u * u + 1


def _far(u: Tensor) -> Tensor:
    """The cubic kernel at a distance of 1 to 2."""
    return ((u * _A - 5 * _A) * u + 8 * _A) * u - 4 * _A


def _near_slope(u: Tensor) -> Tensor:
    return (u * (3 * (_A + 2)) - 2 * (_A + 3)) * u


def _far_slope(u: Tensor) -> Tensor:
    return (u * (3 * _A) - 10 * _A) * u + 8 * _A


def _axis(g: Tensor, size: int, mode: int, padding: int, align_corners: bool, slopes: bool) -> _Axis:
    """Returns the taps along a dimension of `size` elements for the numbers of a grid (batch, points) from -1 to 1."""
    scale = (size - 1) / 2 if align_corners else size / 2
    x = (g + 1) * 0.5 * (size - 1) if align_corners else ((g + 1) * size - 1) * 0.5
    free = backwards = None
    if mode in (_BILINEAR, _NEAREST) or padding == _ZEROS:
        x, free, backwards = _padded(x, size, padding, align_corners)
    first = x.round() if mode == _NEAREST else x.floor()
    t, by_coordinate = x - first, []
    if mode == _NEAREST:
        taps, weights = first.unsqueeze(1), torch.ones_like(first).unsqueeze(1)
    elif mode == _BILINEAR:
        taps, weights = torch.stack([first, first + 1], 1), torch.stack([1 - t, t], 1)
        by_coordinate = [-torch.ones_like(t), torch.ones_like(t)] if slopes else []
    else:
        before, after, behind = t + 1, 1 - t, 2 - t
        taps = torch.stack([first - 1, first, first + 1, first + 2], 1)
        if padding != _ZEROS:  # of each tap by itself: the weights stay those of the point where it was
            taps = _padded(taps, size, padding, align_corners)[0]
        weights = torch.stack([_far(before), _near(t), _near(after), _far(behind)], 1)
        if slopes:
            by_coordinate = [_far_slope(before), _near_slope(t), -_near_slope(after), -_far_slope(behind)]
    inside = (taps >= 0) & (taps <= size - 1)
    places = torch.where(inside, taps, 0.0).to(torch.int64)
    if not slopes:
        return _Axis(places, inside, weights)
    return _Axis(places, inside, weights, torch.stack(by_coordinate, 1), _speed(x, scale, free, backwards))


class _Taps:
    """All combinations of taps of every point of a grid in an image.

    Args:
        x: An image (batch, channels, *sizes).
        grid: Points in it (batch, *shape, len(sizes)), the last dimension first.
        slopes: Whether the gradient of the grid is wanted.
    """

    def __init__(self, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, slopes: bool) -> None:
        self.batch, self.channels, *self.sizes = x.shape
        points = grid.contiguous().view(self.batch, math.prod(grid.shape[1:-1]), len(self.sizes))
        self.axes = [
            _axis(points[..., -1 - d], size, mode, padding, align_corners, slopes) for d, size in enumerate(self.sizes)
        ]
        strides = [math.prod(self.sizes[d + 1 :]) for d in range(len(self.sizes))]
        self.places = self._combined(
            [a.places if s == 1 else a.places * s for a, s in zip(self.axes, strides, strict=True)], torch.add
        )
        self.inside = self._combined([a.inside for a in self.axes], torch.bitwise_and)
        self.index = self.places.flatten(1).unsqueeze(1).expand(-1, self.channels, -1)

    def _combined(self, each: list[Tensor], combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Combines one (batch, taps, points) of every axis into (batch, combinations, points)."""
        whole = each[0]
        for other in each[1:]:
            whole = combine(whole.unsqueeze(2), other.unsqueeze(1)).flatten(1, 2)
        return whole

    def weights(self, along: int | None = None) -> Tensor:
        """Returns the weights (batch, combinations, points), or their derivatives by one coordinate."""
        each = [a.weights if d != along or a.slopes is None else a.slopes for d, a in enumerate(self.axes)]
        return self._combined(each, torch.mul)

    def kept(self, products: Tensor) -> Tensor:
        """Returns products (batch, channels, combinations, points) with 0 for what lies outside.

        They are replaced: what has been gathered in their place may be infinite or no number.
        """
        return torch.where(self.inside.unsqueeze(1), products, 0.0)

    def values(self, x: Tensor) -> Tensor:
        """Returns the elements at all taps (batch, channels, combinations, points)."""
        return x.flatten(2).gather(2, self.index).view(*x.shape[:2], *self.places.shape[1:])


@decomposes("grid_sampler_2d.default", "grid_sampler_3d.default")
def _sample(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    wide = single(x)
    taps = _Taps(wide, single(grid), mode, padding, align_corners, slopes=False)
    total = taps.kept(taps.values(wide) * taps.weights().unsqueeze(1)).sum(2)
    return total.view(*x.shape[:2], *grid.shape[1:-1]).to(x.dtype)


@decomposes("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def _sample_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of the image, all of whose taps are added at once, and of the grid."""
    wide, slopes = single(x), output_mask[1] and mode != _NEAREST
    taps = _Taps(wide, single(grid), mode, padding, align_corners, slopes)
    above = single(grad).reshape(*x.shape[:2], 1, taps.places.shape[2])
    of_x = of_grid = None
    if output_mask[0]:
        shares = taps.kept(above * taps.weights().unsqueeze(1)).flatten(2)
        of_x = torch.zeros_like(wide, memory_format=torch.contiguous_format).flatten(2)
        of_x = of_x.scatter_add(2, taps.index, shares).view(x.shape).to(x.dtype)
    if output_mask[1] and not slopes:
        of_grid = torch.zeros_like(grid, memory_format=torch.contiguous_format)
    elif output_mask[1]:
        channels = taps.kept(above * taps.values(wide)).sum(1)
        along = [(channels * taps.weights(d)).sum(1) * axis.scale for d, axis in enumerate(taps.axes)]
        of_grid = torch.stack(along[::-1], -1).view(grid.shape).to(grid.dtype)
    return of_x, of_grid


def _from_minus_one(n: int, align_corners: bool, like: Tensor) -> Tensor:
    """Returns the middles of n pixels between -1 and 1, or with the outer ones on these, each rounded once."""
    if n == 1:
        return torch.zeros(1, dtype=like.dtype, device=like.device)
    steps = torch.arange(1 - n, n, 2, dtype=like.dtype, device=like.device)
    return steps / (n - 1 if align_corners else n)


@decomposes("affine_grid_generator.default")
def _affine_grid(theta: Tensor, size: list[int], align_corners: bool) -> Tensor:
    """One multiplication for each dimension, and additions."""
    wide, d = single(theta), len(size) - 2
    columns = [wide[:, :, k].reshape(-1, *[1] * d, d) for k in range(d + 1)]
    total = columns[d]
    for k, n in enumerate(size[:1:-1]):
        steps = _from_minus_one(n, align_corners, wide)
        total = total + columns[k] * steps.view(n, *[1] * (k + 1))
    return total.to(theta.dtype).contiguous()
