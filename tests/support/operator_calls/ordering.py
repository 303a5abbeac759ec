"""Calls of what `weighbridge.numerics.rewrites.ordering` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of


@of("sort.default", "topk.default", "kthvalue.default", "median.dim")
def _(draw: Draw, key: str) -> Call:
    shape = draw.shape(1)
    dim = draw.of(*range(-len(shape), len(shape)))
    x, n = draw.apart(*shape), shape[dim]
    if key == "sort.default":
        return call(x, dim, draw.flag())
    if key == "topk.default":
        return call(x, draw.size(0, n), dim, draw.flag())
    return call(x, draw.size(1, n), dim, draw.flag()) if key == "kthvalue.default" else call(x, dim, draw.flag())


@of("_unique2.default")
def _(draw: Draw) -> Call:
    x = draw.whole(3, *draw.shape(1)).to(draw.of(draw.dtype, torch.int64))
    return call(x, True, draw.flag(), draw.flag())


@of("histc.default")
def _(draw: Draw) -> Call:
    """Away from the ends of bins, where the last bit decides."""
    x = draw.whole(8, draw.size(1, 20)).to(torch.float32) + 0.37
    return call(x, *draw.of((8, 0, 8), (4, 0, 8), (16, -4, 12), (2, 2, 6)))


@of("cummax.default", "cummin.default")
def _(draw: Draw) -> Call:
    """Ties and NaN count: of equals the later, and what is no number stays."""
    shape = draw.shape()
    x = draw.whole(4, *shape).to(draw.dtype)
    if draw.flag() and x.numel():
        x.view(-1)[draw.size(0, x.numel() - 1)] = float("nan")
    return call(x, draw.of(*range(-len(shape), len(shape))) if shape else 0)
