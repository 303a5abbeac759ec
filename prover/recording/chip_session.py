"""One recording's session with the chip that its program runs on.

It commits to the transcript's draft before anything runs, says where the weights lie, offers a safepoint after every
operation, and sees to it that every snapshot can be found in the transcript later: by the record of the step in which
it was taken, else by `chips.cbor` or `resumptions.cbor`, else by the position that it claims itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from prover.capture.attached_objects import Attached
from prover.capture.without_modes import unseen
from prover.recording.resumption import Resuming
from prover.recording.state_tracker import StateTracker
from weighbridge.attest.chip_link import ChipLink, Position
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.writer import TranscriptWriter


class ChipSession:
    """The chip of one recording.

    Attributes:
        snapshots: (chip UEID, log index, operations complete) of those taken in the step in progress.
        before: Called before a snapshot may be taken.
    """

    def __init__(
        self,
        chip: ChipLink,
        writer: TranscriptWriter,
        resuming: Resuming | None,
        where: Callable[[], Position],
        running: Callable[[], bytes],
    ) -> None:
        """Commits to the draft, unless it was before a crash, and answers for snapshots from now on.

        Args:
            chip: The chip.
            writer: Of the transcript.
            resuming: If the recording may be resumed, what keeps snapshots for that.
            where: Returns the step in progress, its complete operations, and the running head before it.
            running: Returns the digest of that step's operations so far (32 bytes).
        """
        self._chip, self._writer, self._resuming = chip, writer, resuming
        self._position, self._running = where, running
        self._notes, self._left = ChipNotes(), False
        self.snapshots: list[tuple[bytes, int, int]] = []
        self.before: Callable[[], None] = lambda: None
        if writer.steps == 0:
            chip.log_event("manifest-draft", writer.draft_digest)
        chip.on_snapshot(self._unasked, self._where)

    def show(self, tensors: Iterable[Tensor]) -> None:
        """Runs a kernel on each tensor: a chip knows memory once one has met it, and some no step may ever use."""
        for t in tensors:
            t.detach()

    def declare_weights(self, attached: Attached) -> None:
        """Tells the chip where the weights lie now: which storages they have may change while a program runs."""
        self._chip.declare_weights(attached.parameters().values())

    def note_weights(self, attached: Attached, held: StateTracker) -> None:
        """Writes down which storages of the state hold parameters."""
        addresses = {t.untyped_storage()._cdata for t in attached.parameters().values()}
        self._notes = ChipNotes(tuple(sorted(name for address, name in held.names.items() if address in addresses)))
        self._writer.put_notes(self._notes)

    @property
    def pending(self) -> bool:
        """Whether the chip waits for a safepoint."""
        return self._chip.pending

    def offer(self) -> None:
        """Offers the chip a safepoint: the moment between two operations."""
        self.before()
        step, op, head = self._position()
        index = self._chip.safepoint(step, op, self._running(), head, self._writer.flush)
        if index is not None:
            self._taken(index, step, op)

    def leave(self, complete: bool) -> None:
        """Serves an interrupt that waits after the last step, and names the snapshots that no step record will name."""
        if complete and self._chip.pending:
            self.offer()
        self._left = True
        self._chip.on_snapshot(None, self._where)  # until the process leaves the chip, or records something else
        if self.snapshots and (complete or self._resuming is None):
            step = self._position()[0]
            after = tuple((ueid, index, step, op) for ueid, index, op in self.snapshots)
            self._writer.put_notes(ChipNotes(self._notes.weights, after))

    def _taken(self, index: int, step: int, op: int) -> None:
        if self._resuming is None or self._resuming.snapshot(self._chip.ueid, index, step, op):
            self.snapshots.append((self._chip.ueid, index, op))

    def _unasked(self, index: int) -> None:
        """Notes a snapshot that was taken elsewhere than between two operations, or outside steps."""
        step, op, _ = self._position()
        self._taken(index, step, op)

    @unseen
    def _where(self) -> Position:
        """What a snapshot that is taken unasked says about where it was taken; durable before the chip signs it."""
        if not self._left:
            self.before()
            self._writer.flush()
        return self._position()
