"""What a Recorder needs of a chip, as a protocol.

The Recorder never imports the firmware. It is handed an object that follows `ChipLink`; `firmware_sim.Shim` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor

Position = tuple[int, int, bytes]
"""Step in progress, operations of it that are complete, and the transcript's running head before it (32 bytes)."""


class ChipLink(Protocol):
    """A connection from a training process to the firmware of the chip it runs on."""

    ueid: bytes
    """The chip's identity (EAT UEID), 17 to 33 bytes."""

    pending: bool
    """True while the chip has raised an interrupt that waits for a safepoint. Cheap to read after every operation."""

    def log_event(self, name: str, digest: bytes) -> int:
        """Has the chip log a signed event, e.g. `manifest-draft` with its digest; returns the log index."""
        ...

    def witnessed(self, index: int) -> int | None:
        """Returns when the Verifier's witness first held a log entry, in seconds since 1970 on the witness's clock.

        None if the chip does not know: the witness does not have it yet, or had it before the chip's last boot.
        """
        ...

    def declare_weights(self, tensors: Iterable[Tensor]) -> None:
        """Names the weights region of later snapshots: the storages of these tensors, as long as they live."""
        ...

    def on_snapshot(self, note: Callable[[int], None] | None, where: Callable[[], Position] | None = None) -> None:
        """Says what to call when a snapshot is taken elsewhere than in `safepoint`.

        The chip takes one if no safepoint is offered for too long, or when the workload detaches.

        Args:
            note: Called with its log index once it is signed; None for nothing.
            where: Called before it is signed, for the position that the workload claims; None to claim none. A crash
                may come before `note` is done, and then only this claim leads to the transcript.
        """
        ...

    def safepoint(self, step: int, op: int, running: bytes, head: bytes, flush: Callable[[], None]) -> int | None:
        """Offers the chip a moment between two operations to take a pending snapshot.

        Args:
            step: Step in progress.
            op: Operations of that step that are complete.
            running: Digest of this step's operations so far (32 bytes).
            head: The transcript's running head after the last complete step (32 bytes).
            flush: Makes the recorder's log durable up to this operation; called before the chip signs.

        Returns:
            The log index of the snapshot, or None if none was taken.
        """
        ...
