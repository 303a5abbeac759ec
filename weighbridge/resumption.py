"""What a transcript says about the crashes that its recording survived: `resumptions.cbor`.

Whoever resumes starts from an earlier whole step and makes the last ones again, which must give what was recorded. A
chip may have taken snapshots meanwhile, and in the step that the crash cut off; no step record can name them any more,
so they are named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weighbridge.bounded import decode_cbor
from weighbridge.digests import cbor
from weighbridge.errors import FormatError
from weighbridge.steps import MAX_STEPS


@dataclass(frozen=True, slots=True)
class Resumption:
    """One time that a recording continued after a crash.

    Attributes:
        step: Steps that were whole by then: the number of the first new step.
        begin: First step that was made again, to compare it with its record.
        snapshots: (chip UEID, log index, step, operations complete) of snapshots that no step record names: those taken
            while the initialisation and then the steps from `begin` on were made again, or in the step that the crash
            cut off.
    """

    step: int
    begin: int
    snapshots: tuple[tuple[bytes, int, int, int], ...] = ()


def encode(resumptions: Sequence[Resumption]) -> bytes:
    """Returns the bytes of `resumptions.cbor`: an array of maps, in the order in which it happened."""
    return cbor([{"step": r.step, "begin": r.begin, "snapshots": r.snapshots} for r in resumptions])


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
            not rest and _natural(step) and _natural(begin) and begin <= step < MAX_STEPS
        ):
            return Resumption(step, begin, tuple(_snapshot(each, begin, step) for each in snapshots))
    raise FormatError("a resumption is not a map of step, begin and snapshots; fetch resumptions.cbor again")


def _snapshot(raw: Any, begin: int, last: int) -> tuple[bytes, int, int, int]:
    match raw:
        case [bytes(ueid), index, step, op] if (
            0 < len(ueid) <= 64 and all(map(_natural, (index, step, op))) and made_again(begin, last, step, op)
        ):
            return ueid, index, step, op
    raise FormatError("a snapshot of a resumption is not one of the steps that were made again; fetch it again")


def made_again(begin: int, last: int, step: int, op: int) -> bool:
    """Tells whether a resumption passes a position that its recording had passed before, or was at when it was cut off.

    Args:
        begin: First step that was made again.
        last: Steps that were whole.
        step: Step of the position. Step 0 is always made again: model and optimizer are new objects, which only then
            get the state before `begin`.
        op: Operations of it that were complete.
    """
    return begin <= step <= last or step == 0 or (step, op) == (1, 0)


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64
