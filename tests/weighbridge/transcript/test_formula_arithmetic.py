"""The arithmetic of formulas: results rounded correctly, against oracles that share no code with it, whatever libm."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.transcript import formula_arithmetic as arithmetic
from weighbridge.transcript.formula_arithmetic import UndefinedError
from weighbridge.transcript.formula_terms import Formulas

DIGITS = Context(prec=120, Emax=10**6, Emin=-(10**6))


def moderate(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most, allow_subnormal=False)


@settings(max_examples=60, deadline=None)
@given(moderate(-740, 709))
def test_exp_is_rounded_correctly(x: float) -> None:
    """Oracle: `decimal` with 120 digits."""
    assert arithmetic.exp(x) == float(DIGITS.exp(Decimal(x)))


@settings(max_examples=60, deadline=None)
@given(moderate(1e-300, 1e300))
def test_log_is_rounded_correctly(x: float) -> None:
    """Oracle: `decimal` with 120 digits."""
    assert arithmetic.log(x) == float(DIGITS.ln(Decimal(x)))


@settings(max_examples=60, deadline=None)
@given(moderate(1e-3, 1e3), moderate(-90, 90))
def test_powers_are_rounded_correctly(x: float, y: float) -> None:
    """Oracle: `decimal` with 120 digits, by way of logarithms, but where the power is a whole one."""
    if y.is_integer():
        assert arithmetic.power(x, y) == float(Fraction(x) ** int(y))
    else:
        exact = float(DIGITS.exp(DIGITS.multiply(Decimal(y), DIGITS.ln(Decimal(x)))))
        assert arithmetic.power(x, y) == exact


@settings(max_examples=60, deadline=None)
@given(st.integers(-(2**27), 2**27).filter(bool), st.integers(-20, 20), st.integers(-8, 8))
def test_whole_powers_are_exact_and_ties_go_to_even(base: int, scale: int, exponent: int) -> None:
    """Squares of 27 bits often lie in the middle between two float64. Oracle: fractions."""
    x = math.ldexp(base, scale)
    assert arithmetic.power(x, float(exponent)) == float(Fraction(x) ** exponent)


@settings(max_examples=60, deadline=None)
@given(moderate(-1e6, 1e6))
def test_cos_is_rounded_correctly(x: float) -> None:
    """Oracle: its series, in fractions, after mpmath's pi has taken whole turns off."""
    with mpmath.workprec(400):
        turns = int(mpmath.nint(mpmath.mpf(x) / (2 * mpmath.pi)))
        pi = Fraction(int(mpmath.nint(mpmath.pi * 2**380)), 2**380)
    angle = Fraction(x) - 2 * turns * pi
    term, total, n = Fraction(1), Fraction(1), 0
    while abs(term) > Fraction(1, 2**260):
        n += 2
        term = -term * angle * angle / (n * (n - 1))
        term = Fraction(round(term * 2**380), 2**380)
        total += term
    assert arithmetic.cos(x) == float(total)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (0.0, 0.0, 1.0), (0.0, 2.0, 0.0), (5.0, 0.0, 1.0), (-2.0, 3.0, -8.0), (4.0, 0.5, 2.0), (0.999, 1e9, 0.0),
        (2.0, -1074.0, 5e-324), (2.0, -1080.0, 0.0), (0.5, 3.0, 0.125), (1.0, 1e300, 1.0), (-1.0, 1e15, 1.0),
        (2.0**-537, 2.0, 5e-324), (3.0 * 2.0**-538, 2.0, 1e-323),
    ],
)  # fmt: skip
def test_powers_at_the_edges(x: float, y: float, expected: float) -> None:
    assert arithmetic.power(x, y) == expected


@pytest.mark.parametrize(
    ("kind", "operands"),
    [
        ("**", (0.0, -1.0)), ("**", (-8.0, 1 / 3)), ("**", (10.0, 400.0)), ("**", (2.0, 1e300)), ("exp", (1000.0,)),
        ("exp", (709.8,)), ("log", (0.0,)), ("log", (-1.0,)), ("sqrt", (-1.0,)), ("/", (1.0, 0.0)),
        ("*", (1e308, 10.0)), ("+", (1.7e308, 1.7e308)),
    ],
)  # fmt: skip
def test_what_has_no_value(kind: str, operands: tuple[float, ...]) -> None:
    with pytest.raises(UndefinedError):
        arithmetic.apply(kind, [(each, 0.0) for each in operands], 1.0)


def test_a_part_without_a_value_leaves_none_to_the_whole() -> None:
    """Neither a comparison with it nor the least of it and others has one; a branch not taken does not matter."""
    for text in ("log(0) < 5", "min(log(0), 5)", "max(5, 1 / 0)", "0 * exp(1000)", "1 / (1e308 * 10)", "host"):
        assert math.isnan(Formulas.parse({"x": text}).evaluate("x", 1)[0])
    assert Formulas.parse({"x": "1 / 0 if t > 5 else 7"}).evaluate("x", 1)[0] == 7.0
    assert math.isnan(Formulas.parse({"x": "host < 1"}).evaluate("x", 1, [math.inf])[0])


def test_the_sign_of_a_zero_is_defined() -> None:
    for text, sign in (("-0", -1.0), ("min(0, -0)", 1.0), ("max(-0, 0)", -1.0), ("0 - 0", 1.0), ("-0 - 0", -1.0)):
        assert math.copysign(1.0, Formulas.parse({"x": text}).evaluate("x", 1)[0]) == sign, text


def test_no_libm_has_a_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """With functions of C that are off by a unit in the last place, as another libm's may be, the values stay."""
    texts = {
        "a": "0.5 * (1 + cos(pi * t / 7))", "b": "sqrt(1 - 0.999 ** t)", "c": "exp(-t / 3) + log(t + 1)",
        "d": "1 - 0.9 ** t * a", "e": "t ** -0.8", "f": "drift(0.3 ** floor(t / 2))",
    }  # fmt: skip
    formulas = Formulas.parse(texts)
    before = [formulas.evaluate(name, t)[0] for name in texts for t in range(1, 9)]
    for name in ("exp", "log", "cos", "pow", "log2"):
        exact = getattr(math, name)
        monkeypatch.setattr(math, name, lambda *x, exact=exact: math.nextafter(exact(*x), math.inf))
    assert [formulas.evaluate(name, t)[0] for name in texts for t in range(1, 9)] == before
