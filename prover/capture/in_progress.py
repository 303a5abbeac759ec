"""What the Recorder needs of a step in progress, however its operations come about."""

from __future__ import annotations

from typing import Protocol

from prover.capture.claimed_training import ClaimedTraining
from prover.capture.recording_context import Recording
from prover.capture.storages import HostCopy
from weighbridge.transcript.tape import Tape


class InProgress(Protocol):
    """A step in progress: captured operation by operation, or run as the program of a tape that is known.

    Attributes:
        tape: Its tape, so far or as a whole.
        context: What its operations are evaluated in.
        values: Its vector of values.
        undeclared: Its undeclared tensors, by name.
        claimed: What is claimed of its training, if that is wanted.
        slots: Slots of the storages that live, by address.
        adopted: Names of undeclared tensors whose storages live, by address.
        written: Slots of the storages that operations changed.
    """

    tape: Tape
    context: Recording
    values: list[bool | int | float]
    undeclared: dict[str, HostCopy]
    claimed: ClaimedTraining | None
    slots: dict[int, int]
    adopted: dict[int, str]
    written: set[int]

    @property
    def complete(self) -> int:
        """Operations that are complete."""
        ...

    def died(self, address: int) -> None:
        """Notes that a storage has died."""

    def state_died(self, address: int, name: str, size: int) -> None:
        """Notes that a storage of the state has died, whether or not this step had used it."""

    def where(self) -> str | None:
        """Returns the path of the module that runs."""
        ...

    def finish(self) -> Tape:
        """Completes the tape."""
        ...
