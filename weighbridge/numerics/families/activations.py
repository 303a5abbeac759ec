"""Activation functions and their gradients."""

from __future__ import annotations

from weighbridge.numerics.bounds import BoundFunction, Call, Line, U, relative
from weighbridge.numerics.families.sources import ANALYSIS, FUNCTIONS
from weighbridge.numerics.rounding.bound import Bound


def elu(call: Call) -> list[Bound]:
    """elu: expm1 below zero, or exp(x) - 1, as CPU kernels before PyTorch 2.7 have it: off by a few u at any size."""
    below = (call["self"] < 0).to(call.x.dtype)
    return [Bound(rel=16 * U, factors=(below * (8 * U * abs(float(call["alpha"]) * float(call["scale"]))),))]


def of_operand(name: str, ulps: float) -> BoundFunction:
    """An error of `ulps` units in the last place of an operand: for products with factors of size at most one."""

    def bound(call: Call) -> list[Bound]:
        return [Bound(rel=ulps * 2 * U, factors=(call[name].abs() * (ulps * 2 * U),))]

    return bound


def silu_backward(call: Call) -> list[Bound]:
    """silu_backward, mish_backward: g * s * (1 + x*(1 - s))."""
    g, x = call["grad_output"], call["self"]
    return [Bound(rel=16 * U, factors=(g.abs() * (x.abs() + 1) * (32 * U),))]


def gelu_backward(call: Call) -> list[Bound]:
    """gelu_backward, both forms: g * (cdf + x*pdf); every partial product stays below 3 in size."""
    return [Bound(rel=32 * U, factors=(call["grad_output"].abs() * (128 * U),))]


LINES = (
    Line("sigmoid.default silu.default leaky_relu.default", relative(8), FUNCTIONS),
    Line("tanh_backward.default sigmoid_backward.default leaky_relu_backward.default", relative(8), FUNCTIONS),
    Line("hardsigmoid_backward.default", relative(8), FUNCTIONS),
    Line("mish.default", relative(32), FUNCTIONS),
    # exp(beta*x) has the rounding of beta*x in its exponent: relative error u*|beta*x|, below 746*u unless it is 0.
    Line("softplus.default softplus_backward.default elu_backward.default", relative(400), FUNCTIONS),
    Line(
        "elu.default",
        elu,
        ANALYSIS,
        "16*u*|result|, and below zero 8*u*|alpha*scale|: some kernels subtract 1 from exp(x)",
    ),
    Line("gelu.default", of_operand("self", 32), ANALYSIS),
    Line("gelu_backward.default", gelu_backward, ANALYSIS, "128*u * |gradient| + 32*u*|result|"),
    Line("hardswish.default hardsigmoid.default", of_operand("self", 16), ANALYSIS),
    Line("hardswish_backward.default", of_operand("grad_output", 16), ANALYSIS),
    Line(
        "silu_backward.default mish_backward.default",
        silu_backward,
        ANALYSIS,
        "32*u * |gradient| * (|x| + 1) + 16*u*|result|",
    ),
)
