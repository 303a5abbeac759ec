"""What drafts declare of repeats, which segments are due, and the names of commitments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest import repeats
from weighbridge.attest.repeats import Declared, Heads, commitment, from_map
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, UsageError

DIGESTS = st.binary(min_size=32, max_size=32)
DECLARED = st.builds(
    Declared,
    beacon=DIGESTS,
    share=st.floats(min_value=0, max_value=1, exclude_min=True),
    delay_s=st.integers(1, repeats.LONGEST_S),
)
HEADS: Heads = (b"a" * 32, b"b" * 32)


@given(DECLARED)
def test_a_draft_says_what_was_declared(declared: Declared) -> None:
    """Law: `from_map` of what a draft holds of `to_map`, through CBOR, is the declaration."""
    assert from_map(decode_cbor(cbor(declared.to_map()))) == declared
    assert from_map(None) is None


GOOD = {"beacon": b"a" * 32, "share": 0.5, "delay_s": 60}


@pytest.mark.parametrize(
    "said",
    [
        [], 1, {}, {**GOOD, "more": 1}, {**GOOD, "beacon": b"a"}, {**GOOD, "beacon": "a" * 32}, {**GOOD, "share": 0.0},
        {**GOOD, "share": 1.5}, {**GOOD, "share": float("nan")}, {**GOOD, "share": 1}, {**GOOD, "delay_s": 0},
        {**GOOD, "delay_s": True}, {**GOOD, "delay_s": 1.0}, {**GOOD, "delay_s": 1 << 40},
    ],
)  # fmt: skip
def test_anything_else_is_refused(said: Any) -> None:
    with pytest.raises(FormatError):
        from_map(said)


def test_what_cannot_be_declared_is_refused() -> None:
    with pytest.raises(UsageError):
        Declared(beacon=b"", share=0.1, delay_s=1)


@given(st.integers(0, 10**16 - 1), st.text(max_size=30))
def test_a_commitment_names_its_segment(begin: int, other: str) -> None:
    """Law: `committed_segment` of a name is n if and only if it is `commitment_event(n)`."""
    assert repeats.committed_segment(repeats.commitment_event(begin)) == begin
    for name in (other, f"regenerated {other}"):
        found = repeats.committed_segment(name)
        assert found is None or repeats.commitment_event(found) == name


def test_the_value_decides_about_each_segment_by_itself() -> None:
    """Of 2,000 segments about q are due, others under another value, and none or all at the ends of q."""

    def due(share: float, value: bytes) -> set[int]:
        declared = Declared(beacon=b"c" * 32, share=share, delay_s=1)
        heads = (n.to_bytes(32) for n in range(2000))
        return {n for n, head in enumerate(heads) if declared.due(value, b"d" * 32, (head, HEADS[1]))}

    first, second = due(0.1, b"1" * 32), due(0.1, b"2" * 32)
    assert 140 < len(first) < 260  # four and a half standard deviations
    assert 140 < len(second) < 260
    assert len(first & second) < 60
    assert (len(due(1.0, b"1" * 32)), len(due(1e-12, b"1" * 32))) == (2000, 0)
    assert first <= due(0.2, b"1" * 32)


def test_a_commitment_is_to_everything_that_it_is_over() -> None:
    logs = [b"x" * 32, b"y" * 32]
    all_of_them = {
        commitment(b"d" * 32, HEADS, logs), commitment(b"e" * 32, HEADS, logs),
        commitment(b"d" * 32, HEADS[::-1], logs), commitment(b"d" * 32, HEADS, logs[::-1]),
        commitment(b"d" * 32, HEADS, logs[:1]),
    }  # fmt: skip
    assert len(all_of_them) == 5
