"""Calls of what `weighbridge.numerics.rewrites.normalisations` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of
from torch import Tensor

aten = torch.ops.aten


def _grouped(draw: Draw) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    group, each, n = draw.size(1, 3), draw.size(1, 3), draw.size(1, 3)
    x = torch.randn(n, group * each, *draw.shape(0, 2), dtype=draw.dtype)
    c = group * each
    return x, draw.real(c), draw.real(c), [n, c, x[0, 0].numel(), group]


@of("native_group_norm.default")
def _(draw: Draw) -> Call:
    x, weight, bias, sizes = _grouped(draw)
    affine = draw.flag()
    return call(x, weight if affine else None, bias if affine else None, *sizes, 1e-3)


@of("native_group_norm_backward.default")
def _(draw: Draw) -> Call:
    x, weight, bias, sizes = _grouped(draw)
    _, mean, rstd = aten.native_group_norm(x, weight, bias, *sizes, 1e-3)
    return call(draw.real(*x.shape).contiguous(), x, mean, rstd, weight, *sizes, [True, True, True])


@of("_weight_norm_interface.default", "_weight_norm_interface_backward.default")
def _(draw: Draw, key: str) -> Call:
    v = torch.randn(draw.shape(2), dtype=draw.dtype)
    dim = draw.of(0, v.dim() - 1)
    g = draw.real(*[n if d == dim else 1 for d, n in enumerate(v.shape)]).contiguous()
    if key == "_weight_norm_interface.default":
        return call(v, g, dim)
    return call(draw.real(*v.shape).contiguous(), v, g, aten._weight_norm_interface(v, g, dim)[1], dim)
