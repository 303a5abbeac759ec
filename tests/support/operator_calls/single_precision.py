"""Calls of what `weighbridge.numerics.rewrites.single_precision` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of

aten = torch.ops.aten


@of("mean.default", "mean.dim")
def _(draw: Draw, key: str) -> Call:
    shape = draw.shape(0 if key == "mean.default" else 1)
    x = draw.real(*shape).to(torch.float32)
    if key == "mean.default":
        return call(x)
    return call(x, [draw.of(*range(-len(shape), len(shape)))], draw.flag())


@of("native_layer_norm.default", "native_layer_norm_backward.default")
def _(draw: Draw, key: str) -> Call:
    """Of 16 bits: what is decomposed. Differences are of one rounding."""
    shape = draw.shape(1)
    inner = list(shape[draw.of(*range(len(shape))) :])
    x, weight, bias = (draw.real(*s).to(torch.bfloat16) for s in (shape, inner, inner))
    if key == "native_layer_norm.default":
        return call(x, inner, weight, bias, 1e-2)
    _, mean, rstd = aten.native_layer_norm.default(x, inner, weight, bias, 1e-2)
    return call(draw.real(*shape).to(torch.bfloat16), x, inner, mean, rstd, weight, bias, [True, True, True])
