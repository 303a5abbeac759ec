"""`chips.cbor`: what a transcript says about its chips beside the step records."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.untrained_transcripts import write_transcript

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, TranscriptError, WeighbridgeError
from weighbridge.transcript.chip_notes import ChipNotes, decode
from weighbridge.transcript.reader import Transcript, recover
from weighbridge.transcript.writer import TranscriptWriter

U64 = st.integers(0, (1 << 64) - 1)
SNAPSHOTS = st.tuples(st.binary(min_size=1, max_size=33), U64, st.integers(0, 10**8 - 1), U64)


@given(st.sets(st.text()), st.lists(SNAPSHOTS))
def test_round_trip(weights: set[str], snapshots: list[tuple[bytes, int, int, int]]) -> None:
    """decode(notes.encode()) == notes."""
    notes = ChipNotes(tuple(sorted(weights)), tuple(snapshots))
    assert decode(notes.encode()) == notes


@given(st.binary(max_size=80) | st.recursive(U64 | st.text() | st.binary(), st.lists).map(cbor))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    """decode(d).encode() == d for every d that is accepted."""
    with suppress(WeighbridgeError):
        assert decode(data).encode() == data


@pytest.mark.parametrize(
    "value",
    [
        {}, {"weights": [], "snapshots": [], "more": 1}, {"weights": ["b", "a"], "snapshots": []},
        {"weights": ["a", "a"], "snapshots": []}, {"weights": [1], "snapshots": []},
        *({"weights": [], "snapshots": [s]} for s in ([b"", 1, 1, 1], [b"u", -1, 1, 1], [b"u", True, 1, 1], [b"u", 1])),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_is_refused(value: object) -> None:
    with pytest.raises(FormatError, match="fetch it again"):
        decode(cbor(value))


def test_a_transcript_carries_it(tmp_path: Path) -> None:
    """From the writer to the reader, the last version, also when the recording crashed."""
    writer = TranscriptWriter(tmp_path / "run", draft={}, key=SigningKey.generate())
    writer.put_notes(ChipNotes(("model.weight",)))
    late = ChipNotes(("model.weight",), ((b"u" * 17, 5, 0, 3),))
    writer.put_notes(late)
    recover(tmp_path / "run", key=SigningKey.generate())
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.notes == late
    assert transcript.snapshots(0) == [(b"u" * 17, 5, 3)]


def test_a_transcript_without_a_chip_has_none(tmp_path: Path) -> None:
    write_transcript(tmp_path / "run")
    assert Transcript.open(tmp_path / "run").notes is None


def test_a_snapshot_of_a_recorded_step_stands_in_its_record_only(tmp_path: Path) -> None:
    writer = TranscriptWriter(tmp_path / "run", draft={}, key=SigningKey.generate())
    writer.put_notes(ChipNotes((), ((b"u" * 17, 5, 1, 3),)))
    writer.close()
    with pytest.raises(TranscriptError, match="of a step that has a record"):
        Transcript.open(tmp_path / "run")
