"""Where undeclared tensors entered and what they were, by the Prover's word: `entered.cbor`.

It helps people to find the line to mend, and nothing else: no verdict and no severity depends on it. So it lies outside
of every digest but the file's, and a reader takes little of it: some short texts without control characters, and a
cause from a fixed list, for which the reader has the words. See docs/formats/transcript.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError
from weighbridge.transcript.steps import MAX_STEPS

ENTERED = "entered.cbor"
"""Name of the file."""

MOST = 256
"""Notes in one transcript."""

LONGEST = 200
"""Characters of a text."""

CAUSES: Mapping[str, tuple[str, str]] = {
    "unknown": (
        "it was made outside of what is recorded",
        "fetch it with the batch (a DataLoader or run.batches(...) under follow, else step((batch, it))), or make it "
        "where it is recorded",
    ),
    "before": (
        "it was there before the recording began",
        "call follow() before it is made, or make it within initialisation()",
    ),
    "array": (
        "it lies on the memory of a NumPy array",
        "make it part of the batch (of a DataLoader, run.batches(...) or step(...)), or convert it within "
        "initialisation()",
    ),
    "number": (
        "it was made from Python numbers outside of what is recorded",
        "make it within initialisation() if it never changes; else make it part of the batch",
    ),
    "file": (
        "it was read from a file",
        "read it where the model is built: within initialisation(), or under follow() before the first batch is "
        "fetched, and put it into the model",
    ),
    "loader": (
        "a DataLoader gave it, but it is not part of this step's batch",
        "pass all of the loader's batch to step(...); under follow(), use it in the step that fetched it, or keep a "
        "copy (.clone())",
    ),
    "evaluation": (
        "an evaluation made it",
        'record the evaluation too: follow(..., evaluation="recorded")',
    ),
}  # fmt: skip
"""Cause to what it means and what to do about it."""


@dataclass(frozen=True, slots=True)
class EntryNote:
    """What the Prover says about an undeclared tensor.

    Attributes:
        step: The first step in which its tape took it in.
        name: Its name there.
        cause: One of `CAUSES`.
        line: `file:line: text` of the program that used it, printable; empty if unknown.
        made: The same of what made it.
    """

    step: int
    name: str
    cause: str = "unknown"
    line: str = ""
    made: str = ""

    def __str__(self) -> str:
        meaning, remedy = CAUSES[self.cause]
        made = f" ({self.made!r})" if self.made else ""
        return f"{self.name} entered at {self.line!r}; {meaning}{made}. {remedy}"


def printable(text: str) -> str:
    """Returns a text as a note may have it: without control or formatting characters, and not too long."""
    short = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    return "".join(c if c.isprintable() else "?" for c in short)


def encode(notes: list[EntryNote]) -> bytes:
    """Returns the bytes of the file, with the first `MOST` notes in order of step and name."""
    kept = sorted(notes, key=lambda note: (note.step, note.name))[:MOST]
    return cbor([[note.step, note.name, note.cause, note.line, note.made] for note in kept])


def decode(data: bytes) -> list[EntryNote]:
    """Reads what `encode` wrote.

    Raises:
        FormatError: The bytes do not follow the format.
    """
    match decode_cbor(data, max_items=1 + 6 * MOST):
        case list(raw) if len(raw) <= MOST:
            notes = [_note(each) for each in raw]
            places = [(note.step, note.name) for note in notes]
            if places == sorted(set(places)):
                return notes
    raise FormatError(f"{ENTERED} is not a list of at most {MOST} ascending notes; fetch it again")


def _note(raw: Any) -> EntryNote:
    match raw:
        case [int(step), str(name), str(cause), str(line), str(made)] if type(step) is int and 0 <= step < MAX_STEPS:
            if cause in CAUSES and all(len(t) <= LONGEST and t.isprintable() for t in (name, line, made)):
                return EntryNote(step, name, cause, line, made)
    raise FormatError(f"a note in {ENTERED} is malformed; fetch it again")
