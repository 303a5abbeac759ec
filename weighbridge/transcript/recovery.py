"""Recovering a transcript whose recording crashed: every whole step is kept, the rest goes, the result is signed.

Whole segments are taken as they are; the steps after them come from the journal, in order, up to the first that is not
whole. Nothing here makes up data: a recovered transcript says that it is not complete.
"""

from __future__ import annotations

from pathlib import Path

from weighbridge.attest.manifest import SigningKey
from weighbridge.core import digests
from weighbridge.core.bounded import DEFAULT_LIMITS, Limits, read_file, walk_files
from weighbridge.core.errors import TranscriptError, UsageError, WeighbridgeError
from weighbridge.transcript.chip_notes import CHIPS
from weighbridge.transcript.data import batch_digest
from weighbridge.transcript.entry_notes import ENTERED
from weighbridge.transcript.journal import journal_path
from weighbridge.transcript.placing import TEMPORARY
from weighbridge.transcript.returned_state import RETURNED
from weighbridge.transcript.state import checkpoint_digest, read_checkpoint
from weighbridge.transcript.steps import (
    LAYOUT,
    StepRecord,
    batches_path,
    open_batches,
    read_batch,
    read_logs,
    read_records,
    rounding_path,
    steps_path,
    tape_path,
)
from weighbridge.transcript.tensor_file import TensorFile
from weighbridge.transcript.training_claims import CLAIMS
from weighbridge.transcript.writer import (
    DRAFT,
    LEAVES,
    MANIFEST,
    ORDER,
    RANK_LAYOUT,
    RESUMPTIONS,
    TranscriptWriter,
)


def recover(path: str | Path, *, key: SigningKey, limits: Limits = DEFAULT_LIMITS) -> str:
    """Turns what a crashed recording left into a valid, incomplete transcript.

    Args:
        path: The directory that a `TranscriptWriter` did not get to close.
        key: Signs the manifest.
        limits: As for reading a transcript.

    Returns:
        The transcript's identifier.

    Raises:
        UsageError: The directory holds a closed transcript already.
        TranscriptError: It holds none, or a tape that its steps need is gone.
    """
    root = Path(path)
    if (root / MANIFEST).exists():
        raise UsageError(f"{root} holds a closed transcript; there is nothing to recover")
    recovery = Recovery(root, key, limits)
    recovery.tidy()
    return recovery.close(complete=False)


class Recovery(TranscriptWriter):
    """A writer that starts from what is already in the directory; it changes nothing there until it is told to."""

    def __init__(self, root: Path, key: SigningKey, limits: Limits, segment_steps: int = 1 << 30) -> None:
        """Takes over every whole step.

        Args:
            root: The directory; it holds no manifest.
            key: Signs the manifest at the end.
            limits: As for reading a transcript.
            segment_steps: As for a `TranscriptWriter`.

        Raises:
            TranscriptError: The directory holds no recording, or a tape that its steps need is gone.
        """
        self._start(root, key, read_file(root / DRAFT, max_bytes=limits.manifest), segment_steps)
        self._data, self._used, self._limits = None, 0, limits
        leftovers = {name for name, _ in walk_files(root, max_files=limits.files)}
        beside = [DRAFT, LEAVES, ORDER, RESUMPTIONS, CHIPS, ENTERED, CLAIMS, RETURNED, RANK_LAYOUT]
        for name in [*beside, *(n for n in leftovers if n.startswith("tapes/"))]:
            if name in leftovers and not name.endswith(TEMPORARY):
                self._list(name, root / name)
        states = self._take_segments(leftovers)
        self._take_journal(states)
        self._take_checkpoints(leftovers, states)
        # Only what a recording may have left is removed; the reader will name any other file.
        self._torn = [n for n in leftovers if n not in self._files and LAYOUT.fullmatch(n.removesuffix(TEMPORARY))]

    def tidy(self) -> None:
        """Removes the files of segments and checkpoints that are not whole."""
        for name in self._torn:
            if name not in self._files:  # it may have been written again since
                (self._root / name).unlink(missing_ok=True)
        self._torn = []

    def _take_segments(self, leftovers: set[str]) -> list[bytes]:
        """Takes over whole segments; returns the state digest after every step of theirs."""
        states: list[bytes] = []
        while steps_path(first := self.steps) in leftovers:
            names = (steps_path(first), rounding_path(first), batches_path(first))
            try:
                records = read_records(self._root / names[0], self._limits)
                logs = read_logs(self._root / names[1], self._limits)
                batches = open_batches(self._root / names[2], range(first, first + len(records)), self._limits)
                whole = len(records) == len(logs) and all(
                    (record.step, record.rounding, record.batch)
                    == (step, digests.bytes_digest(log), batch_digest(*read_batch(batches, step)))
                    for step, (record, log) in enumerate(zip(records, logs, strict=True), first)
                )
            except WeighbridgeError:
                whole = False
            if not whole:
                break
            for name in names:
                self._list(name, self._root / name)
            states += [self._accept(record) for record in records]
        return states

    def _take_journal(self, states: list[bytes]) -> None:
        """Takes over the whole steps of the open segment, extending `states`."""
        while (self._root / journal_path(self.steps)).exists():
            try:
                file = TensorFile(self._root / journal_path(self.steps), self._limits)
                record = StepRecord.from_cbor(file.read("record").numpy().tobytes())
                batch, undeclared = (
                    {name.removeprefix(kind): file.read(name) for name in file if name.startswith(kind)}
                    for kind in ("batch/", "free/")
                )
                rounding = digests.bytes_digest(file.read("rounding").numpy().tobytes())
            except WeighbridgeError:
                return
            if (record.step, rounding, batch_digest(batch, undeclared)) != (self.steps, record.rounding, record.batch):
                return
            self._open_segment.append(record.step)
            self._segment_bytes += (self._root / journal_path(record.step)).stat().st_size
            states.append(self._accept(record))

    def _take_checkpoints(self, leftovers: set[str], states: list[bytes]) -> None:
        """Lists the checkpoints that are whole and belong to a step that was kept."""
        for name in sorted(n for n in leftovers if n.startswith("checkpoints/") and LAYOUT.fullmatch(n)):
            try:
                checkpoint = read_checkpoint(self._root / name, self._limits)
            except WeighbridgeError:
                continue
            step = checkpoint.step
            if step <= self.steps and (step == 0 or checkpoint_digest(checkpoint) == states[step - 1]):
                self._list(name, self._root / name)
                self._checkpoints.append(step)

    def _accept(self, record: StepRecord) -> bytes:
        if tape_path(record.tape) not in self._files:
            raise TranscriptError(
                f"the tape of step {record.step} is gone; restore {tape_path(record.tape)}, then recover again",
                code="transcript.file.missing",
            )
        self._adopt(record)
        return record.state
