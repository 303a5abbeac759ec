"""The record of an outcome has one encoding, whose length says nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.outcomes import OUTCOMES, WORKER, outcome

from weighbridge.attest.outcome_record import RECORD_LIMIT, decode, encode, pieces
from weighbridge.attest.outcome_terms import SIZE_CLASSES, OutcomeError
from weighbridge.attest.outcome_values import ChipOutcome, GroupOutcome, Outcome
from weighbridge.attest.signed_outcome import open_record, sign
from weighbridge.core.digests import cbor

LENGTHS = {size: len(encode(outcome(size=size))) for size in SIZE_CLASSES}


@given(record=OUTCOMES)
@settings(max_examples=60, deadline=None)
def test_a_record_comes_back_and_its_length_is_that_of_its_class(record: Outcome) -> None:
    """Law: decode(encode(o)) == o."""
    data = encode(record)
    assert decode(data) == record
    assert len(data) == LENGTHS[record.size] < RECORD_LIMIT
    assert data == cbor(cbor2.loads(data))  # the frame that is written by hand is that of the standard


@given(record=OUTCOMES, at=st.integers(0), value=st.integers(0, 255), cut=st.integers(0))
@settings(max_examples=100, deadline=None)
def test_bytes_are_one_record_or_refused(record: Outcome, at: int, value: int, cut: int) -> None:
    """Law: encode(decode(data)) == data, or data is refused."""
    data = bytearray(encode(record))
    data[at % len(data)] = value
    for each in (bytes(data), bytes(data[: cut % len(data)]), bytes(data) + b"\x00"):
        with suppress(OutcomeError):
            assert encode(decode(each)) == each


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for read in (decode, open_record):
        with pytest.raises(OutcomeError):
            read(data)


def test_each_byte_of_padding_is_zero_or_the_record_is_refused() -> None:
    """A worker has nowhere to write: bytes that no value fills are zero."""
    record = outcome((), groups=(), rules=(), violations=frozenset(), warnings=frozenset())
    at = 0
    for name, piece in pieces(record):
        if name in ("groups", "chips", "snapshots", "rules"):
            for place in range(at, at + len(piece)):
                data = bytearray(encode(record))
                data[place] ^= 0x80
                with pytest.raises(OutcomeError):
                    decode(bytes(data))
        at += len(piece)


def _value(name: str, change: Callable[[bytes], Any]) -> bytes:
    raw = cbor2.loads(encode(outcome()))
    raw[name] = change(raw[name])
    return cbor(raw)


@pytest.mark.parametrize(
    "data",
    [
        _value("snapshots", lambda raw: b"\x00" + raw[1:]),
        _value("snapshots", lambda raw: raw[:-1]),
        _value("snapshots", lambda raw: raw + b"\x00"),
        _value("snapshots", lambda raw: raw[:2] + b"\x01" + raw[3:]),
        _value("snapshots", lambda raw: raw[:1] + b"\x09" + raw[2:]),
        _value("chips", lambda raw: b"\x00\x02" + raw[2:]),
        _value("chips", lambda raw: b"\xff\xff" + raw[2:]),
        _value("chips", lambda raw: raw[:2] + b"\x08" + raw[3:]),
        _value("rules", lambda raw: b"\x00" + raw[1:]),
        _value("rules", lambda raw: b"\x04" + raw[1:]),
        _value("groups", lambda raw: b"\x00" * 14 + raw[:14] + raw[28:]),
        _value("groups", lambda raw: b"\x04" + raw[1:]),
        _value("hours", lambda raw: raw + b"\x00"),
        _value("verdict", lambda raw: b"\x09" + raw[1:]),
        _value("status", lambda raw: b"\x04"),
        _value("size", lambda raw: b"\x02"),
        _value("size", lambda raw: b""),
        _value("size", lambda raw: 1),
        _value("size", lambda raw: "1"),
        _value("format", lambda raw: b"\x02"),
        _value("nonce", lambda raw: raw[:-1]),
        _value("derived", lambda raw: raw[:-1]),
        cbor({**cbor2.loads(encode(outcome())), "note": b""}),
        cbor({name: each for name, each in cbor2.loads(encode(outcome())).items() if name != "rules"}),
        cbor([]),
        cbor({}),
        cbor({1: b""}),
        b"\xbf\xff",
        b"\x00" * (RECORD_LIMIT + 1),
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(OutcomeError):
        decode(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"chips": (ChipOutcome(True, True, False, ()),) * 17},
        {"chips": (ChipOutcome(True, True, False, ("explained",) * 129),)},
        {"rules": ("holds",) * 17},
        {"groups": (GroupOutcome("random", 0, 1, 1, 0),) * 9},
    ],
)
@pytest.mark.finding("outcome.overfull")
def test_what_has_no_room_is_refused_before_it_is_signed(changes: dict[str, Any]) -> None:
    with pytest.raises(OutcomeError, match="larger class") as caught:
        outcome(**changes)
    assert caught.value.reason == "outcome.overfull"
    outcome(**{name: each[:1] for name, each in changes.items() if name != "chips"})


def test_a_number_that_is_too_large_is_refused() -> None:
    for record in (outcome(population=1 << 32), outcome(chunks=256), outcome(hours=(0, 0, 0, -1))):
        with pytest.raises(OutcomeError):
            encode(record)
    assert decode(encode(outcome(population=(1 << 32) - 1))).population == (1 << 32) - 1


def test_the_bytes_of_a_record_stay_what_they_are(golden: Callable[[str, str], None]) -> None:
    golden("outcome_record.hex", sign(outcome(), WORKER).hex() + "\n")


def test_a_signed_record_is_read_again_and_an_altered_one_is_not() -> None:
    data = sign(outcome(), WORKER)
    assert open_record(data) == outcome()
    for place in range(0, len(data), 7):
        altered = bytearray(data)
        altered[place] ^= 1
        with pytest.raises(OutcomeError):
            open_record(bytes(altered))
    with pytest.raises(OutcomeError, match="another key"):
        sign(replace(outcome(), key=b"k" * 32), WORKER)
