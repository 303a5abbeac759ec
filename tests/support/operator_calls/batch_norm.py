"""Calls of what `weighbridge.numerics.rewrites.batch_norm` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of
from torch import Tensor

aten = torch.ops.aten


def _batch_norm(draw: Draw) -> tuple[Tensor, ...]:
    c = draw.size()
    x = draw.real(draw.size(2, 4), c, *draw.shape(0, 2))
    return x, draw.real(c), draw.real(c), draw.real(c), draw.positive(c)


@of("native_batch_norm.default", "_native_batch_norm_legit.default")
def _(draw: Draw) -> Call:
    return call(*_batch_norm(draw), draw.flag(), 0.1, 1e-3)


@of("_native_batch_norm_legit.no_stats")
def _(draw: Draw) -> Call:
    return call(*_batch_norm(draw)[:3], True, 0.1, 1e-3)


@of("_native_batch_norm_legit_no_training.default")
def _(draw: Draw) -> Call:
    return call(*_batch_norm(draw), 0.1, 1e-3)


@of("native_batch_norm_backward.default")
def _(draw: Draw) -> Call:
    x, weight, bias, mean, var = _batch_norm(draw)
    train = draw.flag()
    _, saved, rstd = aten.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), train, 0.1, 1e-3)
    grad, mask = draw.real(*x.shape).contiguous(), [True, True, True]
    return call(grad, x.contiguous(), weight, mean, var, saved, rstd, train, 1e-3, mask)
