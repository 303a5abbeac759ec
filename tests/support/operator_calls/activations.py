"""Calls of what `weighbridge.numerics.rewrites.activations` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of

aten = torch.ops.aten


@of("celu.default", "celu_.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()), draw.of(0.7, 1.0, 2.0))


@of("log_sigmoid_forward.default")
def _(draw: Draw, key: str) -> Call:
    x = draw.real(*draw.shape())
    return call(x.sigmoid() if key.startswith("logit") else x)


@of("log_sigmoid_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    x = draw.real(*shape)
    return call(draw.real(*shape), x, aten.log_sigmoid_forward(x)[1])


@of("sigmoid_backward.default", "tanh_backward.default")
def _(draw: Draw) -> Call:
    """Of float32: what is decomposed."""
    shape = draw.shape()
    return call(draw.real(*shape).to(torch.float32), draw.real(*shape).sigmoid().to(torch.float32))


@of("_prelu_kernel.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    return call(draw.real(*shape), draw.real(*shape))


@of("_prelu_kernel_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape(1)
    return call(draw.real(*shape), draw.real(*shape), draw.real(*shape))


@of("glu.default", "glu_backward.default")
def _(draw: Draw, key: str) -> Call:
    shape = list(draw.shape(1))
    dim = draw.of(*range(-len(shape), len(shape)))
    half = list(shape)
    shape[dim] *= 2
    x = draw.real(*shape)
    return call(x, dim) if key.startswith("glu.") else call(draw.real(*half), x, dim)


@of("native_dropout_backward.default")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    return call(draw.real(*shape), draw.real(*shape) > 0, draw.of(1.0, 1.25, 2.0))
