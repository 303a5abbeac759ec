"""What a transcript says about the crashes that its recording survived: `resumptions.cbor`.

A resumed run starts from an earlier whole step and recomputes the last ones, which must give what was recorded. A chip
may have taken snapshots meanwhile, and in the step that the crash cut off; no step record can name them any more, so
they are named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError
from weighbridge.transcript.steps import MAX_STEPS

MAX_DEVICE = 500
"""Characters of a kind of device."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """One time that a recording continued after a crash.

    Attributes:
        step: Steps that were whole by then: the number of the first new step.
        begin: First step that was recomputed, to compare it with its record.
        snapshots: (chip UEID, log index, step, operations complete) of snapshots that no step record names: those taken
            while the initialisation and then the steps from `begin` on were recomputed, or in the step that the crash
            cut off.
        device: Kind of device on which the recording went on; None if it does not say.
    """

    step: int
    begin: int
    snapshots: tuple[tuple[bytes, int, int, int], ...] = ()
    device: str | None = None


def encode(resumptions: Sequence[Resumption]) -> bytes:
    """Returns the bytes of `resumptions.cbor`: an array of maps, in the order in which it happened."""
    return cbor(
        [
            {"step": r.step, "begin": r.begin, "snapshots": r.snapshots}
            | ({} if r.device is None else {"device": r.device})
            for r in resumptions
        ]
    )


def decode(data: bytes) -> list[Resumption]:
    """Reads what `encode` wrote.

    Raises:
        FormatError: The bytes do not follow the format.
    """
    raw = decode_cbor(data)
    if type(raw) is not list or not raw:
        raise FormatError("resumptions.cbor is not a list of resumptions; fetch it again")
    found = [_resumption(each) for each in raw]
    if [r.step for r in found] != sorted(r.step for r in found):
        raise FormatError("the resumptions are not in the order of their steps; fetch resumptions.cbor again")
    return found


def _resumption(raw: Any) -> Resumption:
    match raw:
        case {"step": step, "begin": begin, "snapshots": list(snapshots), **rest} if (
            set(rest) <= {"device"} and _natural(step) and _natural(begin) and begin <= step < MAX_STEPS
        ):
            taken = tuple(_snapshot(each, begin, step) for each in snapshots)
            return Resumption(step, begin, taken, _device(rest["device"]) if rest else None)
    raise FormatError("a resumption is not a map of step, begin, snapshots and device; fetch resumptions.cbor again")


def _device(raw: Any) -> str:
    """Returns the kind of device that a resumption names; one that names none does not have the key."""
    if isinstance(raw, str) and 0 < len(raw) <= MAX_DEVICE:
        return raw
    raise FormatError(f"the device of a resumption is a text of up to {MAX_DEVICE} characters; fetch it again")


def _snapshot(raw: Any, begin: int, last: int) -> tuple[bytes, int, int, int]:
    match raw:
        case [bytes(ueid), index, step, op] if (
            0 < len(ueid) <= 64 and all(map(_natural, (index, step, op))) and recomputed(begin, last, step, op)
        ):
            return ueid, index, step, op
    raise FormatError("a snapshot of a resumption is not one of the steps that were recomputed; fetch it again")


def recomputed(begin: int, last: int, step: int, op: int) -> bool:
    """Tells whether a resumption passes a position that its recording had passed before, or was at when it was cut off.

    Args:
        begin: First step that was recomputed.
        last: Steps that were whole.
        step: Step of the position. Step 0 is always recomputed: model and optimizer are new objects, which only then
            get the state before `begin`.
        op: Operations of it that were complete.
    """
    return begin <= step <= last or step == 0 or (step, op) == (1, 0)


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64
