"""Convolutions of 16 bits as a matrix unit multiplies: windows of the input as rows of a matrix, in a prescribed order.

Every result is a sum over K, and K runs in this order (`weighbridge.numerics.units.fused_products` has the rest):

- *forward*: the channels of the group, and in each the places of the filter, row by row;
- *gradient of the input*: the filters of the group, and in each its places, from the last to the first. It is the
  convolution of the gradient, with zeros between its elements for strides, with filters turned around;
- *gradient of the weight*: the batch, and in each element the places of the result, row by row;
- *gradient of the bias*: the same, each times one.

Places beyond the edge, and between the elements of such a gradient, are zeros that are multiplied as any number. A
transposed convolution is the gradient of the input of another one, and the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weighbridge.numerics.units import fused_products

Tensor = torch.Tensor
Sizes = Sequence[int]


def forward(bound: Mapping[str, Any]) -> Tensor:
    """Returns what `aten.convolution` returns, in float32, for operands by their names."""
    x, w, groups = bound["input"], bound["weight"], bound["groups"]
    stride, padding, dilation, extra = (_each(bound[name], x) for name in _SETTINGS)
    if bound["transposed"]:
        sizes = [
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, s, p, d, e, k in zip(x.shape[2:], stride, padding, dilation, extra, w.shape[2:], strict=True)
        ]
        out = _of_input(x, w, sizes, stride, padding, dilation, groups)
    else:
        out = _forward(x, w, stride, padding, dilation, groups)
    bias = bound["bias"]
    return out if bias is None else out + bias.view(1, -1, *[1] * (x.dim() - 2))


def backward(bound: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns what `aten.convolution_backward` returns, in float32, for operands by their names."""
    grad, x, w, groups = bound["grad_output"], bound["input"], bound["weight"], bound["groups"]
    settings = *(_each(bound[name], x) for name in _SETTINGS[:3]), groups
    wanted = bound["output_mask"]
    of_input = of_weight = of_bias = None
    if wanted[0]:
        straight = bound["transposed"]
        of_input = _forward(grad, w, *settings) if straight else _of_input(grad, w, x.shape[2:], *settings)
    if wanted[1]:
        pair = (x, grad) if bound["transposed"] else (grad, x)
        of_weight = _of_weight(*pair, w, *settings)
    if wanted[2]:
        ones = torch.ones(1, grad.numel() // max(1, grad.shape[1]), device=grad.device)
        of_bias = fused_products.product(ones, grad.transpose(0, 1).flatten(1).mT)[0]
    return of_input, of_weight, of_bias


_SETTINGS = ("stride", "padding", "dilation", "output_padding")


def _each(value: Sizes, x: Tensor) -> list[int]:
    """Returns a setting for each dimension; one number stands for all."""
    return list(value) * (x.dim() - 2) if len(value) == 1 else list(value)


def _windows(x: Tensor, sizes: Sizes, stride: Sizes, dilation: Sizes) -> Tensor:
    """Returns (N, C, places, filter's places) as a view of a padded (N, C, ...) that may be copied."""
    for at, (size, step, apart) in enumerate(zip(sizes, stride, dilation, strict=True)):
        x = x.unfold(2 + at, apart * (size - 1) + 1, step)[..., ::apart]
    return x


def _rows(x: Tensor, sizes: Sizes, stride: Sizes, dilation: Sizes, groups: int) -> tuple[Tensor, list[int]]:
    """Returns windows as (groups, N * places, channels of a group * filter's places), and the places by dimension."""
    windows = _windows(x, sizes, stride, dilation)
    dimensions, (count, channels) = len(sizes), x.shape[:2]
    places = list(windows.shape[2 : 2 + dimensions])
    apart = windows.reshape(count, groups, channels // groups, math.prod(places), math.prod(sizes))
    return apart.permute(1, 0, 3, 2, 4).reshape(groups, count * math.prod(places), -1), places


def _forward(x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Tensor:
    edges = [p for each in reversed(padding) for p in (each, each)]
    rows, places = _rows(torch.nn.functional.pad(x, edges), w.shape[2:], stride, dilation, groups)
    return _merged(fused_products.product(rows, w.reshape(groups, w.shape[0] // groups, -1).mT), x.shape[0], places)


def _merged(out: Tensor, count: int, places: Sizes) -> Tensor:
    """Returns (groups, N * places, channels of a group) as (N, channels, ...)."""
    groups, _, channels = out.shape
    apart = out.view(groups, count, math.prod(places), channels)
    return apart.permute(1, 0, 3, 2).reshape(count, groups * channels, *places)


def _of_input(
    grad: Tensor, w: Tensor, sizes: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    """Returns the gradient of an input of these sizes."""
    spread = [(n - 1) * s + 1 for n, s in zip(grad.shape[2:], stride, strict=True)]
    apart = grad.new_zeros(*grad.shape[:2], *spread)
    inner = apart
    for at, step in enumerate(stride):
        inner = inner[(slice(None),) * (2 + at) + (slice(None, None, step),)]
    inner.copy_(grad)
    edges: list[int] = []
    for at in reversed(range(len(sizes))):
        before = dilation[at] * (w.shape[2 + at] - 1) - padding[at]
        edges += [before, sizes[at] - spread[at] + padding[at]]
    padded = torch.nn.functional.pad(apart, edges)
    rows, places = _rows(padded, w.shape[2:], [1] * len(sizes), dilation, groups)
    filters = w.view(groups, w.shape[0] // groups, w.shape[1], -1).flip(3)  # (groups, filters, channels, places)
    columns = filters.permute(0, 1, 3, 2).reshape(groups, -1, w.shape[1])
    return _merged(fused_products.product(rows, columns), grad.shape[0], places)


def _of_weight(
    grad: Tensor, x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    edges = [p for each in reversed(padding) for p in (each, each)]
    rows, places = _rows(torch.nn.functional.pad(x, edges), w.shape[2:], stride, dilation, groups)
    wanted = grad.shape[2:].numel()
    if wanted != math.prod(places):  # windows at the end that no result came from
        windows = rows.view(groups, x.shape[0], *places, -1)
        kept = (slice(None), slice(None), *(slice(n) for n in grad.shape[2:]))
        rows = windows[kept].reshape(groups, x.shape[0] * wanted, -1)
    apart = grad.reshape(grad.shape[0], groups, -1, wanted).permute(1, 2, 0, 3).flatten(2)
    return fused_products.product(apart, rows).view(w.shape)
