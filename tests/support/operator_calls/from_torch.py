"""Calls of what `weighbridge.numerics.rewrites.from_torch` decomposes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support.operator_calls.draw import Call, Draw, call, of

aten = torch.ops.aten


@of("sinc.default", "logit.default")
def _(draw: Draw, key: str) -> Call:
    x = draw.real(*draw.shape())
    return call(x.sigmoid() if key.startswith("logit") else x)


@of("deg2rad.default", "rad2deg.default", "special_entr.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()))


@of("logit_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    return call(draw.real(*shape), draw.real(*shape).sigmoid(), draw.of(None, 0.1))


@of("_fused_rms_norm_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    inner = list(shape[-1:])
    x, weight = draw.real(*shape), draw.real(*inner)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt()
    return call(draw.real(*shape), x, inner, rstd, weight, [True, True])


@of("im2col.default", "col2im.default")
def _(draw: Draw, key: str) -> Call:
    high, wide = draw.size(3, 6), draw.size(3, 6)
    settings = [[draw.size(1, 2), draw.size(1, 2)], [1, draw.size(1, 2)], [draw.size(0, 1), 1], [draw.size(1, 2), 1]]
    x = draw.real(2, draw.size(1, 2), high, wide)
    if key == "im2col.default":
        return call(x, *settings)
    return call(draw.real(*aten.im2col(x, *settings).shape), [high, wide], *settings)


@of("max_unpool2d.default", "max_unpool3d.default")
def _(draw: Draw, key: str) -> Call:
    n = 2 if "2d" in key else 3
    sizes = [2 * draw.size(1, 2) for _ in range(n)]
    x = draw.apart(2, draw.size(1, 2), *sizes)
    out, indices = (F.max_pool2d if n == 2 else F.max_pool3d)(x, 2, return_indices=True)
    return call(out, indices, sizes) if n == 2 else call(out, indices, sizes, [2, 2, 2], [0, 0, 0])


@of("rot90.default")
def _(draw: Draw) -> Call:
    return call(draw.real(draw.size(), draw.size(), 2), draw.size(0, 5) - 2, draw.of([0, 1], [1, 2], [2, 0]))


@of("addr.default")
def _(draw: Draw) -> Call:
    n, m = draw.size(), draw.size()
    return call(draw.real(n, m), draw.real(n), draw.real(m), beta=draw.of(1, 0, 0.5), alpha=draw.of(1, -2.0))


@of("renorm.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(2)
    return call(draw.real(*shape), draw.of(1.0, 2.0), draw.of(*range(len(shape))), 1.0)


@of("linalg_cross.default")
def _(draw: Draw) -> Call:
    n = draw.size()
    return call(draw.real(n, 3), draw.real(n, 3))


@of("soft_margin_loss.default", "soft_margin_loss_backward.default")
def _(draw: Draw, key: str) -> Call:
    shape, reduction = draw.shape(1), draw.of(0, 1, 2)
    x, target = draw.real(*shape), draw.real(*shape).sign()
    if key == "soft_margin_loss.default":
        return call(x, target, reduction)
    return call(draw.real(*(shape if reduction == 0 else ())), x, target, reduction)
