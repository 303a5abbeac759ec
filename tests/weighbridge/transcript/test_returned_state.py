"""`returned.cbor`: which undeclared tensors are state of an earlier step."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.untrained_transcripts import write_transcript

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, TranscriptError, WeighbridgeError
from weighbridge.program.own_tensors import returned
from weighbridge.transcript.reader import Transcript, recover
from weighbridge.transcript.returned_state import Held, Returned, decode
from weighbridge.transcript.writer import TranscriptWriter

U64 = st.integers(0, (1 << 64) - 1)
HELD = st.builds(
    Held,
    st.dictionaries(st.text(max_size=4), st.tuples(U64, st.binary(min_size=32, max_size=32)), max_size=3),
    st.dictionaries(st.text(max_size=2), U64, max_size=2),
)
D = bytes(32)


@st.composite
def contents(draw: st.DrawFn) -> Returned:
    states = draw(st.dictionaries(st.integers(1, 99), HELD, max_size=3))
    tensors = {}
    for before in states:
        step = draw(st.integers(before, 200))
        tensors[step, draw(st.text(max_size=3)) + f"/{before}"] = before, draw(st.text(max_size=3))
    return Returned(states, tensors)


@given(contents())
def test_round_trip(content: Returned) -> None:
    """decode(returned.encode()) == returned."""
    assert decode(content.encode()) == content


@given(st.binary(max_size=80) | st.recursive(U64 | st.text() | st.binary(), st.lists).map(cbor))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    """decode(d).encode() == d for every d that is accepted."""
    with suppress(WeighbridgeError):
        assert decode(data).encode() == data


def raw(states: Any = ((2, {"w": [1, D]}, {"0": 7}),), tensors: Any = ((3, "f0", 2, "w"),)) -> dict[str, Any]:
    return {"states": states, "tensors": tensors}


@pytest.mark.parametrize(
    "value",
    [
        {}, raw() | {"more": 1}, raw(states=()), raw(tensors=()), raw(tensors=((3, "f0", 2, "w"),) * 2),
        raw(tensors=((3, "f1", 2, "w"), (3, "f0", 2, "w"))), raw(tensors=((1, "f0", 2, "w"),)),
        raw(tensors=((3, "f0", 4, "w"),)), raw(tensors=((True, "f0", True, "w"),)),
        raw(tensors=((10**8, "f0", 2, "w"),)),
        raw(states=((0, {}, {}),), tensors=((3, "f0", 0, "w"),)), raw(states=((2, {"w": [1, b"short"]}, {}),)),
        raw(states=((2, {"w": [-1, D]}, {}),)), raw(states=((2, {1: [1, D]}, {}),)), raw(states=((2, {}, {"0": -1}),)),
        raw(states=((2, {}, {}), (1, {}, {})), tensors=((3, "a", 2, "w"), (3, "b", 1, "w"))),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_is_refused(value: object) -> None:
    assert decode(cbor(raw())).tensors == {(3, "f0"): (2, "w")}
    with pytest.raises(FormatError, match="again"):
        decode(cbor(value))


def test_a_transcript_carries_it(tmp_path: Path) -> None:
    """From the writer to the reader, the last version, also when the recording crashed."""
    writer = TranscriptWriter(tmp_path / "run", draft={}, key=SigningKey.generate())
    writer.put_returned(Returned())
    late = Returned({2: Held({"w": (1, D)}, {"0": 7})}, {(3, "f0"): (2, "w")})
    writer.put_returned(late)
    recover(tmp_path / "run", key=SigningKey.generate())
    assert Transcript.open(tmp_path / "run").returned == late


@pytest.mark.finding("transcript.returned.differs")
def test_a_table_of_another_state_is_found(tmp_path: Path) -> None:
    write_transcript(tmp_path / "run", returned=Returned({1: Held({}, {})}, {(1, "f0"): (1, "w")}))
    with pytest.raises(TranscriptError, match="the table of the state"):
        returned(Transcript.open(tmp_path / "run"))


def test_steps_that_a_crash_took_away_claim_nothing(tmp_path: Path) -> None:
    write_transcript(tmp_path / "run", returned=Returned({9: Held({}, {})}, {(9, "f0"): (9, "w")}))
    assert not returned(Transcript.open(tmp_path / "run"))
