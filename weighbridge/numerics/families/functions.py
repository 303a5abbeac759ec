"""Functions of single elements, as libraries of mathematics have them, and ramps."""

from __future__ import annotations

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.bounds import Call, Line, U, relative
from weighbridge.numerics.families.sources import ANALYSIS, EXPONENTIALS, FUNCTIONS
from weighbridge.numerics.rounding.bound import Bound

aten = torch.ops.aten
Tensor = torch.Tensor


def log_add_exp(call: Call) -> list[Bound]:
    """logaddexp, logaddexp2: max + log1p(exp(-|x - y|)), which rounds at the size of max."""
    top = torch.maximum(call["self"], call["other"]).abs() + 1
    return [Bound(rel=8 * U, factors=(top * (800 * U),))]


def lgamma(call: Call) -> list[Bound]:
    """lgamma: 16*u*|result| where x >= 0, 8 units in the last place.

    Near its zeros too: kernels multiply a polynomial by x - 1 or x - 2, which float64 holds exactly. 4 ulp are the
    documented maximum of CUDA and glibc there, 1 ulp SLEEF's. Between its poles no library promises a relative error.
    """
    x = call["self"]
    if bool((x < 0).any()):
        raise _not_positive(call, "a negative number", "next to its zeros and poles below 0")
    return relative(8)(call)


def digamma(call: Call) -> list[Bound]:
    """digamma: 64*u*(1/x + 6 + |log x|) where x > 0.

    Absolute, because the result has a zero at 1.46. Kernels take 1/x, 1/(x + 1), ... off until x >= 10, which are at
    most ten steps, and add the asymptotic series log x - 1/(2x) - 1/(12x^2) + ... To first order, in units of u:

    - the quotients 1/(x + k), at most 1/x + 2.9 in sum, are each rounded once, and so are at most nine of their partial
      sums and three sums with the series: 13*(1/x + 2.9), and 3*|log y|, for the series at y, |log y| <= 2.4 + |log x|;
    - x + k has an error of at most u*k*(x + k), which moves the later quotients by at most u each and log y by 7*u;
    - log y is within 4 ulp: 8*|log y|;
    - the series stops seven terms after log y - 1/(2y): 0.4 at y = 10, and 1 for the rounding of its terms. Digamma of
      10 is a constant there: 2.3.

    Together less than 13/x + 85 + 11*|log x|, a fourth of the bound.
    """
    x = call["self"]
    if bool((x <= 0).any()):
        raise _not_positive(call, "zero or a negative number", "next to its zeros and poles")
    return [Bound(factors=((x.reciprocal() + x.log().abs() + 6) * (64 * U),))]


def _not_positive(call: Call, what: str, where: str) -> RefusedOperationError:
    op = f"aten.{call.name}.default"
    return RefusedOperationError(
        f"{op} of {what} has no bound {where}; positive numbers have a rule: clamp the operand, or make it with "
        "softplus, or tabulate the function outside the step and pass it in the batch",
        operation=op,
    )


def ramp(call: Call) -> list[Bound]:
    """linspace, fractional arange: start + i*step."""
    ends = [
        abs(float(call[name])) for name in ("start", "end", "step") if isinstance(call.args.get(name), (int, float))
    ]
    return [Bound(rel=4 * U, absolute=16 * U * max(ends))]


LINES = (
    Line("rsqrt.default", relative(4), FUNCTIONS),
    Line(
        "exp.default exp2.default expm1.default log.default log2.default log10.default log1p.default",
        relative(8),
        FUNCTIONS,
    ),
    Line("sin.default cos.default tan.default tanh.default erf.default erfc.default", relative(8), FUNCTIONS),
    Line("atan.default atan2.default asin.default acos.default hypot.default", relative(8), FUNCTIONS),
    Line("sinh.default cosh.default asinh.default acosh.default atanh.default xlogy.Tensor", relative(16), FUNCTIONS),
    Line("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar", relative(32), FUNCTIONS),
    Line("erfinv.default", relative(2.0**12), FUNCTIONS),
    Line("lgamma.default", lgamma, FUNCTIONS),
    Line("digamma.default", digamma, ANALYSIS),
    Line("logaddexp.default logaddexp2.default", log_add_exp, EXPONENTIALS, "800*u * (max(|x|, |y|) + 1)"),
    Line(
        "linspace.default arange.default/float arange.start/float arange.start_step/float",
        ramp,
        ANALYSIS,
        "16*u * max(|start|, |end|, |step|) + 4*u*|result|",
    ),
)
