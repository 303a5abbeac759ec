"""The published rounding, and its revision by a log."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.baselines import rounding, ternary

VALUES = st.floats(min_value=2.0**-120, max_value=2.0**120).flatmap(lambda x: st.sampled_from([x, -x]))


def wide(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(VALUES, st.floats(-0.2, 0.2), st.booleans())
def test_a_log_restores_the_trainers_rounding(value: float, apart: float, at_boundary: bool) -> None:
    """The auditor gets to_float32(x) wherever its own y is closer to x than the band is wide."""
    x = wide(value)
    if at_boundary:
        x = rounding.to_float32(x) + rounding.unit(x) * (0.5 - apart / 2)
    y = x + apart * torch.minimum(rounding.unit(x), rounding.unit(x + apart * rounding.unit(x)))
    theirs, own = rounding.to_float32(x), rounding.to_float32(y)
    log = rounding.classify(x, theirs).numpy()
    revised, moved = rounding.revise(own, rounding.classify(y, own), log)
    assert torch.equal(revised, theirs)
    assert moved == int(not torch.equal(own, theirs))


def test_half_of_all_values_are_in_the_published_band() -> None:
    """In every decade alike: the band follows binary exponents."""
    for scale in (1.0, 3.0, 10.0, 1000.0):
        x = scale * torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        codes = rounding.classify(x, rounding.to_float32(x))
        assert float((codes != ternary.CLEAR).double().mean()) == pytest.approx(0.5, rel=0.1)


def test_special_values() -> None:
    x = wide(0.0, -0.0, float("inf"), float("nan"), 1e300, 2.0**-149, 2.0**-160)
    rounded = rounding.to_float32(x)
    assert rounded[4] == float("inf")
    assert torch.isnan(rounded[3])
    assert rounding.classify(x, rounded)[:4].tolist() == [ternary.CLEAR] * 4


def test_moves_across_zero_and_between_binades() -> None:
    below_one = float(np.nextafter(np.float32(1), np.float32(0)))
    own = torch.tensor([ternary.UP, ternary.DOWN, ternary.UP], dtype=torch.uint8)
    theirs = np.array([ternary.DOWN, ternary.UP, ternary.DOWN], dtype=np.uint8)
    revised, moved = rounding.revise(wide(1.0, below_one, 0.0), own, theirs)
    assert revised.tolist() == [below_one, 1.0, -(2.0**-149)]
    assert moved == 3
