"""Convolutions and their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import torch

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.bounds import Call, Line, drift, gamma
from weighbridge.numerics.families.sources import PRODUCTS
from weighbridge.numerics.rounding.bound import Bound

aten = torch.ops.aten
Tensor = torch.Tensor


def _grouped_squares(x: Tensor, groups: int) -> Tensor:
    """Sums of squares over the channels of each group, (N, groups, *spatial), float64."""
    n, c = x.shape[:2]
    return reductions.squares(x.view(n, groups, c // groups, *x.shape[2:]), [2]).squeeze(2)


def _conv_norms(w_shape: tuple[int, ...], call: Call) -> Tensor:
    """Norm of the input patch behind every output position, (N, groups, *spatial)."""
    groups = call["groups"]
    squares = _grouped_squares(call.narrow("input"), groups)
    ones = squares.new_ones(groups, 1, *w_shape[2:])
    spread: Tensor = aten.convolution(
        squares, ones, None, call["stride"], call["padding"], call["dilation"],
        call["transposed"], call["output_padding"], groups,
    )  # fmt: skip
    return spread.clamp_min_(0).sqrt_()


def _spread(per_group: Tensor, channels: int) -> Tensor:
    """Repeats (N, groups, *) to (N, channels, *), or keeps one group for broadcasting."""
    groups = per_group.shape[1]
    return per_group if groups == 1 else per_group.repeat_interleave(channels // groups, dim=1)


def convolution(call: Call) -> list[Bound]:
    """Convolution and transposed convolution: gamma(K) * norm(patch) * norm(filter)."""
    w = call["weight"]
    groups, spatial = call["groups"], list(range(2, w.dim()))
    if call["transposed"]:
        k = w.shape[0] // groups * math.prod(w.shape[2:])
        grouped = call.narrow("weight").reshape(groups, w.shape[0] // groups, w.shape[1], -1)
        filters = reductions.norm(grouped, [1, 3]).view(-1)
    else:
        k = math.prod(w.shape[1:])
        filters = reductions.norm(call.narrow("weight"), [1, *spatial]).view(-1)
    g = gamma(k + 8)
    patch = _spread(_conv_norms(tuple(w.shape), call), call.x.shape[1])
    return [Bound(rel=g + drift(k), factors=(patch * (2 * g), filters.view(1, -1, *[1] * len(spatial))))]


def _tap_norms(grad: Tensor, x: Tensor, w: Tensor, call: Call) -> Tensor:
    """Norm of all that a filter tap multiplies, (groups, channels, *taps); zero for taps that see only padding."""
    inner, outer = (grad, x) if call["transposed"] else (x, grad)
    squares = reductions.squares(call.narrow("grad_output" if call["transposed"] else "input"), [0])[0]
    taps = squares.new_zeros(squares.shape[0], *w.shape[2:])
    step, before, apart = (_each(call[name], w.dim() - 2) for name in ("stride", "padding", "dilation"))
    windows = [
        [_seen(k * apart[d] - before[d], step[d], outer.shape[2 + d], inner.shape[2 + d]) for k in range(size)]
        for d, size in enumerate(w.shape[2:])
    ]
    for tap in itertools.product(*(range(n) for n in w.shape[2:])):
        seen: tuple[Any, ...] = (slice(None), *(windows[d][k] for d, k in enumerate(tap)))
        window, place = squares[seen], cast(Any, (slice(None), *tap))
        taps[place] = window.sum(dim=list(range(1, window.dim())))
    return torch.sqrt(taps).view(call["groups"], w.shape[1], *w.shape[2:])


def _each(setting: Sequence[int], dimensions: int) -> Sequence[int]:
    """A convolution's setting for each dimension: one number alone is for all of them (`padding="valid"`)."""
    return setting if len(setting) == dimensions else [setting[0]] * dimensions


def _seen(start: int, stride: int, count: int, length: int) -> slice:
    """Those of start, start + stride, ... (`count` of them) that lie in 0..length."""
    first = max(0, -(start // stride))  # rounded up
    last = min(count - 1, (length - 1 - start) // stride)
    return slice(start + first * stride, start + last * stride + 1, stride) if first <= last else slice(0, 0)


def convolution_backward(call: Call) -> list[Bound]:
    """Gradients of a convolution: each is a sum of products, bounded by the norms of what it sums over."""
    grad, x, w = call["grad_output"], call["input"], call["weight"]
    groups, mask = call["groups"], call["output_mask"]
    spatial = list(range(2, grad.dim()))
    bounds = []
    if mask[0]:
        squares = _grouped_squares(call.narrow("grad_output"), groups)
        ones = squares.new_ones(groups, 1, *w.shape[2:])
        like = squares.new_zeros(x.shape[0], groups, *x.shape[2:])
        spread = aten.convolution_backward(
            squares, like, ones, None, call["stride"], call["padding"], call["dilation"],
            call["transposed"], call["output_padding"], groups, [True, False, False],
        )[0]  # fmt: skip
        if call["transposed"]:
            k, filters = math.prod(w.shape[1:]), reductions.norm(call.narrow("weight"), [1, *spatial]).view(-1)
        else:
            k = w.shape[0] // groups * math.prod(w.shape[2:])
            grouped = call.narrow("weight").reshape(groups, w.shape[0] // groups, w.shape[1], -1)
            filters = reductions.norm(grouped, [1, 3]).view(-1)
        patch = _spread(spread.clamp_min_(0).sqrt_(), x.shape[1])
        bounds.append(Bound(rel=drift(k), factors=(patch * gamma(k + 8), filters.view(1, -1, *[1] * len(spatial)))))
    if mask[1]:
        outer = x if call["transposed"] else grad
        k = outer.shape[0] * math.prod(outer.shape[2:])
        narrow = call.narrow("input" if call["transposed"] else "grad_output")
        rows = reductions.norm(narrow, [0, *spatial]).view(-1) * gamma(k + 8)
        taps = _tap_norms(grad, x, w, call)
        per_row = taps.repeat_interleave(outer.shape[1] // groups, dim=0) if groups > 1 else taps
        bounds.append(Bound(rel=drift(k), factors=(rows.view(-1, 1, *[1] * len(spatial)), per_row)))
    if mask[2]:
        k = grad.shape[0] * math.prod(grad.shape[2:])
        total, _ = reductions.sizes(call.narrow("grad_output"), [0, *spatial])
        bounds.append(Bound(factors=(total.view(-1) * gamma(k + 2),)))
    return bounds


LINES = (
    Line("convolution.default", convolution, PRODUCTS),
    Line(
        "convolution_backward.default",
        convolution_backward,
        PRODUCTS,
        "gamma(K) * norm(what a sum reads of one operand) * norm(what it reads of the other), for each gradient",
    ),
)
