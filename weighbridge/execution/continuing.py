"""Continuing a recording that a crash cut off, so that nothing is lost and nothing differs.

The program starts again from the state before one of the last whole steps. The steps from there on are made twice: the
second time nothing is written, and every part of the record must come out as it was the first time. That shows that
this is the same program with the same data, and leaves it with everything that its own variables held. The steps after
them are appended as if nothing had happened.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weighbridge.attest.manifest import SigningKey, open_manifest
from weighbridge.core import digests
from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor, expand_cbor, read_file
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.execution.executor import Executor
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.sketches.step_sketches import split
from weighbridge.transcript.collectives import calls, is_collective
from weighbridge.transcript.data import DataCommitment, batch_digest
from weighbridge.transcript.declared_device import DEVICE
from weighbridge.transcript.entry_notes import ENTERED, EntryNote
from weighbridge.transcript.entry_notes import decode as decode_entered
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.journal import journal_path
from weighbridge.transcript.placing import TEMPORARY
from weighbridge.transcript.recovery import Recovery
from weighbridge.transcript.resumption_notes import Resumption, decode, encode, recomputed
from weighbridge.transcript.state import Checkpoint, read_checkpoint
from weighbridge.transcript.steps import (
    StepRecord,
    batches_path,
    checkpoint_path,
    open_batches,
    read_batch,
    read_logs,
    read_records,
    rounding_path,
    steps_path,
    tape_path,
)
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.tensor_file import TensorFile
from weighbridge.transcript.training_claims import CLAIMS, Claims
from weighbridge.transcript.training_claims import decode as decode_claims
from weighbridge.transcript.writer import (
    DRAFT,
    LEAVES,
    MANIFEST,
    ORDER,
    RESUMPTIONS,
    TranscriptWriter,
    draft_bytes,
)

_DIFFERS = "record.resume.differs"


@dataclass(frozen=True, slots=True)
class Entry:
    """Everything that was recorded of one step.

    Attributes:
        record: The step's record.
        rounding: Its encoded rounding log, or sketches and such a log.
        batch: Path to tensor of its batch.
        undeclared: Name to tensor of its undeclared tensors.
    """

    record: StepRecord
    rounding: bytes
    batch: Mapping[str, Tensor]
    undeclared: Mapping[str, Tensor]


def open_writer(
    path: Path, *, draft: Mapping[str, Any], key: SigningKey, data: DataCommitment | None, segment_steps: int
) -> TranscriptWriter:
    """Begins a transcript, or continues the unfinished one that is there.

    Args:
        path: The directory.
        draft: As for a `TranscriptWriter`; an unfinished recording must have the same.
        key: As for a `TranscriptWriter`; nothing is signed before the end, so any key will do.
        data: As for a `TranscriptWriter`.
        segment_steps: As for a `TranscriptWriter`.

    Returns:
        A `Continuation` if there was something to continue.

    Raises:
        UsageError: The transcript there is closed, or was begun under another draft (`record.resume.differs`).
    """
    if (path / MANIFEST).exists():
        manifest = open_manifest(read_file(path / MANIFEST, max_bytes=DEFAULT_LIMITS.manifest))
        how = "complete: there is nothing to resume" if manifest.complete else "signed, incomplete, and closed for good"
        raise UsageError(f"the transcript in {path} is {how}; choose another directory for a new run")
    if (path / DRAFT).exists():
        return Continuation(path, draft_bytes(draft, data), key, data, segment_steps)
    (path / (DRAFT + TEMPORARY)).unlink(missing_ok=True)  # a crash before the first file was whole
    return TranscriptWriter(path, draft=draft, key=key, data=data, segment_steps=segment_steps)


class Continuation(Recovery):
    """A writer of steps of which the first ones are compared with what is recorded already.

    Attributes:
        recorded: Steps that were whole when it was opened.
        at: The next step; below `recorded` it is recomputed.
        again: Snapshots that no step record will name: (chip UEID, log index, step, operations complete).
        tapes: Digests of the tapes of the whole steps.
        common: Of a rank of a job: steps that some rank had recorded. Before a step below that is over, `agree` is
            called, so that no rank records what another one, which compares, refuses.
        agree: Waits until every rank of the job has called it.
    """

    common = 0
    agree: Callable[[], object] | None = None

    def __init__(
        self, path: Path, draft: bytes, key: SigningKey, data: DataCommitment | None, segment_steps: int
    ) -> None:
        """Takes over every whole step; use `open_writer`."""
        self._device = _same_draft(read_file(path / DRAFT, max_bytes=DEFAULT_LIMITS.manifest), draft)
        self._coordinate = MeshCoordinate.of(decode_cbor(draft))
        self._heads: list[bytes] = []
        self.tapes: set[bytes] = set()
        self._later: set[bytes] = set()
        self._updated = False
        super().__init__(path, key, DEFAULT_LIMITS, segment_steps)
        if data is not None:
            self._data, self._order = data, data.ids()
        self.recorded = self.steps
        self.at = self._begin = 0
        self.again: list[tuple[bytes, int, int, int]] = []
        self._told = False
        self._before: list[Resumption] = []
        if RESUMPTIONS in self._files:
            self._before = decode(read_file(path / RESUMPTIONS, max_bytes=DEFAULT_LIMITS.manifest))
        self._firsts = [int(name[6:14]) for name in sorted(self._files) if name.startswith("steps/")]
        self._in_segments = self._open_segment[0] if self._open_segment else self.steps
        self._segment: tuple[int, list[StepRecord], list[bytes], TensorFile] | None = None

    @property
    def repeating(self) -> bool:
        """Whether the next step is recomputed."""
        return self.at < self.recorded

    def entered(self) -> list[EntryNote]:
        """Returns what is noted of the undeclared tensors of whole steps."""
        if ENTERED not in self._files:
            return []
        notes = decode_entered(read_file(self._root / ENTERED, max_bytes=DEFAULT_LIMITS.manifest))
        return [note for note in notes if note.step < self.recorded]  # a crash may come between a note and its step

    def claims(self) -> dict[bytes, Claims]:
        """Returns what is claimed of the training on the tapes."""
        if CLAIMS not in self._files:
            return {}
        return decode_claims(read_file(self._root / CLAIMS, max_bytes=DEFAULT_LIMITS.manifest))

    def head_before(self, step: int) -> bytes:
        """Returns the running head before `step`, which was made already or is the next one (32 bytes)."""
        return self._heads[step - 1] if step else self.draft_digest

    def known(self, ueid: bytes, index: int, step: int) -> bool:
        """Tells whether the transcript names a snapshot of this step already."""
        if step < self.recorded and any(s[:2] == (ueid, index) for s in self.entry(step).record.snapshots):
            return True
        return any(s[:2] == (ueid, index) for r in self._before for s in r.snapshots)

    def entry(self, step: int) -> Entry:
        """Returns what was recorded of a step below `recorded`."""
        if step >= self._in_segments:
            file = TensorFile(self._root / journal_path(step), self._limits)
            parts = [
                {name.removeprefix(kind): file.read(name) for name in file if name.startswith(kind)}
                for kind in ("batch/", "free/")
            ]
            record = StepRecord.from_cbor(file.read("record").numpy().tobytes())
            return Entry(record, file.read("rounding").numpy().tobytes(), *parts)
        place = bisect.bisect_right(self._firsts, step)
        first = self._firsts[place - 1]
        if self._segment is None or self._segment[0] != first:
            records = read_records(self._root / steps_path(first), self._limits)
            logs = read_logs(self._root / rounding_path(first), self._limits)
            batches = open_batches(self._root / batches_path(first), range(first, first + len(records)), self._limits)
            self._segment = (first, records, logs, batches)
        _, records, logs, batches = self._segment
        return Entry(records[step - first], logs[step - first], *read_batch(batches, step))

    def tape(self, digest: bytes) -> Tape:
        """Returns a tape of a whole step."""
        packed = read_file(self._root / tape_path(digest), max_bytes=self._limits.tape)
        data = expand_cbor(packed, max_bytes=self._limits.tape, max_items=self._limits.items)
        if digests.bytes_digest(data) != digest:
            raise TranscriptError(f"{tape_path(digest)} holds another tape than its name says; restore it")
        return Tape.decode(data)

    def state_before(self, step: int, device: torch.device, seed: int, policy: Policy) -> Executor:
        """Makes the state before a whole step: the nearest checkpoint, and the steps after it, replayed.

        Of a rank of a job, these steps must have no collectives (`alone`).

        Args:
            step: The step; it is whole, and not step 0.
            device: Where the replay runs.
            seed: The run's seed.
            policy: The run's policy.

        Raises:
            DifferenceError: This device does not reproduce what was recorded.
        """
        executor = Executor(device, seed, 1 << 62, policy, self._coordinate)
        begin = self._checkpoint_before(step)
        if begin:
            executor.load(self._checkpoint(begin))
        for number in range(begin, step):
            entry = self.entry(number)
            tape = self.tape(entry.record.tape)
            if number == 0 and not tape.nodes:
                raise TranscriptError("the checkpoint of the weights before step 1 is gone; the run cannot be resumed")
            log, sketches, encoded = None, None, entry.rounding
            if entry.record.sketches:
                sketches, encoded = split(entry.rounding)
            if sketches is not None or not entry.record.outputs:
                log = rounding_log.LogReader(encoded, max_entries=entry.record.logged)
            executor.run(tape, entry.record.tape, entry.record, log, entry.batch, entry.undeclared, sketches=sketches)
        if executor.state_digest() != self.entry(step - 1).record.state:
            raise TranscriptError(
                f"the state before step {step} cannot be recomputed here; resume on the first machine"
            )
        return executor

    def _checkpoint_before(self, step: int) -> int:
        return max((c for c in self._checkpoints if c <= step), default=0)

    def alone(self, step: int) -> bool:
        """Tells whether a rank of a job can make the state before a whole step without the other ranks."""
        begin = self._checkpoint_before(step)
        tapes = (self.tape(self.entry(number).record.tape) for number in range(begin, step))
        return begin > 0 and not any(is_collective(node) for tape in tapes for node in tape.nodes)

    def heard(self) -> set[int]:
        """Returns the ranks of a job whose contributions this rank has in whole steps after the first update.

        Such a rank had made that update, and kept what it began with.
        """
        assert self._coordinate is not None, "it is a rank of a job"
        rank = self._coordinate.rank
        made = [call for digest in self._later for call in calls(self.tape(digest), rank)]
        return {call.group[source] for call in made for each in call.sources(rank) for source, _ in each} - {rank}

    def begin(self, step: int) -> None:
        """Sets the whole step from which on the program recomputes its steps."""
        self.at = self._begin = step

    def check_batch(self, batch: Mapping[str, Tensor]) -> None:
        """Raises a UsageError if the next step is one that is recomputed, and `batch` (path to tensor) is not its."""
        if self.repeating and batch_digest(batch, {}) != batch_digest(self.entry(self.at).batch, {}):
            raise UsageError(
                f"the batch of step {self.at} is not the one that was recorded; begin the loop at batch number "
                "recorder.updates, and shuffle with a fixed seed",
                code=_DIFFERS,
            )

    def append_step(self, **fields: Any) -> StepRecord:
        """Appends the next step as `TranscriptWriter.append_step` does, or compares one that is recomputed.

        Raises:
            UsageError: A step that is recomputed differs from its record (`record.resume.differs`).
        """
        if not self.repeating:
            self._agree()
            self.accept()
            record = super().append_step(**fields)
            self.at = self.steps
            return record
        entry = self.entry(self.at)
        self._compare(entry, fields)
        self._agree()
        self.at += 1
        return entry.record

    def _agree(self) -> None:
        if self.agree is not None and self.at < self.common:
            self.agree()

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Stores the state before the next step, unless it is there from before the crash."""
        if checkpoint.step < self.recorded or checkpoint.step in self._checkpoints:
            return
        self.accept()
        super().checkpoint(checkpoint)

    def accept(self) -> None:
        """Called when every whole step was recomputed: from here on the directory changes."""
        if self._told:
            return
        self._told = True
        self.tidy()
        if self._data is not None:
            for name, content in ((LEAVES, self._data.leaves), (ORDER, self._data.order_bytes())):
                if self._files.get(name) != (len(content), digests.bytes_digest(content).hex()):
                    self._placed.put(name, content)
        again = tuple(s for s in self.again if recomputed(self._begin, self.recorded, s[2], s[3]))
        entries = [*self._before, Resumption(self.recorded, self._begin, again, self._device)]
        self._placed.put(RESUMPTIONS, encode(entries))
        self.flush()
        self._finish_large_segment()

    def close(self, complete: bool = True) -> str:
        """Ends the transcript; see `TranscriptWriter.close`.

        Raises:
            UsageError: The program ended before it had made the whole steps again.
        """
        if self.repeating:
            raise UsageError(
                f"the program ended at step {self.at} of the {self.recorded} that were recorded; run the whole of it",
                code=_DIFFERS,
            )
        self.accept()
        return super().close(complete)

    def _accept(self, record: StepRecord) -> bytes:
        state = super()._accept(record)
        self._heads.append(self.head)
        self.tapes.add(record.tape)
        if self._updated:
            self._later.add(record.tape)
        self._updated |= record.kind == "step"
        return state

    def _checkpoint(self, step: int) -> Checkpoint:
        return read_checkpoint(self._root / checkpoint_path(step), self._limits)

    def _compare(self, entry: Entry, fields: dict[str, Any]) -> None:
        """Raises unless a step came out as it was recorded."""
        record, step = entry.record, entry.record.step
        if fields["kind"] != record.kind:
            raise UsageError(
                f"step {step} of the transcript is of the kind {record.kind}, and the program's of {fields['kind']}; "
                "begin the loop at recorder.updates, edit at the end of its iterations, and before it only if that "
                "is 0",
                code=_DIFFERS,
            )
        batch, undeclared = fields["batch"], fields.get("undeclared") or {}
        if fields["tape"] != record.tape:
            raise UsageError(
                f"step {step} is another program than the one recorded; resume with the same code, versions and "
                "arguments, and attach everything whose tensors outlive a step",
                code=_DIFFERS,
            )
        found = dataclasses.replace(
            record,
            values=list(fields["values"]),
            host=list(fields["host"]),
            rng={name: tuple(pair) for name, pair in fields["rng"].items()},
            state=fields["state"],
            checksums=fields["checksums"],
            batch=batch_digest(batch, undeclared),
            formulas=list(fields.get("formulas", ())),
            counts=list(fields.get("counts", ())),
            outputs=fields.get("outputs", b""),
            collectives=[tuple(each) for each in fields.get("collectives", ())],
        )
        if found.to_cbor() != record.to_cbor():
            names = ("values", "host", "rng", "batch", "checksums", "outputs", "formulas", "counts", "collectives")
            old, new = ({n: digests.cbor(getattr(r, n)) for n in names} for r in (record, found))  # a NaN equals itself
            different = ", ".join(n for n in names if old[n] != new[n]) or "state"
            raise UsageError(
                f"step {step} did not come out as it was recorded ({different} differ); resume with the same "
                "model and numbers, and attach what has state of its own, such as schedulers",
                code=_DIFFERS,
            )


def _same_draft(recorded: bytes, wanted: bytes) -> str | None:
    """Returns the device that the wanted draft names; it alone may be another one.

    Raises:
        UsageError: Anything else in the drafts differs; it says what.
    """
    old, new = decode_cbor(recorded), decode_cbor(wanted)
    device = new.get(DEVICE)
    names = sorted(name for name in {*old, *new} - {DEVICE} if old.get(name) != new.get(name))
    if not names:
        return device if isinstance(device, str) else None
    raise UsageError(
        f"the recording there was begun with another {' and '.join(names)}; resume it with the same, "
        "or choose another directory",
        code=_DIFFERS,
        differing=", ".join(names),
    )
