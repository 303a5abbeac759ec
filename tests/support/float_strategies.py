"""Hypothesis strategies for the numbers at which rounding goes wrong."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Floats = npt.NDArray[np.float64]

FLOAT32_MAX = float(np.finfo(np.float32).max)
TINY = 2.0**-149
"""The least float32 above zero."""


def as_float32(bits: int) -> float:
    """The float32 with a bit pattern, as a Python float."""
    return float(np.uint32(bits).view(np.float32))


def boundary(bits: int) -> float:
    """The float64 half way between a finite positive float32 (by bit pattern) and the next."""
    low = as_float32(bits)
    high = as_float32(bits + 1) if bits + 1 < 0x7F800000 else 2.0**128
    return (low + high) / 2


patterns = st.one_of(
    st.integers(0, 0x7F7FFFFF),
    st.sampled_from([0, 1, 2, 0x007FFFFF, 0x00800000, 0x3F7FFFFF, 0x3F800000, 0x40000000, 0x7F7FFFFE, 0x7F7FFFFF]),
    st.integers(1, 254).map(lambda exponent: exponent << 23),  # binade edges
)
"""Bit patterns of finite, not negative float32 values."""

signs = st.sampled_from([1.0, -1.0])
finite_values = st.builds(
    lambda sign, bits, kind, shift: sign * {"value": as_float32(bits), "tie": boundary(bits)}[kind] * (1 + shift),
    signs,
    patterns,
    st.sampled_from(["value", "tie"]),
    st.sampled_from([0.0, 2.0**-52, -(2.0**-53), 2.0**-40, -(2.0**-30)]),
)
"""Float64 values on, beside and between float32 values: zeros, subnormals, binade edges, ties, near overflow."""

nan_payloads = st.integers(0, 2**52 - 2).flatmap(
    lambda payload: st.sampled_from([0x7FF << 52, 0xFFF << 52]).map(
        lambda head: float(np.uint64(head | (payload + 1)).view(np.float64))
    )
)
any_values = st.one_of(
    finite_values, st.sampled_from([0.0, -0.0, np.inf, -np.inf, 1e308, -1e308, 5e-324]), nan_payloads
)
"""Any float64, with weight on what is special in float32."""


@st.composite
def arrays(draw: st.DrawFn, size: int, values: st.SearchStrategy[float] = any_values) -> Floats:
    """A float64 array of `size` elements: a drawn pattern of up to 40 values, repeated, over a smooth background."""
    few = np.array(draw(st.lists(values, min_size=1, max_size=40)), dtype=np.float64)
    seed = draw(st.integers(0, 2**32 - 1))
    x = np.random.default_rng(seed).standard_normal(size)
    places = np.random.default_rng(seed + 1).integers(0, size, size=min(size, 4 * few.size))
    x[places] = few[np.arange(places.size) % few.size]
    return x
