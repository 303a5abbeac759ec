"""Examples of `weighbridge.numerics.families.functions`."""

from __future__ import annotations

import mpmath
import numpy as np
import torch
from support.operator_examples.example import REFERENCES, Calls, Example, Maker, Op, long, of, with_digits


@of("atan2.default", "hypot.default", "logaddexp.default", "logaddexp2.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make(30)))


@of("xlogy.Tensor")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make.positive(5, 30)))


_ANYWHERE = """
exp.default exp2.default expm1.default sin.default cos.default tan.default tanh.default erf.default erfc.default
atan.default sinh.default cosh.default asinh.default
"""


@of(*_ANYWHERE.split())
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 300),))
    yield Example(op, (make(300).clamp(-6, 6),))


@of("rsqrt.default", "log.default", "log2.default", "log10.default", "log1p.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make.positive(5, 300),))
    yield Example(op, (1 + make.fraction(300) * 1e-3,))


@of("asin.default", "acos.default", "atanh.default", "erfinv.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make.fraction(300) * 2 - 1,))


@of("lgamma.default", "digamma.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make.positive(300),))
    yield Example(op, (10 ** (9 * make.fraction(300) - 3),))
    for zero in (1, 2, 1.4616321):  # and floats next to them, as near as there are
        yield Example(op, (zero * (1 + 0.1 * (2 * make.fraction(60) - 1) * make.fraction(60) ** 12),))
    yield Example(op, (torch.arange(1, 61) / 2,))


@of("acosh.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (1 + make.positive(300),))


@of("pow.Tensor_Scalar")
def _(make: Maker, op: Op) -> Calls:
    for exponent in (0.5, -0.5, 2.7, 4, -2, 1 / 3):
        yield Example(op, (make.positive(300), exponent))


@of("pow.Tensor_Tensor")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make.positive(300), make(300).clamp(-3, 3)))


@of("pow.Scalar")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (0.9, make(300).clamp(-20, 20)))


@of("linspace.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (-0.3, 7.7, 41), {"dtype": torch.float32})


@of("arange.default/float")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (7.5,), {"dtype": torch.float32})


@of("arange.start/float")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (-0.3, 7.5), {"dtype": torch.float32})


@of("arange.start_step/float")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (-0.3, 7.5, 0.1), {"dtype": torch.float32})


REFERENCES.update(
    {
        "tanh.default": lambda x: [np.tanh(long(x))],
        "exp.default": lambda x: [np.exp(long(x))],
        "log.default": lambda x: [np.log(long(x))],
        "lgamma.default": lambda x: [with_digits(mpmath.loggamma, long(x))],
        "digamma.default": lambda x: [with_digits(mpmath.digamma, long(x))],
    }
)
