"""Calls of what `weighbridge.numerics.rewrites.arithmetic` decomposes."""

from __future__ import annotations

from support.operator_calls.draw import Call, Draw, call, lists, of


@of("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "rsub.Tensor")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    return call(draw.real(*shape), draw.real(*shape[1:]), alpha=draw.of(2, -0.5, 0.1))


@of("add.Scalar", "add_.Scalar", "sub.Scalar", "sub_.Scalar", "rsub.Scalar")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()), draw.of(1, -0.3, 2.5), draw.of(2, -0.5, 0.1))


@of("lerp.Scalar", "lerp_.Scalar", "lerp.Tensor", "lerp_.Tensor")
def _(draw: Draw, key: str) -> Call:
    shape = draw.shape()
    weight = draw.real(*shape) if key.endswith("Tensor") else draw.of(0.0, 0.3, 0.5, 0.9, 1.0, -2.0)
    return call(draw.real(*shape), draw.real(*shape), weight)


@of("addcmul.default", "addcmul_.default", "addcdiv.default", "addcdiv_.default")
def _(draw: Draw) -> Call:
    shape = draw.shape()
    return call(draw.real(*shape), draw.real(*shape[1:]), draw.positive(*shape), value=draw.of(1, 2, -0.3))


@of("pow.Tensor_Scalar")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()), draw.of(2, 3, 2.0, 3.0))


@of("round.decimals")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.shape()) * 100, decimals=draw.of(0, 1, 2, -1))


@of("logspace.default")
def _(draw: Draw) -> Call:
    """In float32: what a program asks for when it says nothing."""
    return call(draw.of(0.0, -1.5), draw.of(1.0, 3.0), draw.size(1, 6), draw.of(10.0, 2.0))


@of("allclose.default")
def _(draw: Draw) -> Call:
    x = draw.real(*draw.shape())
    return call(x, x + draw.of(0.0, 1e-9, 1e-3), draw.of(1e-5, 1e-2), draw.of(0.0, 1e-8))


@of("_foreach_powsum.Scalar")
def _(draw: Draw) -> Call:
    return call(lists(draw, 1)[0], draw.of(1, 2))
