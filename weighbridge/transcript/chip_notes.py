"""What a transcript says about its chips beside the step records: `chips.cbor`.

Which storages of the state are the model's weights, so that the region that a workload declared to its chip as weights
can be checked; and snapshots that no step record names, because no step followed them: those taken after the last one,
and those in a step that failed. See docs/formats/transcript.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError
from weighbridge.transcript.steps import MAX_STEPS

CHIPS = "chips.cbor"
"""Name of the file."""


@dataclass(frozen=True, slots=True)
class ChipNotes:
    """The content of `chips.cbor`.

    Attributes:
        weights: Names of the storages of the state that hold the attached modules' parameters, ascending.
        snapshots: (chip UEID, log index, step, operations complete); the step is the one after the last whole step.
    """

    weights: tuple[str, ...] = ()
    snapshots: tuple[tuple[bytes, int, int, int], ...] = ()

    def encode(self) -> bytes:
        """Returns the bytes of the file; `decode(notes.encode()) == notes`."""
        return cbor({"weights": self.weights, "snapshots": self.snapshots})


def decode(data: bytes) -> ChipNotes:
    """Reads what `ChipNotes.encode` wrote.

    Raises:
        FormatError: The bytes do not follow the format.
    """
    match decode_cbor(data):
        case {"weights": list(weights), "snapshots": list(snapshots), **rest} if not rest:
            if all(type(name) is str for name in weights) and weights == sorted(set(weights)):
                return ChipNotes(tuple(weights), tuple(map(_snapshot, snapshots)))
    raise FormatError(f"{CHIPS} is not a map of ascending weights and snapshots; fetch it again")


def _snapshot(raw: Any) -> tuple[bytes, int, int, int]:
    match raw:
        case [bytes(ueid), int(index), int(step), int(op)] if (
            0 < len(ueid) <= 64 and all(type(n) is int and 0 <= n < 1 << 64 for n in raw[1:]) and step < MAX_STEPS
        ):
            return ueid, index, step, op
    raise FormatError(f"a snapshot in {CHIPS} is malformed; fetch it again")
