"""What entered a training without an origin: noted with its line, and said once for each line."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from prover.capture.sources import UndeclaredInputWarning
from prover.capture.user_line import user_line
from prover.following.segments import SegmentRecorder
from weighbridge.transcript.entry_notes import CAUSES

__all__ = ["Notes", "TakenForBatch", "Undeclared", "UndeclaredInputWarning"]

NUMBER_BYTES = 8
"""The largest tensor that counts as a number of the program."""


@dataclass(frozen=True, slots=True)
class Undeclared:
    """A tensor that entered without an origin.

    Attributes:
        step: The step in which it entered.
        name: Its name in that step.
        shape: Its shape.
        dtype: Its type.
        line: The user's line that used it.
        module: The module that did, if one did.
        cause: Where it came from, as far as is known.
        source: The same as a key of `weighbridge.transcript.entry_notes.CAUSES`.
    """

    step: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    line: str
    module: str | None
    cause: str
    source: str


@dataclass(frozen=True, slots=True)
class TakenForBatch:
    """A tensor from outside that was taken for part of a batch, since the program fetches none.

    Attributes:
        step: The first step in which this line used one.
        name: Its name in the batch, or in its micro-batch.
        shape: Its shape then.
        dtype: Its type.
        line: The user's line.
    """

    step: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    line: str


class Notes:
    """Takes them down.

    Attributes:
        undeclared: What entered so far.
        taken: What was taken for batches, by line and name.
    """

    def __init__(self) -> None:
        self.undeclared: list[Undeclared] = []
        self.taken: dict[tuple[str, str], TakenForBatch] = {}

    def by_hand(self, recorder: SegmentRecorder, t: Tensor, name: str) -> None:
        """Notes a tensor that was taken for part of the batch.

        Args:
            recorder: Records the step.
            t: The tensor.
            name: Its name in the batch.
        """
        line = user_line()
        taken = TakenForBatch(recorder.step_number, name, tuple(t.shape), t.dtype, line)
        self.taken.setdefault((line, name), taken)

    def add(self, recorder: SegmentRecorder, t: Tensor, ahead: int, evaluated: str | None) -> None:
        """Notes a tensor that is about to enter, and warns of it unless all that entered is small.

        Args:
            recorder: Records the step.
            t: The tensor; numbers of the program are no tensors in this sense.
            ahead: How many others enter with the same operation before it.
            evaluated: Where the evaluation was that made it, if one did.
        """
        if recorder.built and recorder.earlier.holds(t):
            return  # state that the program had saved
        if recorder.capture is None or (t.untyped_storage().nbytes() <= NUMBER_BYTES and evaluated is None):
            return
        if evaluated is not None:
            recorder.sources.add(t, "evaluation", evaluated)
        name = f"f{len(recorder.capture.undeclared) + ahead}"
        found = recorder.sources.note(recorder.step_number, name, t)
        meaning, _ = CAUSES[found.cause]
        cause = f"{meaning}: {found.made}" if found.made else meaning
        where = recorder.capture.where()
        shape = tuple(t.shape)
        note = Undeclared(recorder.step_number, name, shape, t.dtype, user_line(), where, cause, found.cause)
        self.undeclared.append(note)
        if recorder.built:
            recorder.sources.warn(found, t, where, note.line)
