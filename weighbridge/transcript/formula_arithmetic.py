"""What the operations of formulas give, bit for bit the same on every machine, and how far a program may be from it.

Sums, products, quotients and roots are those of IEEE 754, which every machine has. `exp`, `log`, `cos` and powers are
not: two libraries of mathematics differ in their last bits. So these are defined here as the float64 next to the exact
result, by way of 200 bits: a number that mpmath computes to 256 bits is rounded to 200, then to float64 (each time to
the nearest, ties to even). The first rounding makes results exact that are exact. An inexact result that lies so close
to the middle between two float64 that the way through 200 bits matters would take about 2^146 tries to find.

Beside its value, a result has a first-order bound on the distance of a *program's* result: one that adds and multiplies
in another order, with whatever library it has. Format: docs/formats/transcript.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mpmath.libmp import from_float, from_man_exp, mpf_cos, mpf_exp, mpf_log, mpf_pow

Number = tuple[float, float]
"""A value and a bound on a program's distance from it."""

ULP = 2.0**-52
WIDEST = 2.0**-20
"""Most that a program's value may differ from its formula, relative to it, whatever the formula's own bound is."""

_COMPUTED, _KEPT = 256, 200
_LARGEST, _SMALLEST = 1100.0, -1200.0
"""Beyond these powers of two a result is certainly too large for float64, or zero."""


class UndefinedError(ArithmeticError):
    """A formula has no value here: it divides by zero, leaves float64's range, or asks for what does not exist."""


def tolerance(formula: Number, precision: float = 0.0) -> float:
    """Returns how far a program's value may be from its formula: four times its bound and two units in the last place.

    It is never more than 2^-20 of the formula's value.

    Args:
        formula: Value and bound.
        precision: Relative precision of the type that holds the value, beyond float64's.
    """
    expected, error = formula
    scale = abs(expected)
    return min(4 * error + (2 * ULP + precision) * scale, WIDEST * scale)


def agrees(value: float, formula: Number, precision: float = 0.0) -> bool:
    """True if a program that computes a formula may have a value; see `tolerance`."""
    return abs(value - formula[0]) <= tolerance(formula, precision)


def _to_float(x: tuple[int, int, int, int]) -> float:
    """Returns the float64 next to a number of mpmath's: of integers, so that no library of C decides anything."""
    negative, mantissa, exponent, _ = x
    _, mantissa, exponent, _ = from_man_exp(mantissa, exponent, _KEPT, "n")
    if exponent > _LARGEST:
        raise UndefinedError("too large")
    nearest = float(mantissa << exponent) if exponent >= 0 else mantissa / (1 << -exponent)
    return -nearest if negative else nearest


def exp(x: float) -> float:
    """Returns e to the power x."""
    if x * math.log2(math.e) < _SMALLEST:
        return 0.0
    if x > _LARGEST:
        raise UndefinedError("too large")
    return _to_float(mpf_exp(from_float(x), _COMPUTED, "n"))


def log(x: float) -> float:
    """Returns the natural logarithm of x."""
    if x <= 0:
        raise UndefinedError("the logarithm of what is not positive")
    return _to_float(mpf_log(from_float(x), _COMPUTED, "n"))


def cos(x: float) -> float:
    """Returns the cosine of x radians."""
    return _to_float(mpf_cos(from_float(x), _COMPUTED, "n"))


def power(x: float, y: float) -> float:
    """Returns x to the power y; 0 to the power 0 is 1, and a negative x has whole powers only."""
    if x == 0 or y == 0:
        if x == 0 and y < 0:
            raise UndefinedError("a quotient by zero")
        return 1.0 if y == 0 else 0.0
    if x < 0 and not y.is_integer():
        raise UndefinedError("a root of a negative number")
    size = y * math.log2(abs(x))
    if size > _LARGEST:
        raise UndefinedError("too large")
    if size < _SMALLEST:
        return 0.0
    return _to_float(mpf_pow(from_float(x), from_float(y), _COMPUTED, "n"))


def _add(a: Number, b: Number) -> Number:
    value = a[0] + b[0]
    return value, a[1] + b[1] + ULP * abs(value)


def _multiply(a: Number, b: Number) -> Number:
    value = a[0] * b[0]
    return value, abs(a[0]) * b[1] + abs(b[0]) * a[1] + a[1] * b[1] + ULP * abs(value)


def _divide(a: Number, b: Number) -> Number:
    value, least = a[0] / b[0], abs(b[0]) - b[1]
    return value, (a[1] + abs(value) * b[1]) / least + ULP * abs(value) if least > 0 else math.inf


def _power(a: Number, b: Number) -> Number:
    value = power(a[0], b[0])
    error = 2 * ULP * abs(value)
    if a[0] and (a[1] or b[1]):
        error += abs(value) * (abs(b[0]) * a[1] / abs(a[0]) + abs(math.log(abs(a[0]))) * b[1])
    return value, error


def _sqrt(a: Number) -> Number:
    value = math.sqrt(a[0])
    return value, (a[1] / (2 * value) if value else math.sqrt(a[1])) + ULP * value


def _exp(a: Number) -> Number:
    value = exp(a[0])
    return value, value * a[1] + 2 * ULP * value


def _log(a: Number) -> Number:
    value = log(a[0])
    return value, a[1] / a[0] + 2 * ULP * abs(value)


_OPERATIONS: dict[str, Callable[..., Number]] = {
    "+": _add,
    "-": lambda a, b: _add(a, (-b[0], b[1])),
    "*": _multiply,
    "/": _divide,
    "**": _power,
    "negative": lambda a: (-a[0], a[1]),
    "<": lambda a, b: (float(a[0] < b[0]), 0.0),
    "<=": lambda a, b: (float(a[0] <= b[0]), 0.0),
    ">": lambda a, b: (float(a[0] > b[0]), 0.0),
    ">=": lambda a, b: (float(a[0] >= b[0]), 0.0),
    "==": lambda a, b: (float(a[0] == b[0]), 0.0),
    "!=": lambda a, b: (float(a[0] != b[0]), 0.0),
    "sqrt": _sqrt,
    "exp": _exp,
    "log": _log,
    "cos": lambda a: (cos(a[0]), a[1] + 2 * ULP),
    "floor": lambda a: (float(math.floor(a[0])), 0.0),
    # Of equal operands the first, so that the sign of a zero is not left open.
    "min": lambda *operands: min(operands, key=lambda each: each[0]),
    "max": lambda *operands: max(operands, key=lambda each: each[0]),
}


def apply(kind: str, operands: list[Number], t: float) -> Number:
    """Returns the result of one operation.

    Args:
        kind: Its sign or name.
        operands: What it is applied to.
        t: Number of the optimizer step, which `drift` needs.

    Raises:
        UndefinedError: It has no finite result.
    """
    try:
        if kind == "drift":
            ((x, e),) = operands
            return x, (e + ULP * abs(x)) * (t + 1)
        value, error = _OPERATIONS[kind](*operands)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise UndefinedError(kind) from None
    if not math.isfinite(value):
        raise UndefinedError("too large")
    return value, error
