"""Packed leaves of a snapshot: round trips and hostile bytes."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from firmware_sim.snapshot_report import pack_leaves, unpack_leaves
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import ChipError

leaves = st.lists(st.tuples(st.integers(0, (1 << 63) - 1), st.binary(min_size=32, max_size=32)), max_size=20)


@given(leaves)
def test_leaves_round_trip(value: list[Leaf]) -> None:
    """unpack_leaves(pack_leaves(x)) == sorted(x)."""
    assert unpack_leaves(pack_leaves(value)) == sorted(value)


@given(st.binary(max_size=200))
def test_hostile_leaves_raise_only_our_errors(data: bytes) -> None:
    """pack_leaves(unpack_leaves(d)) == d for every d that is accepted."""
    with suppress(ChipError):
        assert pack_leaves(unpack_leaves(data)) == data
