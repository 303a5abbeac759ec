"""Writing a transcript: streamed, crash-safe, signed at the end.

Each step is one file in `journal/` until its segment is whole; then the segment's three files are made durable and the
journal files go. A file appears under its name only when it is complete. So after a crash `recovery.recover` finds
every whole step, and nothing else.
"""

from __future__ import annotations

import operator
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import torch
from torch import Tensor

from weighbridge.attest.manifest import Predicate, SigningKey, sign_manifest, timestamp, valid_name
from weighbridge.core import digests
from weighbridge.core.background import Background, Task
from weighbridge.core.bounded import compress, decode_cbor
from weighbridge.core.errors import FormatError, UsageError
from weighbridge.transcript.chip_notes import CHIPS, ChipNotes
from weighbridge.transcript.data import DataCommitment, batch_digest, micro_batches, record_digests
from weighbridge.transcript.entry_notes import ENTERED, EntryNote
from weighbridge.transcript.entry_notes import encode as encode_entered
from weighbridge.transcript.journal import JOURNAL, end_segment, journal_path, put_checkpoint
from weighbridge.transcript.log_kinds import draft_format, on_demand, sketched
from weighbridge.transcript.placing import Files, write_content
from weighbridge.transcript.returned_state import RETURNED, Returned
from weighbridge.transcript.state import Checkpoint
from weighbridge.transcript.steps import (
    Kind,
    Scalar,
    StepRecord,
    tape_path,
)
from weighbridge.transcript.tensor_file import write_tensors
from weighbridge.transcript.training_claims import CLAIMS, Claims
from weighbridge.transcript.training_claims import encode as encode_claims

MANIFEST = "manifest.json"
DRAFT = "draft.cbor"
LEAVES = "data/leaves.bin"
ORDER = "data/order.bin"
RESUMPTIONS = "resumptions.cbor"
RANK_LAYOUT = "layout.cbor"
_RESERVED = ("format", "data")
_LARGE = 4 << 20
"""Bytes for which it is worth while to write them in a thread."""
_SEGMENT_BYTES = 64 << 20
"""A segment ends when its journal is this large: readers limit what they decode at once."""


