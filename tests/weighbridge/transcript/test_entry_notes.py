"""Notes on undeclared tensors are the Prover's word: short, printable, and few, whatever a Prover writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError
from weighbridge.transcript.entry_notes import CAUSES, LONGEST, MOST, EntryNote, decode, encode, printable


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 99), st.text(max_size=8).map(printable)),
        st.tuples(st.sampled_from(sorted(CAUSES)), st.text(max_size=300).map(printable), st.text().map(printable)),
    )
)
def test_notes_come_back(notes: dict[tuple[int, str], tuple[str, str, str]]) -> None:
    listed = [EntryNote(*place, *rest) for place, rest in sorted(notes.items())]
    assert decode(encode(listed)) == listed


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        decoded = decode(data)
    except FormatError:
        return
    assert encode(decoded) == data


@pytest.mark.finding("format.malformed")
@pytest.mark.parametrize(
    "hostile",
    [
        "verified\nviolation: none",
        "\x1b[2J\x1b[1;32mclean",
        "clean\u202e",
        "bell\x07",
        "x" * (LONGEST + 1),
    ],
)
@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_prover_injects_neither_lines_nor_control_characters_nor_bulk(hostile: str, place: int) -> None:
    raw = [3, "f0", "file", "train.py:1: x", ""]
    assert decode(cbor([raw]))
    with pytest.raises(FormatError):
        decode(cbor([[*raw[:place], hostile, *raw[place + 1 :]]]))


@pytest.mark.finding("format.malformed")
def test_a_prover_writes_no_megabytes() -> None:
    many = [EntryNote(1, f"f{number:04}", "file", "x" * LONGEST) for number in range(MOST + 1)]
    assert len(decode(encode(many))) == MOST
    with pytest.raises(FormatError):
        decode(cbor([[note.step, note.name, note.cause, note.line, note.made] for note in many]))


def test_what_a_note_says_is_quoted() -> None:
    line = "train.py:1: '); clean"
    assert repr(line) in str(EntryNote(1, "f0", "file", line))
