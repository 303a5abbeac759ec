"""Quotients and roots: both ways of computing them give the correctly rounded result, for all kinds of operands."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.numerics.operations import quotients
from weighbridge.numerics.schemas import bind

aten = torch.ops.aten
Tensor = torch.Tensor

floats = st.lists(
    st.one_of(
        st.floats(width=32),
        st.sampled_from(
            [0.0, -0.0, 1.0, 3.0, 2.0**-149, -(2.0**-149), 2.0**-126, 2.0**-127, 1.0 + 2.0**-23, 2.0 - 2.0**-23]
        ),
        st.integers(-(1 << 24), 1 << 24).map(float),
    ),
    min_size=1,
    max_size=40,
)


def both(op: torch._ops.OpOverload, *args: object) -> Tensor:
    """Both ways agree in every bit (any NaN counts as one)."""
    bound = bind(op, args, {})
    own, wide = (quotients.evaluate(op, bound, native=native) for native in (True, False))
    assert torch.equal(own.isnan(), wide.isnan())
    assert torch.equal(own.nan_to_num(0.5).view(torch.int32), wide.nan_to_num(0.5).view(torch.int32))
    return own


@given(floats, floats)
def test_division(top: list[float], bottom: list[float]) -> None:
    a, b = torch.tensor(top).view(-1, 1), torch.tensor(bottom)
    quotient = both(aten.div.Tensor, a, b)
    for i, j in [(0, 0), (len(top) - 1, len(bottom) - 1)]:
        x, y, q = float(a[i, 0]), float(b[j]), float(quotient[i, j])
        if y != 0 and all(np.isfinite(v) for v in (x, y, q)):
            exact = Fraction(x) / Fraction(y)
            near = [abs(Fraction(float(np.nextafter(np.float32(q), np.float32(s)))) - exact) for s in (-3e38, 3e38)]
            assert abs(Fraction(q) - exact) <= min(near)


@given(floats, st.floats(allow_nan=False))
def test_division_by_a_number_takes_the_number_in_single_precision(top: list[float], bottom: float) -> None:
    both(aten.div.Scalar, torch.tensor(top), bottom)


@given(floats)
def test_reciprocals_and_roots(values: list[float]) -> None:
    x = torch.tensor(values)
    both(aten.reciprocal.default, x)
    root = both(aten.sqrt.default, x)
    for v, r in zip(values, root.tolist(), strict=True):
        if v > 0 and np.isfinite(r):
            low, high = (float(np.nextafter(np.float32(r), np.float32(s))) for s in (0, 3e38))
            middles = (Fraction(low) + Fraction(r)) / 2, (Fraction(r) + Fraction(high)) / 2
            assert middles[0] ** 2 <= Fraction(v) <= middles[1] ** 2


@pytest.mark.parametrize("steps", [1, 2])
def test_layouts_are_kept(steps: int) -> None:
    x = torch.rand(6, 8).t()[::steps]
    assert quotients.evaluate(aten.sqrt.default, {"self": x}).stride() == x.sqrt().stride()
    assert quotients.evaluate(aten.div.Scalar, {"self": x, "other": 3}).stride() == (x / 3).stride()


def test_integers_divide_as_single_precision() -> None:
    a, b = torch.arange(1, 1 << 26, 999_983), torch.arange(3, 70)
    quotient = both(aten.div.Tensor, a.view(-1, 1), b)
    assert torch.equal(quotient, a.float().view(-1, 1) / b.float())


doubles = st.lists(st.floats(), min_size=1, max_size=20)


@given(doubles, st.floats())
def test_float64_divides_as_ieee_says_by_numbers_too(top: list[float], bottom: float) -> None:
    x = torch.tensor(top, dtype=torch.float64)
    with np.errstate(all="ignore"):
        wanted = torch.from_numpy(x.numpy() / np.float64(bottom))
    for divisor in (bottom, torch.tensor(bottom, dtype=torch.float64), torch.full_like(x, bottom)):
        torch.testing.assert_close(quotients.in_float64(x, divisor), wanted, rtol=0, atol=0, equal_nan=True)
