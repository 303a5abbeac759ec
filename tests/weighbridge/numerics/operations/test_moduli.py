"""Whole quotients and remainders of floats are those of exact arithmetic, and PyTorch's wherever float32 suffices."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.operations import moduli
from weighbridge.numerics.schemas import bind

aten = torch.ops.aten
Tensor = torch.Tensor

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
pairs = st.one_of(
    st.tuples(finite, finite),
    # Quotients at, just below and just above whole numbers, of either sign.
    st.builds(
        lambda divisor, whole, ulps: (float(np.float32(divisor * whole) * np.float32(1 + ulps * 2.0**-23)), divisor),
        st.floats(2.0**-20, 2.0**20, width=32) | st.floats(-(2.0**20), -(2.0**-20), width=32),
        st.integers(-(1 << 24), 1 << 24),
        st.integers(-2, 2),
    ),
)


def run(op: torch._ops.OpOverload, x: object, divisor: object, **kwargs: object) -> Tensor:
    bound = bind(op, (x, divisor), kwargs)
    assert moduli.is_modulus(op)
    assert moduli.covers(bound)
    return moduli.evaluate(op, bound)


@given(pairs)
def test_remainders_are_exact(pair: tuple[float, float]) -> None:
    """fmod is exact: x - divisor*trunc(x/divisor); the remainder adds the divisor once where signs differ."""
    x, divisor = pair
    if divisor == 0 or abs(Fraction(x) / Fraction(divisor)) >= 1 << 29:
        return
    a, b = torch.tensor([x]), torch.tensor([divisor])
    rest = Fraction(x) - Fraction(divisor) * math.trunc(Fraction(x) / Fraction(divisor))
    found = run(aten.fmod.Tensor, a, b)
    assert Fraction(float(found)) == rest
    assert torch.equal(found.view(torch.int32), a.fmod(b).view(torch.int32))  # the sign of zero too
    if rest and (rest < 0) != (divisor < 0):
        rest = Fraction(float(np.float32(float(rest)) + np.float32(divisor)))
    assert Fraction(float(run(aten.remainder.Tensor, a, b))) == rest
    assert float(run(aten.remainder.Tensor, a, b)) == float(a.remainder(b))


@given(pairs)
def test_whole_quotients(pair: tuple[float, float]) -> None:
    x, divisor = pair
    if divisor == 0 or abs(Fraction(x) / Fraction(divisor)) >= 1 << 29:
        return
    a, b = torch.tensor([x]), torch.tensor([divisor])
    below = math.floor(Fraction(x) / Fraction(divisor))
    for found in (run(aten.floor_divide.default, a, b), run(aten.div.Tensor_mode, a, b, rounding_mode="floor")):
        assert float(found) == float(np.float32(below))
    towards_zero = run(aten.div.Tensor_mode, a, b, rounding_mode="trunc")
    assert float(towards_zero) == float(torch.trunc(a / b))  # of the float32 quotient, as PyTorch has it
    assert torch.equal(run(aten.div.Tensor_mode, a, b, rounding_mode=None), a / b)


@pytest.mark.parametrize("x", [1.0, -1.0, 0.0, -0.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("divisor", [0.0, math.inf, -math.inf, math.nan, 2.0])
def test_what_is_not_finite_is_as_in_the_kernels(x: float, divisor: float) -> None:
    a, b = torch.tensor([x]), torch.tensor([divisor])
    for op, kernel in ((aten.fmod.Tensor, torch.fmod), (aten.remainder.Tensor, torch.remainder)):
        torch.testing.assert_close(run(op, a, b), kernel(a, b), rtol=0, atol=0, equal_nan=True)


def test_numbers_integers_and_broadcasting() -> None:
    x = torch.arange(-6.0, 6.0).view(3, 4) / 2
    assert torch.equal(run(aten.remainder.Scalar, x, 0.75), x % 0.75)
    assert torch.equal(run(aten.remainder.Scalar_Tensor, 5, x[:, 1:2]), torch.remainder(5, x[:, 1:2]))
    assert torch.equal(run(aten.floor_divide.default, torch.arange(7), 2.5), torch.arange(7) // 2.5)
    assert torch.equal(run(aten.fmod.Tensor, x, torch.tensor([2, 3, 4, 5])), x.fmod(torch.tensor([2, 3, 4, 5])))
    assert not moduli.covers(bind(aten.floor_divide.default, (torch.arange(3), 2), {}))


def test_a_remainder_beyond_the_digits_is_refused() -> None:
    with pytest.raises(RefusedOperationError, match="use integers"):
        run(aten.remainder.Scalar, torch.tensor([3.0, 2.0**29]), 1.0)
