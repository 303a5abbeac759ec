"""The published rounding to b bits, and its revision by a log."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.baselines import rounding, ternary
from weighbridge.errors import UsageError

BITS = st.sampled_from([32, 31, 28, 26, 24])
VALUES = st.floats(min_value=2.0**-120, max_value=2.0**120).flatmap(lambda x: st.sampled_from([x, -x]))


def wide(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(VALUES, BITS)
def test_rounding_reaches_the_nearest_point_of_the_grid(value: float, bits: int) -> None:
    x = wide(value)
    rounded = rounding.to_grid(x, bits)
    assert torch.equal(rounded.float().double(), rounded)
    assert int(rounded.float().view(torch.int32)) & ((1 << (32 - bits)) - 1) == 0
    assert float((x - rounded).abs()) <= float(rounding.unit(x)) * 2 ** (32 - bits) / 2


@given(VALUES, BITS, st.floats(-0.2, 0.2), st.booleans())
def test_a_log_restores_the_trainers_rounding(value: float, bits: int, apart: float, at_boundary: bool) -> None:
    """revise(to_grid(y), classify(y), classify(x)) == to_grid(x) wherever x and y are closer than the band is wide."""
    x = wide(value)
    if at_boundary:
        x = rounding.to_grid(x, bits) + rounding.unit(x) * 2 ** (32 - bits) * (0.5 - apart / 2)
    y = x + apart * torch.minimum(rounding.unit(x), rounding.unit(x + apart * rounding.unit(x)))
    theirs, own = rounding.to_grid(x, bits), rounding.to_grid(y, bits)
    log = rounding.classify(x, theirs, bits=bits).numpy()
    revised, moved = rounding.revise(own, rounding.classify(y, own, bits=bits), log, bits=bits)
    assert torch.equal(revised, theirs)
    assert moved == int(not torch.equal(own, theirs))


@pytest.mark.parametrize(("bits", "share"), [(32, 0.5), (31, 0.25), (30, 0.125), (28, 2.0**-5), (26, 2.0**-7)])
def test_the_published_share_of_the_band(bits: int, share: float) -> None:
    """In every decade alike: the band follows binary exponents."""
    for scale in (1.0, 3.0, 10.0, 1000.0):
        x = scale * torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        codes = rounding.classify(x, rounding.to_grid(x, bits), bits=bits)
        assert float((codes != ternary.CLEAR).double().mean()) == pytest.approx(share, rel=0.1)


def test_special_values() -> None:
    x = wide(0.0, -0.0, float("inf"), float("nan"), 1e300, 2.0**-149, 2.0**-160)
    for bits in (32, 28):
        rounded = rounding.to_grid(x, bits)
        assert rounded[4] == float("inf")
        assert torch.isnan(rounded[3])
        assert rounding.classify(x, rounded, bits=bits)[:4].tolist() == [ternary.CLEAR] * 4


def test_moves_across_zero_and_between_binades() -> None:
    below_one = float(np.nextafter(np.float32(1), np.float32(0)))
    own = torch.tensor([ternary.UP, ternary.DOWN, ternary.UP], dtype=torch.uint8)
    theirs = np.array([ternary.DOWN, ternary.UP, ternary.DOWN], dtype=np.uint8)
    revised, moved = rounding.revise(wide(1.0, below_one, 0.0), own, theirs)
    assert revised.tolist() == [below_one, 1.0, -(2.0**-149)]
    assert moved == 3


@pytest.mark.parametrize("bits", [9, 33])
def test_there_is_no_such_grid(bits: int) -> None:
    with pytest.raises(UsageError):
        rounding.to_grid(wide(1.0), bits)
