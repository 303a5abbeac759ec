"""Convolutions of 16 bits as a matrix unit multiplies: windows of the input as rows of a matrix, in a prescribed order.

Every result is a sum over K, and K runs in this order (what multiplies has the rest):

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
Sizes = Sequence[int]
Multiply = Callable[[Tensor, Tensor], Tensor]
"""Returns (M, N) or (B, M, N) float32 for (M, K) and (K, N) matrices, or batches of them, of 16-bit values."""


def forward(bound: Mapping[str, Any], multiply: Multiply) -> Tensor:
    """Returns what `aten.convolution` returns, in float32, for operands by their names and what multiplies."""
    x, w, groups = bound["input"], bound["weight"], bound["groups"]
    stride, padding, dilation, extra = (_each(bound[name], x) for name in _SETTINGS)
    if bound["transposed"]:
        sizes = [
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, s, p, d, e, k in zip(x.shape[2:], stride, padding, dilation, extra, w.shape[2:], strict=True)
        ]
        out = _of_input(multiply, x, w, sizes, stride, padding, dilation, groups)
    else:
        out = _forward(multiply, x, w, stride, padding, dilation, groups)
    bias = bound["bias"]
    return out if bias is None else out + bias.view(1, -1, *[1] * (x.dim() - 2))


def backward(bound: Mapping[str, Any], multiply: Multiply) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns what `aten.convolution_backward` returns, in float32, for operands by name and what multiplies."""
    grad, x, w, groups = bound["grad_output"], bound["input"], bound["weight"], bound["groups"]
    settings = *(_each(bound[name], x) for name in _SETTINGS[:3]), groups
    wanted = bound["output_mask"]
    of_input = of_weight = of_bias = None
    if wanted[0]:
        straight = bound["transposed"]
        straight_on, back = (multiply, grad, w), (multiply, grad, w, x.shape[2:])
        of_input = _forward(*straight_on, *settings) if straight else _of_input(*back, *settings)
    if wanted[1]:
        pair = (x, grad) if bound["transposed"] else (grad, x)
        of_weight = _of_weight(multiply, *pair, w, *settings)
    if wanted[2]:
        ones = torch.ones(1, grad.numel() // max(1, grad.shape[1]), device=grad.device)
        of_bias = multiply(ones, grad.transpose(0, 1).flatten(1).mT)[0]
    return of_input, of_weight, of_bias


_AT_ONCE = 1 << 24
"""Most elements of windows, or of a column of them if that is longer, that are copied at once."""
_SETTINGS = ("stride", "padding", "dilation", "output_padding")


def _each(value: Sizes, x: Tensor) -> list[int]:
    """Returns a setting for each dimension; one number stands for all."""
    return list(value) * (x.dim() - 2) if len(value) == 1 else list(value)


def _windows(x: Tensor, sizes: Sizes, stride: Sizes, dilation: Sizes) -> Tensor:
    """Returns (N, C, places, filter's places) as a view of a padded (N, C, ...) that may be copied."""
    for at, (size, step, apart) in enumerate(zip(sizes, stride, dilation, strict=True)):
        x = x.unfold(2 + at, apart * (size - 1) + 1, step)[..., ::apart]
    return x


def _pieces(shape: Sizes, each: int) -> Iterator[tuple[slice, ...]]:
    """Yields boxes that together are a shape, as few as can be of at most `_AT_ONCE` numbers, `each` for an index."""
    inner = math.prod(shape[1:]) * each
    if inner >= _AT_ONCE and len(shape) > 1:
        for at in range(shape[0]):
            yield from ((slice(at, at + 1), *rest) for rest in _pieces(shape[1:], each))
        return
    step = max(1, _AT_ONCE // max(1, inner))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0])), *(slice(0, size) for size in shape[1:])


def _convolved(
    multiply: Multiply, padded: Tensor, w: Tensor, columns: Tensor, stride: Sizes, dilation: Sizes
) -> Tensor:
    """Multiplies the windows of a padded input, piece by piece: together they are as often larger as the filter is.

    Args:
        multiply: Multiplies matrices.
        padded: (N, groups * C, ...).
        w: The filter, of which the sizes matter.
        columns: (groups, C * filter's places, channels of a group).
        stride: Of windows.
        dilation: Between elements of one.

    Returns:
        (N, groups * channels, places).
    """
    windows, dimensions = _windows(padded, w.shape[2:], stride, dilation), w.dim() - 2
    groups, length, channels = columns.shape
    count, places = padded.shape[0], windows.shape[2 : 2 + dimensions]
    out = torch.empty(count, groups * channels, *places, device=padded.device)
    for batch, *box in _pieces((count, *places), groups * length):
        part = windows[(batch, slice(None), *box)]
        sizes = part.shape[2 : 2 + dimensions]
        apart = part.reshape(part.shape[0], groups, -1, sizes.numel(), w.shape[2:].numel())
        rows = apart.permute(1, 0, 3, 2, 4).reshape(groups, -1, length)
        found = multiply(rows, columns).view(groups, part.shape[0], sizes.numel(), channels)
        out[(batch, slice(None), *box)] = found.permute(1, 0, 3, 2).reshape(part.shape[0], -1, *sizes)
    return out


def _forward(
    multiply: Multiply, x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    columns = w.reshape(groups, w.shape[0] // groups, -1).mT
    padded = torch.nn.functional.pad(x, _edges(padding))
    return _convolved(multiply, padded, w, columns, stride, dilation)


def _edges(padding: Sizes) -> list[int]:
    return [p for each in reversed(padding) for p in (each, each)]


def _of_input(
    multiply: Multiply, grad: Tensor, w: Tensor, sizes: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes,
    groups: int,
) -> Tensor:  # fmt: skip
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
    filters = w.view(groups, w.shape[0] // groups, w.shape[1], -1).flip(3)  # (groups, filters, channels, places)
    columns = filters.permute(0, 1, 3, 2).reshape(groups, -1, w.shape[1])
    return _convolved(multiply, padded, w, columns, [1] * len(sizes), dilation)


def _of_weight(
    multiply: Multiply, grad: Tensor, x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes,
    groups: int,
) -> Tensor:  # fmt: skip
    padded = torch.nn.functional.pad(x, _edges(padding))
    windows = _windows(padded, w.shape[2:], stride, dilation)
    count, places = grad.shape[0], grad.shape[2:]
    kept = tuple(slice(0, size) for size in places)  # without windows at the end that no result came from
    windows = windows[(slice(None), slice(None), *kept)]
    windows = windows.view(count, groups, -1, *windows.shape[2:])
    rows = grad.reshape(count, groups, -1, places.numel()).permute(1, 2, 0, 3).flatten(2)
    out = torch.empty(groups, rows.shape[1], *w.shape[1:], device=grad.device)
    for channels, *box in _pieces(w.shape[1:], groups * count * places.numel()):
        part = windows[(slice(None), slice(None), channels, *[slice(None)] * len(places), *box)]
        order = (1, 0, *range(3, 3 + len(places)), 2, *range(3 + len(places), part.dim()))
        columns = part.permute(order).reshape(groups, count * places.numel(), -1)
        sizes = part.shape[2], *part.shape[3 + len(places) :]
        found = multiply(rows, columns)
        out[(slice(None), slice(None), channels, *box)] = found.view(groups, -1, *sizes)
    return out.view(w.shape)
