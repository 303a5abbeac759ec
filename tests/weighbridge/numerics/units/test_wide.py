"""Sums that are rounded to odd once lead to one rounding of the exact sum; other roundings against rational numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import unit_oracle as oracle
from support.float_strategies import as_float32

from weighbridge.numerics.units import wide

float32 = st.integers(0, 2**32 - 1).map(as_float32).filter(math.isfinite)
near = st.builds(lambda n, e: math.ldexp(n, e), st.integers(-(2**24) + 1, 2**24 - 1), st.integers(-60, -20))
terms = st.lists(st.one_of(float32, near), min_size=1, max_size=5)


@given(terms)
@settings(max_examples=80, deadline=None)
def test_an_odd_sum_keeps_what_any_later_rounding_needs(values: list[float]) -> None:
    cancelling = [*values, *(-each for each in values[1:]), *values[2:]]
    total = wide.odd_sum([torch.tensor([each], dtype=torch.float64) for each in cancelling])
    exact = sum(map(Fraction, cancelling), Fraction(0))
    try:
        nearest, odd = oracle.float32(exact), oracle.float32(exact, "odd")
    except OverflowError:
        return
    assert wide.to_float32(total).item() == nearest
    assert wide.to_float32_odd(total).item() == odd


@given(st.one_of(float32, near, st.floats(-1e6, 1e6)))
@settings(max_examples=80, deadline=None)
def test_float16_is_rounded_once(value: float) -> None:
    found = wide.to_float16(torch.tensor([value], dtype=torch.float64)).item()
    with np.errstate(over="ignore"):
        assert found == float(np.float64(value).astype(np.float16))


@given(st.builds(lambda n, e: math.ldexp(n, e), st.integers(1, 2**53 - 1), st.integers(-205, -170)))
@settings(max_examples=80, deadline=None)
def test_what_is_flushed_is_decided_after_rounding(value: float) -> None:
    found = wide.to_float32_flushed(torch.tensor([value, -value], dtype=torch.float64)).tolist()
    wanted = float(oracle.float32(Fraction(value), flush=True))
    assert found == [wanted, -wanted]