class TranscriptWriter:
    """Writes one transcript directory.

    Attributes:
        draft_digest: Digest of `draft.cbor`, which fixes what was agreed before the first step (32 bytes).
        head: Running head after the last whole step (32 bytes); the draft's digest before any.
        steps: Number of whole steps so far; the number of the next step.
        background: Whether large segments and checkpoints are written beside the program, until the next step is to be
            written. So a crash finds what it could find without, and a step is whole when `append_step` returns in any
            case. What goes wrong beside the program is raised by the next call.
    """

    draft_digest: bytes
    head: bytes
    steps: int
    background: bool

    def __init__(
        self,
        path: str | Path,
        *,
        draft: Mapping[str, Any],
        key: SigningKey,
        data: DataCommitment | None = None,
        segment_steps: int = 64,
    ) -> None:
        """Creates the directory and writes `draft.cbor` and the data commitment at once.

        Args:
            path: Directory to create; an existing one must be empty.
            draft: What is fixed before the first step; anything CBOR holds without tags. `name`, if there, becomes the
                transcript's name (else the directory's is); `format` and `data` are written by this class.
            key: Signs the manifest at the end.
            data: Commitment to data set and order, if there is one.
            segment_steps: Most steps of a segment; a checkpoint ends a segment too, and so do 64 MiB.

        Raises:
            UsageError: The directory is not empty, or an argument cannot be written.
        """
        if segment_steps < 1:
            raise UsageError("segment_steps must be at least 1")
        text = draft_bytes(draft, data)
        self._start(Path(path), key, text, segment_steps)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if any(self._root.iterdir()):
                raise UsageError(f"{path} is not empty; choose a new directory for the transcript")
            self._placed.put(DRAFT, text)
        except OSError as error:
            raise UsageError(f"cannot write to {path} ({error.strerror}); choose another directory") from None
        self._data, self._order, self._used = data, np.zeros(0, dtype=np.int64), 0
        if data is not None:
            self._order = data.ids()
            self._placed.put(LEAVES, data.leaves)
            self._placed.put(ORDER, data.order_bytes())
        self.flush()

    def _start(self, root: Path, key: SigningKey, draft: bytes, segment_steps: int) -> None:
        self._root, self._key, self._segment_steps = root, key, segment_steps
        said = decode_cbor(draft)
        self._name, self._on_demand = said.get("name", root.resolve().name), on_demand(said)
        self._sketched = sketched(said)
        if not valid_name(self._name):
            raise UsageError("the transcript needs a name of 1 to 200 printable characters; set `name` in the draft")
        self.draft_digest = self.head = digests.bytes_digest(draft)
        self.steps = 0
        self._placed = Files(root)
        self._files = self._placed.listed
        self._beside = Background()
        self.background = False
        self._open_segment: list[int] = []
        self._ending: list[int] = []
        self._segment_bytes = 0
        self._checkpoints: list[int] = []
        self._tapes: set[bytes] = set()
        self._state: bytes | None = None
        self._rounded = self._logged = 0
        self._digest: str | None = None

    @property
    def path(self) -> Path:
        """The transcript's directory."""
        return self._root

    @property
    def durable(self) -> int:
        """Number of steps that are in finished segments, which a loss of power does not take away."""
        return min([*self._ending[:1], *self._open_segment[:1], self.steps])

    @property
    def last_checkpoint(self) -> int:
        """Step of the last checkpoint; -1 before the first one."""
        return self._checkpoints[-1] if self._checkpoints else -1

    def put_tape(self, data: bytes) -> bytes:
        """Stores a tape durably, once.

        Args:
            data: The tape's CBOR.

        Returns:
            Its BLAKE3 digest (32 bytes).
        """
        digest = digests.bytes_digest(data)
        path = tape_path(digest)
        if path not in self._files:
            self._placed.put(path, compress(data))
            self.flush()
        return digest

    def append_step(
        self,
        *,
        kind: Kind,
        tape: bytes,
        values: Sequence[Scalar],
        host: Sequence[Scalar],
        rng: Mapping[str, tuple[int, int]],
        state: bytes,
        checksums: bytes,
        rounding: bytes,
        batch: Mapping[str, Tensor],
        undeclared: Mapping[str, Tensor] | None = None,
        records: Sequence[int] | None = None,
        snapshots: Sequence[tuple[bytes, int, int]] = (),
        rounded: int = 0,
        logged: int = 0,
        collectives: Sequence[tuple[int, bytes, bytes]] = (),
        formulas: Sequence[tuple[str, str]] = (),
        counts: Sequence[int] = (),
        parent: Mapping[str, Any] | None = None,
        outputs: bytes = b"",
        sketches: int = 0,
    ) -> StepRecord:
        """Writes the next step; it is whole when this returns, and absent when this raises.

        Args:
            kind: `init`, `step` or `edit`.
            tape: Digest that `put_tape` returned.
            values: The vector of hoisted values.
            host: Values that the program read back.
            rng: Generator name to counter before and after.
            state: `state_digest` after the step.
            checksums: 8 little-endian bytes for every rounded output.
            rounding: The encoded rounding log, or sketches and such a log.
            batch: Path to tensor, as `data.flatten` gives it.
            undeclared: Name to tensor of values without another origin.
            records: Ids of the batch's records; None means the next ones of the committed order, if there is one.
            snapshots: (chip UEID, log index, operations complete) of snapshots taken during the step.
            rounded: Elements rounded.
            logged: Entries of the rounding log.
            collectives: What the step exchanged with other ranks; see `StepRecord`.
            formulas: (name, text) of formulas that step 0 declares beside the draft's.
            counts: How far schedules were; see `StepRecord`.
            parent: What step 0 declares if the draft declares none; see `StepRecord`.
            outputs: Digest of the rounded outputs, if the log is made on demand or sketched; see `StepRecord`.
            sketches: Version of the sketches that `rounding` begins with; 0 if it has none.

        Returns:
            The step's record.

        Raises:
            UsageError: A field cannot be written, or the batch is not what the data commitment says.
        """
        self._check_open()
        undeclared = undeclared or {}
        record_hashes = self._record_hashes(batch, records)
        ids = self._record_ids(record_hashes, records)
        fields: dict[str, Any] = {
            "step": self.steps,
            "kind": kind,
            "tape": tape,
            "values": list(values),
            "host": list(host),
            "rng": {name: tuple(pair) for name, pair in rng.items()},
            "state": state,
            "checksums": checksums,
            "rounding": digests.bytes_digest(rounding),
            "batch": batch_digest(batch, undeclared),
            "records": ids,
            "record_digests": record_hashes,
            "free": sorted(undeclared),
            "snapshots": [tuple(snapshot) for snapshot in snapshots],
            "rounded": rounded,
            "logged": logged,
            **({"collectives": list(collectives)} if collectives else {}),
            **({"formulas": list(formulas)} if formulas else {}),
            **({"counts": list(counts)} if counts else {}),
            **({"parent": dict(parent)} if parent else {}),
            **({"outputs": outputs} if outputs else {}),
            **({"sketches": sketches} if sketches else {}),
        }
        try:
            record = StepRecord.from_map(fields)
        except FormatError as error:
            raise UsageError(f"step {self.steps} cannot be written: {error.message}") from None
        if (bool(outputs), bool(sketches)) != (self._on_demand, self._sketched):
            raise UsageError(f"step {self.steps} does not have the kind of rounding logs that the draft names")
        if tape_path(tape) not in self._files:
            raise UsageError(f"step {self.steps} names a tape that is not stored; call put_tape first")
        contents = {"record": _as_tensor(record.to_cbor()), "rounding": _as_tensor(rounding)}
        contents.update({f"batch/{name}": tensor for name, tensor in batch.items()})
        contents.update({f"free/{name}": tensor for name, tensor in undeclared.items()})
        journal = self._placed.place(journal_path(self.steps), lambda file: write_tensors(file, contents))
        self._adopt(record)
        self._open_segment.append(record.step)
        self._segment_bytes += journal.stat().st_size
        self._finish_large_segment()
        return record

    def _finish_large_segment(self) -> None:
        if len(self._open_segment) >= self._segment_steps or self._segment_bytes >= _SEGMENT_BYTES:
            self.settle()
            beside = self.background and self._segment_bytes >= _LARGE
            self._beside.do(*self._segment_task(), beside=beside)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Stores the state before the next step and ends the segment.

        Raises:
            UsageError: It is not the state that the last step record names, or not the one before the next step.
        """
        self._check_open()
        if checkpoint.step != self.steps or checkpoint.step in self._checkpoints:
            raise UsageError(f"the next checkpoint must be the first one before step {self.steps}")
        size = self._segment_bytes + sum(data.numel() for data in checkpoint.storages.values())
        # Without the first one, nothing that comes after it could be replayed.
        beside = self.background and bool(self._checkpoints) and size >= _LARGE
        self._beside.do(*self._segment_task(), self._checkpoint_task(checkpoint), beside=beside)

    def put_notes(self, notes: ChipNotes) -> None:
        """Stores what is to be known about the run's chips beside the step records, in place of an earlier version."""
        self._put(CHIPS, notes.encode())

    def put_returned(self, returned: Returned) -> None:
        """Stores which undeclared tensors are state of an earlier step, in place of an earlier version."""
        self._put(RETURNED, returned.encode())

    def put_entered(self, notes: list[EntryNote]) -> None:
        """Stores what is to be said about undeclared tensors, in place of an earlier version."""
        self._put(ENTERED, encode_entered(notes))

    def put_claims(self, claims: Mapping[bytes, Claims]) -> None:
        """Stores what is claimed of the training on tapes, in place of an earlier version."""
        self._put(CLAIMS, encode_claims(claims))

    def put_layout(self, content: bytes) -> None:
        """Stores which part of each tensor this rank of a job holds (`layout.cbor`), in place of an earlier version."""
        self._put(RANK_LAYOUT, content)

    def _put(self, path: str, content: bytes) -> None:
        if self._files.get(path) != (len(content), digests.bytes_digest(content).hex()):
            self._placed.put(path, content)

    def flush(self) -> None:
        """Makes everything written so far survive a loss of power."""
        self._placed.flush()

    def finish_segment(self) -> None:
        """Turns the journal of the open segment into its three files; does nothing if it has no steps."""
        self.settle()
        self._beside.do(*self._segment_task(), beside=False)

    def settle(self) -> None:
        """Waits for what is written in the background.

        Raises:
            TranscriptError: It cannot be written.
        """
        self._beside.settle()

    def _segment_task(self) -> tuple[Task, ...]:
        """Takes the steps out of the open segment and returns what ends it."""
        if not self._open_segment:
            return ()
        steps, size = self._open_segment, self._segment_bytes
        self._open_segment, self._segment_bytes, self._ending = [], 0, steps
        files = Files(self._root, self._placed.dirty(outside=JOURNAL))

        def done() -> None:
            self._ending = []
            self._files.update(files.listed)
            self._placed.forget(self._root / journal_path(step) for step in steps)

        def undone() -> None:
            self._open_segment, self._ending = steps + self._open_segment, []
            self._segment_bytes += size

        return (Task(partial(end_segment, files, self._root, steps), done, undone),)

    def _checkpoint_task(self, checkpoint: Checkpoint) -> Task:
        files, expected = Files(self._root), self._state

        def done() -> None:
            self._files.update(files.listed)

        def undone() -> None:
            self._checkpoints.remove(checkpoint.step)

        self._checkpoints.append(checkpoint.step)
        return Task(partial(put_checkpoint, files, checkpoint, expected), done, undone)

    def close(self, complete: bool = True) -> str:
        """Ends the transcript and signs its manifest; calling it again does nothing.

        Args:
            complete: Whether recording ended as planned. An incomplete transcript is as valid, up to its last step.

        Returns:
            The transcript's identifier: the hex BLAKE3 digest of `manifest.json`.
        """
        if self._digest is not None:
            return self._digest
        self.finish_segment()
        used = {tape_path(digest) for digest in self._tapes}
        for path in [path for path in self._files if path.startswith("tapes/") and path not in used]:
            (self._root / path).unlink()
            del self._files[path]
        # What an interruption may have left here is in the segments, or is a step that never became whole.
        shutil.rmtree(self._root / JOURNAL, ignore_errors=True)
        self.flush()
        predicate = Predicate(
            name=self._name,
            created=timestamp(),
            draft=self.draft_digest.hex(),
            head=self.head.hex(),
            steps=self.steps,
            checkpoints=tuple(self._checkpoints),
            files=tuple((path, size, digest) for path, (size, digest) in sorted(self._files.items())),
            rounded=self._rounded,
            logged=self._logged,
            complete=complete,
        )
        text = sign_manifest(predicate, self._key)
        self._placed.place(MANIFEST, partial(write_content, content=text))
        self.flush()
        self._digest = digests.bytes_digest(text).hex()
        return self._digest

    def abort(self) -> str:
        """Ends the transcript early: `close(complete=False)`."""
        return self.close(complete=False)

    def _check_open(self) -> None:
        if self._digest is not None:
            raise UsageError("this transcript is closed; start another one")
        self.settle()

    def _record_hashes(self, batch: Mapping[str, Tensor], records: Sequence[int] | None) -> list[bytes]:
        """Returns the digests of a batch's records; those of micro-batches if the commitment has these next."""
        hashes = record_digests(batch, len(records) if records else None)
        if self._data is None or records or self._are_next(self._data, hashes):
            return hashes
        return [digest for part in micro_batches(batch) for digest in record_digests(part)] or hashes

    def _are_next(self, data: DataCommitment, found: list[bytes]) -> bool:
        expected = self._order[self._used : self._used + len(found)].tolist()
        return found == [data.leaf(identity) for identity in expected]

    def _record_ids(self, found: list[bytes], records: Sequence[int] | None) -> list[int]:
        """Returns the ids of the records with digests `found`, holding the user to the commitment while it helps."""
        if self._data is None:
            ids = [operator.index(identity) for identity in records or ()]
            if ids and len(ids) != len(found):
                raise UsageError(f"{len(ids)} record ids were given for a batch of {len(found)} records; give one each")
            return ids
        expected: list[int] = self._order[self._used : self._used + len(found)].tolist()
        ids = expected if records is None else [operator.index(identity) for identity in records]
        if ids != expected or len(ids) != len(found):
            raise UsageError(
                f"step {self.steps} uses records {ids[:8]} where the committed order says {expected[:8]} for its"
                f" {len(found)} records; follow DataCommitment.ids()",
                code="data.order.differs",
            )
        for identity, digest in zip(ids, found, strict=True):
            if self._data.leaf(identity) != digest:
                raise UsageError(
                    f"record {identity} in step {self.steps} is not the one that was committed to; batches must be"
                    " stacked from exactly the records given to DataCommitment.over",
                    code="data.record.differs",
                )
        return ids

    def _adopt(self, record: StepRecord) -> None:
        """Counts a record as whole."""
        self.head = digests.chain(self.head, record.digest())
        self.steps = record.step + 1
        self._state = record.state
        self._tapes.add(record.tape)
        self._used += len(record.records)
        self._rounded += record.rounded
        self._logged += record.logged

    def _list(self, path: str, file: Path) -> None:
        self._placed.take(path, file)


def draft_bytes(draft: Mapping[str, Any], data: DataCommitment | None) -> bytes:
    """Returns the bytes of `draft.cbor`.

    Raises:
        UsageError: It cannot be written, or sets what the transcript writes itself.
    """
    if clash := [name for name in _RESERVED if name in draft]:
        raise UsageError(f"the draft may not set {clash[0]!r}, which the transcript writes itself; rename it")
    if (version := draft_format(draft)) is None:
        raise UsageError("the draft names an unknown kind of rounding logs; leave it out, or say on-demand or sketch")
    try:
        text = digests.cbor({**draft, "format": version, "data": None if data is None else data.summary()})
        decode_cbor(text)
    except (FormatError, cbor2.CBORError, ValueError) as error:
        raise UsageError(f"the draft cannot be written as plain CBOR ({error}); use text, numbers, lists") from None
    return text


def _as_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
