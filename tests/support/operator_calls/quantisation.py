"""Calls of what `weighbridge.numerics.rewrites.quantisation` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of


@of("fake_quantize_per_tensor_affine_cachemask.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()), draw.of(0.25, 0.0625), draw.of(0, 3), *draw.of((-8, 7), (0, 15)))


@of("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def _(draw: Draw) -> Call:
    scale, zero, enabled = torch.tensor([0.25]), torch.tensor([draw.of(0, 3)]), torch.tensor([draw.of(0, 1)])
    return call(draw.real(*draw.shape()), scale, zero, enabled, -8, 7)


@of("fake_quantize_per_channel_affine_cachemask.default")
def _(draw: Draw) -> Call:
    x = draw.real(*draw.shape(1, 3))
    axis = draw.of(*range(x.dim()))
    scale = 0.5 ** draw.whole(4, x.shape[axis]).float()
    return call(x, scale, draw.whole(3, x.shape[axis]).int(), axis, -8, 7)
