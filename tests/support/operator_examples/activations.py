"""Examples of `weighbridge.numerics.families.activations`."""

from __future__ import annotations

import mpmath
import numpy as np
from support.operator_examples.example import (
    REFERENCES,
    Calls,
    Example,
    LongDoubles,
    Maker,
    Op,
    Tensor,
    aten,
    long,
    of,
    with_digits,
)

_FORWARD = """
sigmoid.default silu.default elu.default softplus.default leaky_relu.default mish.default gelu.default
hardswish.default hardsigmoid.default
"""


@of(*_FORWARD.split())
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 300),))
    yield Example(op, (make(300).clamp(-6, 6),))
    if op is aten.gelu.default:
        yield Example(op, (make(5, 300),), {"approximate": "tanh"})
    if op is aten.softplus.default:
        yield Example(op, (make(5, 300), 0.3, 20))
    if op is aten.elu.default:
        yield Example(op, (make(5, 300), 1.7, 1.1, 0.3))


@of("tanh_backward.default", "sigmoid_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make.fraction(5, 30)))


@of("gelu_backward.default", "silu_backward.default", "mish_backward.default", "hardswish_backward.default",
    "hardsigmoid_backward.default")  # fmt: skip
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 300), make(5, 300)))
    yield Example(op, (make(5, 300), make(300).clamp(-4, 4)))
    if op is aten.gelu_backward.default:
        yield Example(op, (make(5, 300), make(5, 300)), {"approximate": "tanh"})


@of("leaky_relu_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make(5, 30), 0.01, False))


@of("softplus_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make(5, 30), 1, 20))
    yield Example(op, (make(5, 30), make(5, 30), 0.3, 20))


@of("elu_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), 1.7, 1.0, 0.6, False, make(5, 30)))
    yield Example(op, (make(5, 30), 1.5, 1.0, 1.0, True, aten.elu.default(make(5, 30), 1.5)))


def _sigmoid(x: LongDoubles) -> LongDoubles:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _erf(x: LongDoubles) -> LongDoubles:
    return with_digits(lambda v: mpmath.erf(v / mpmath.sqrt(2)), x)


def _gelu(x: Tensor, approximate: str = "none") -> list[LongDoubles]:
    v = long(x)
    if approximate == "tanh":
        return [v / 2 * (1 + np.tanh(_inner(v)))]
    return [v * (1 + _erf(v)) / 2]


_ROOT = np.sqrt(np.longdouble(2) / np.arctan(np.longdouble(1)) / 4)


def _inner(v: LongDoubles) -> LongDoubles:
    return _ROOT * (v + np.longdouble(0.044715) * v**3)


def _gelu_backward(g: Tensor, x: Tensor, approximate: str = "none") -> list[LongDoubles]:
    v = long(x)
    if approximate == "tanh":
        t = np.tanh(_inner(v))
        slope = _ROOT * (1 + 3 * np.longdouble(0.044715) * v**2)
        return [long(g) * ((1 + t) / 2 + v / 2 * (1 - t * t) * slope)]
    pdf = np.exp(-v * v / 2) / np.sqrt(np.arctan(np.longdouble(1)) * 8)
    return [long(g) * ((1 + _erf(v)) / 2 + v * pdf)]


def _silu_backward(g: Tensor, x: Tensor) -> list[LongDoubles]:
    s = _sigmoid(long(x))
    return [long(g) * s * (1 + long(x) * (1 - s))]


REFERENCES.update(
    {
        "gelu.default": _gelu,
        "gelu_backward.default": _gelu_backward,
        "silu.default": lambda x: [long(x) * _sigmoid(long(x))],
        "silu_backward.default": _silu_backward,
        "tanh_backward.default": lambda g, y: [long(g) * (1 - long(y) * long(y))],
        "sigmoid_backward.default": lambda g, y: [long(g) * (1 - long(y)) * long(y)],
    }
)
