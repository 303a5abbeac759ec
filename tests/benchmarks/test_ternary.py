"""The dense code of the published log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.baselines import ternary
from weighbridge.core.errors import LogError, UsageError, WeighbridgeError

CODES = st.lists(st.sampled_from([ternary.DOWN, ternary.CLEAR, ternary.UP]), max_size=60)


@given(CODES)
def test_round_trip(codes: list[int]) -> None:
    """decode(encode(codes), len(codes)) == codes."""
    flat = np.array(codes, dtype=np.uint8)
    data = ternary.encode(flat)
    assert len(data) == ternary.size(len(codes)) == (len(codes) + 4) // 5
    assert ternary.decode(data, len(codes)).tolist() == codes


@given(st.binary(max_size=12), st.integers(0, 64))
def test_hostile_bytes_raise_only_our_errors(data: bytes, count: int) -> None:
    """What is accepted is the one code of what it decodes to; everything else is a WeighbridgeError."""
    try:
        codes = ternary.decode(data, count)
    except WeighbridgeError:
        return
    assert ternary.encode(codes) == data


def test_the_published_weights() -> None:
    assert ternary.encode(np.array([1, 0, 0, 0, 2, 2], dtype=np.uint8)) == bytes([1 + 2 * 81, 2])


@pytest.mark.parametrize(
    ("data", "count"),
    [(b"\xf3", 5), (b"\x00", 6), (b"\x00\x00", 5), (b"\x03", 1)],
    ids=["no five digits", "too short", "too long", "digits after the end"],
)
def test_what_is_no_log_is_refused(data: bytes, count: int) -> None:
    with pytest.raises(LogError):
        ternary.decode(data, count)


def test_what_is_no_code_is_refused() -> None:
    with pytest.raises(UsageError):
        ternary.encode(np.array([3], dtype=np.uint8))
