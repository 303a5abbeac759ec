"""Reading a transcript: everything is checked before anything in it is used.

`Transcript.open` verifies the manifest's signature, every file against it, and the chain of step records. What is read
later is checked again against digests held in memory, so a file that changes meanwhile is noticed. The writing side is
in `writer.py`, the formats are in docs/formats/transcript.md.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from weighbridge.attest.manifest import Manifest
from weighbridge.core import digests
from weighbridge.core.bounded import (
    DEFAULT_LIMITS,
    Limits,
    decode_cbor,
    expand_cbor,
    read_file,
)
from weighbridge.core.errors import Finding, LogError, TapeError, TranscriptError, WeighbridgeError
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.numerics.sketches.step_sketches import SketchReader, split
from weighbridge.transcript import layout as layouts
from weighbridge.transcript import log_kinds
from weighbridge.transcript.chip_notes import CHIPS, ChipNotes
from weighbridge.transcript.chip_notes import decode as decode_notes
from weighbridge.transcript.data import DataCommitment, batch_digest, record_digests
from weighbridge.transcript.data_files import compare, read_commitment
from weighbridge.transcript.entry_notes import ENTERED, EntryNote
from weighbridge.transcript.entry_notes import decode as decode_entered
from weighbridge.transcript.files import altered, read_manifest, verify_files
from weighbridge.transcript.formula_terms import Formulas
from weighbridge.transcript.layout import Shard
from weighbridge.transcript.recovery import recover
from weighbridge.transcript.resumption_notes import Resumption
from weighbridge.transcript.resumption_notes import decode as decode_resumptions
from weighbridge.transcript.returned_state import RETURNED, Returned
from weighbridge.transcript.returned_state import decode as decode_returned
from weighbridge.transcript.state import Checkpoint, checkpoint_digest, read_checkpoint
from weighbridge.transcript.steps import (
    LAYOUT,
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
from weighbridge.transcript.supplements import Supplements
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.tensor_file import TensorFile
from weighbridge.transcript.training_claims import CLAIMS, Claims
from weighbridge.transcript.training_claims import decode as decode_claims
from weighbridge.transcript.writer import DRAFT, RESUMPTIONS

__all__ = ["Transcript", "recover"]


class Transcript:
    """A verified transcript directory.

    Attributes:
        path: The directory.
        manifest: The verified manifest; `manifest.public` is the key that signed it, for the caller to judge.
        digest: Hex BLAKE3 digest of `manifest.json`: the transcript's identifier.
        draft: The decoded `draft.cbor`.
        draft_digest: Its digest (32 bytes).
        data: The commitment to data set and order, or None.
        steps: Number of steps.
        checkpoint_steps: Steps whose checkpoint is here, ascending; the manifest may list more, which were left out.
        resumptions: The crashes that the recording survived.
        notes: What is said about the run's chips beside the step records; None if it ran on none.
        on_demand: Whether rounding logs, or what sketches do not say, are made on demand: step records commit to the
            rounded outputs.
        supplements: Rounding logs that were made since, if `supplement` was given some.
    """

    path: Path
    manifest: Manifest
    digest: str
    draft: dict[str, Any]
    draft_digest: bytes
    data: DataCommitment | None
    steps: int
    checkpoint_steps: list[int]
    resumptions: list[Resumption]
    notes: ChipNotes | None
    on_demand: bool

    def __init__(self, path: Path, manifest: Manifest, limits: Limits) -> None:
        """Use `Transcript.open`; this only takes over what it has verified."""
        self.path, self.manifest, self.limits = path, manifest, limits
        self._listed = {listed for listed, _, _ in manifest.files}
        self.digest = manifest.digest
        self.steps = manifest.steps
        self.checkpoint_steps = list(manifest.checkpoints)
        self.resumptions = []
        self.notes = None
        self.on_demand = False
        self.supplements: Supplements | None = None
        self.returned = Returned()
        self.entered: list[EntryNote] = []
        self.claims: dict[bytes, Claims] = {}
        self._firsts: list[int] = []
        self._digests: list[bytes] = []
        self._heads: list[bytes] = []
        self._records: tuple[int, list[StepRecord]] = (-1, [])
        self._logs: tuple[int, list[bytes]] = (-1, [])
        self._batches: tuple[int, TensorFile] | None = None

    @classmethod
    def open(cls, path: str | Path, *, limits: Limits = DEFAULT_LIMITS) -> Transcript:
        """Opens a transcript and verifies it.

        Checkpoints that a replay recomputes may be absent; their state is then checked when a replay gets there.

        Args:
            path: The directory.
            limits: On what it may hold.

        Raises:
            TranscriptError: The manifest does not verify (`transcript.manifest.*`); a file is missing, altered,
                unlisted or too large (`transcript.file.*`); the parts do not fit together (`transcript.malformed`).
            FormatError: A file that the signer listed does not follow its format.
        """
        return cls._open(Path(path), limits, unchanged=False)

    @classmethod
    def _open(cls, root: Path, limits: Limits, *, unchanged: bool) -> Transcript:
        transcript = cls(root, read_manifest(root, limits), limits)
        transcript.checkpoint_steps = verify_files(root, transcript.manifest, limits, unchanged=unchanged)
        transcript._load_draft()
        transcript._load_steps()
        transcript._check_absent()
        return transcript

    def step(self, step: int) -> StepRecord:
        """Returns the record of `step`."""
        first = self._segment(step)
        if self._records[0] != first:
            records = read_records(self.path / steps_path(first), self.limits)
            expected = self._digests[first : self._next_first(first)]
            if [record.digest() for record in records] != expected:
                raise altered(steps_path(first))
            self._records = (first, records)
        return self._records[1][step - first]

    def initialises(self) -> bool:
        """Tells whether step 0 made the weights; else the run began from weights that it was given.

        Raises:
            TranscriptError: A file was altered after it was opened.
        """
        if not self.steps:
            return True  # Nothing says otherwise.
        return bool(Tape.decode(self.tape(self.step(0).tape)).nodes)

    def formulas(self) -> Formulas:
        """Returns what is declared of values that change: by the draft, and by step 0 once the optimizer was there.

        Raises:
            TapeError: A formula breaks the language's rules (`tape.formula`).
        """
        declared = self.draft.get("formulas", [])
        later = self.step(0).formulas if self.steps else []
        return Formulas.parse([*declared, *later] if isinstance(declared, list) else declared)

    def snapshots(self, step: int) -> list[tuple[bytes, int, int]]:
        """Returns (chip UEID, log index, operations complete) of every snapshot that was taken in `step`.

        Those that the step's record names, and those taken when it was recomputed after a crash. `steps` is a step too:
        the one that did not become whole, or what came after the last one.
        """
        beside = [s for r in self.resumptions for s in r.snapshots] + list(self.notes.snapshots if self.notes else ())
        named = self.step(step).snapshots if step < self.steps else []
        return [*named, *((ueid, index, op) for ueid, index, at, op in beside if at == step)]

    def records(self) -> Iterator[StepRecord]:
        """Yields the records of all steps in order."""
        return map(self.step, range(self.steps))

    def programs(self) -> dict[bytes, int]:
        """Returns the digest of every tape that ran (32 bytes) and the step that ran it first, in that order.

        Example:
            >>> rehearsed = Transcript.open("runs/rehearsal").programs()
            >>> with Recorder("runs/gpt2", seed=7, programs=rehearsed) as recorder: ...
        """
        first: dict[bytes, int] = {}
        for record in self.records():
            first.setdefault(record.tape, record.step)
        return first

    def head(self, step: int) -> bytes:
        """Returns the running head after `step` (32 bytes); for -1 the digest of the draft."""
        if step == -1:
            return self.draft_digest
        self._segment(step)
        return self._heads[step]

    def tape(self, digest: bytes) -> bytes:
        """Returns the CBOR of a tape.

        Raises:
            TranscriptError: There is no such tape, or its content has another digest.
        """
        path = tape_path(digest)
        if path not in self._listed:
            raise TranscriptError(f"the transcript has no tape {digest.hex()}; take a digest from a step record")
        packed = read_file(self.path / path, max_bytes=self.limits.tape)
        data = expand_cbor(packed, max_bytes=self.limits.tape, max_items=self.limits.items)
        if digests.bytes_digest(data) != digest:
            raise TranscriptError(f"{path} holds another tape than its name says; fetch the transcript again")
        return data

    def rounding(self, step: int) -> bytes:
        """Returns the encoded rounding log of `step`; of a step with sketches that of its 32-bit outputs.

        Raises:
            TranscriptError: The log is not the one that the step's record names.
            LogError: Sketches that stand before it are malformed (`replay.sketch.malformed`).
        """
        named = self.named_log(step)
        return split(named)[1] if self.step(step).sketches else named

    def sketches(self, step: int) -> SketchReader | None:
        """Returns the sketches of `step` from their beginning; None if it has none.

        Raises:
            TranscriptError: They are not those that the step's record names.
            LogError: They are malformed (`replay.sketch.malformed`).
        """
        return split(self.named_log(step))[0] if self.step(step).sketches else None

    def named_log(self, step: int) -> bytes:
        """Returns the bytes that the record of `step` names as its log: a rounding log, or sketches and such a log.

        Raises:
            TranscriptError: They are not those that the record names.
        """
        record, first = self.step(step), self._segment(step)
        if self._logs[0] != first:
            logs = read_logs(self.path / rounding_path(first), self.limits)
            if len(logs) != self._next_first(first) - first:
                raise TranscriptError(f"{rounding_path(first)} does not hold one log for each step; fetch it again")
            self._logs = (first, logs)
        log = self._logs[1][step - first]
        if digests.bytes_digest(log) != record.rounding:
            raise TranscriptError(
                f"the rounding log of step {step} is not the one that its record names; the Prover must explain this",
                code="transcript.rounding.differs",
                step=step,
            )
        return log

    def supplement(self, folder: Path) -> None:
        """Takes the rounding logs of a transcript that has its logs on demand from a directory of supplements.

        Raises:
            TranscriptError: The directory cannot be read, or holds far more files than there are steps.
        """
        draft, signer = self.draft_digest, self.manifest.public
        self.supplements = Supplements(folder, draft, signer, self.step, self.steps, self.limits)

    def log(self, step: int) -> LogReader | None:
        """Returns the rounding log of `step` from its beginning; None if it is made on demand, and is not here.

        Of a step with sketches it is a supplement, if one is here, and else the log of 32-bit outputs.

        Raises:
            TranscriptError: The log is not the one that the step's record names.
            LogError: Its headers are malformed, or it does not have the entries that the record says.
        """
        record = self.step(step)
        if self.on_demand:
            made = None if self.supplements is None else self.supplements.reader(record)
            if made is not None or not record.sketches:
                return made
        log = LogReader(self.rounding(step), max_entries=record.logged)
        if log.entries != record.logged:
            raise LogError(f"step {step} has {log.entries} log entries and its record says {record.logged}", step=step)
        return log

    def batch(self, step: int) -> dict[str, Tensor]:
        """Returns path to tensor of the batch of `step`, in host memory.

        Raises:
            TranscriptError: The tensors, or their records, are not those that the step's record names.
        """
        return self._entering(step)[0]

    def undeclared(self, step: int) -> dict[str, Tensor]:
        """Returns name to tensor of the undeclared tensors of `step`, in host memory; raises as `batch` does."""
        return self._entering(step)[1]

    def checkpoint(self, step: int) -> Checkpoint:
        """Returns the state before `step`.

        Raises:
            TranscriptError: There is no such checkpoint, or it is not the state that the record before names.
        """
        if step not in self.checkpoint_steps:
            raise TranscriptError(f"there is no checkpoint {step}; this transcript has {self.checkpoint_steps[:20]}")
        checkpoint = read_checkpoint(self.path / checkpoint_path(step), self.limits)
        if checkpoint.step != step:
            raise TranscriptError(
                f"{checkpoint_path(step)} says that it is checkpoint {checkpoint.step}; fetch it again"
            )
        if step > 0 and checkpoint_digest(checkpoint) != self.step(step - 1).state:
            raise TranscriptError(
                f"checkpoint {step} is not the state after step {step - 1}; the Prover must explain this",
                code="transcript.checkpoint.differs",
                step=step,
            )
        return checkpoint

    def tensors(self, step: int) -> dict[str, Tensor]:
        """Returns the named tensors of the checkpoint before `step`; raises as `checkpoint` does."""
        checkpoint = self.checkpoint(step)
        return {view.name: view.tensor(checkpoint.storages) for view in checkpoint.views}

    def layout(self) -> list[Shard]:
        """Returns which part of each tensor this rank of a job holds, by its own word; empty if it says nothing."""
        if layouts.LAYOUT not in self._listed:
            return []
        return layouts.decode(read_file(self.path / layouts.LAYOUT, max_bytes=self.limits.manifest))

    def check_data(self) -> list[Finding]:
        """Compares every batch with its record and with the data commitment, and does not stop at the first failure.

        Returns:
            `data.not_precommitted` (info) if there is no commitment; `data.record.differs` and `data.order.differs`, at
            most one of each for a step; and whatever made a batch unreadable.
        """
        findings = []
        if self.data is None:
            message = "The data were not committed to before training; batches were chosen freely."
            findings.append(Finding(id="data.not_precommitted", message=message, severity="info"))
        order = [] if self.data is None else self.data.ids().tolist()
        used = 0
        for step in range(self.steps):
            try:
                self._entering(step)
            except WeighbridgeError as error:
                findings.append(error.finding(subject=f"step {step}"))
            record = self.step(step)
            if self.data is not None:
                findings += compare(record, self.data, order[used : used + len(record.record_digests)])
                used += len(record.record_digests)
        return findings

    def _entering(self, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        record, first = self.step(step), self._segment(step)
        if self._batches is None or self._batches[0] != first:
            steps = range(first, self._next_first(first))
            self._batches = (first, open_batches(self.path / batches_path(first), steps, self.limits))
        batch, undeclared = read_batch(self._batches[1], step)
        hashes = record_digests(batch, len(record.records) or None)
        entered = batch_digest(batch, undeclared), sorted(undeclared), hashes
        if entered != (record.batch, record.free, record.record_digests):
            raise TranscriptError(
                f"the batch of step {step} is not the one that its record names; the Prover must explain this",
                code="transcript.batch.differs",
                step=step,
            )
        return batch, undeclared

    def _segment(self, step: int) -> int:
        """Returns the first step of the segment that holds `step`."""
        if not 0 <= step < self.steps:
            raise TranscriptError(f"there is no step {step}; this transcript has steps 0 to {self.steps - 1}")
        return self._firsts[bisect.bisect_right(self._firsts, step) - 1]

    def _next_first(self, first: int) -> int:
        place = bisect.bisect_right(self._firsts, first)
        return self._firsts[place] if place < len(self._firsts) else self.steps

    def _load_draft(self) -> None:
        """Checks the layout, loads the draft and the data commitment."""
        for path in self._listed:
            if not LAYOUT.fullmatch(path):
                raise TranscriptError(f"the manifest lists {path}, which has no place in a transcript; fetch it again")
        if DRAFT not in self._listed:
            raise TranscriptError(f"the manifest does not list {DRAFT}; fetch the transcript again")
        text = read_file(self.path / DRAFT, max_bytes=self.limits.manifest)
        self.draft_digest = digests.bytes_digest(text)
        if self.draft_digest.hex() != self.manifest.draft:
            raise TranscriptError("draft.cbor is not the one that the manifest names; fetch the transcript again")
        draft = decode_cbor(text)
        known = isinstance(draft, dict) and type(draft.get("format")) is int and "data" in draft
        if not known or draft["format"] != log_kinds.draft_format(draft):
            raise TranscriptError(
                "draft.cbor is not a draft of format 1, 2 or 3; use a matching version of Weighbridge"
            )
        self.draft, self.on_demand = draft, log_kinds.on_demand(draft)
        self.data = read_commitment(self.path, self._listed, draft["data"], self.limits)
        if RESUMPTIONS in self._listed:
            self.resumptions = decode_resumptions(read_file(self.path / RESUMPTIONS, max_bytes=self.limits.manifest))
        if CHIPS in self._listed:
            self.notes = decode_notes(read_file(self.path / CHIPS, max_bytes=self.limits.manifest))
        if RETURNED in self._listed:
            self.returned = decode_returned(read_file(self.path / RETURNED, max_bytes=self.limits.manifest))
        if ENTERED in self._listed:
            self.entered = decode_entered(read_file(self.path / ENTERED, max_bytes=self.limits.manifest))
        if CLAIMS in self._listed:
            self.claims = decode_claims(read_file(self.path / CLAIMS, max_bytes=self.limits.manifest))

    def _load_steps(self) -> None:
        """Checks segments and checkpoints against the manifest and chains all step records."""
        places: dict[str, list[int]] = {"steps": [], "rounding": [], "batches": [], "checkpoints": []}
        for path in self._listed:
            match = LAYOUT.fullmatch(path)
            folder = path.split("/")[0]
            if match and folder in places:
                places[folder].append(int(match["steps"] or match["rounding"] or match["tensors"]))
        self._firsts = sorted(places["steps"])
        if not self._firsts == sorted(places["rounding"]) == sorted(places["batches"]):
            raise TranscriptError("a segment lacks its steps, its rounding logs or its batches; fetch it again")
        if sorted(places["checkpoints"]) != list(self.manifest.checkpoints):
            raise TranscriptError("checkpoints/ does not hold the checkpoints of the manifest; fetch it again")
        head, sketched = self.draft_digest, log_kinds.sketched(self.draft)
        for first in self._firsts:
            if first != len(self._digests):
                raise TranscriptError(f"no segment starts at step {len(self._digests)}; fetch the transcript again")
            for record in read_records(self.path / steps_path(first), self.limits):
                if record.step != len(self._digests):
                    raise TranscriptError(f"{steps_path(first)} does not hold consecutive steps; fetch it again")
                if (bool(record.outputs), bool(record.sketches)) != (self.on_demand, sketched):
                    raise TranscriptError(
                        f"step {record.step} does not have the kind of rounding logs that the draft names; "
                        "fetch the transcript again"
                    )
                if tape_path(record.tape) not in self._listed:
                    raise TranscriptError(f"the tape of step {record.step} is missing; fetch the transcript again")
                self._digests.append(record.digest())
                head = digests.chain(head, self._digests[-1])
                self._heads.append(head)
        if len(self._digests) != self.steps or head.hex() != self.manifest.head:
            raise TranscriptError(
                "the step records do not lead to the head that the manifest names; fetch the transcript again",
                code="transcript.head.mismatch",
                expected=self.manifest.head,
                found=head.hex(),
            )
        if self.resumptions and self.resumptions[-1].step > self.steps:
            raise TranscriptError("the transcript resumes after its last step; fetch resumptions.cbor again")
        if self.notes is not None and any(step != self.steps for _, _, step, _ in self.notes.snapshots):
            raise TranscriptError(f"{CHIPS} names a snapshot of a step that has a record; fetch it again")

    def remakable(self) -> list[int]:
        """Returns the steps whose checkpoints may be left out, because a replay makes their states again.

        All of them if step 0 is a recorded program; else all but the first, usually that of W_0.
        """
        steps = list(self.manifest.checkpoints)
        try:
            made = self.steps > 0 and bool(Tape.decode(self.tape(self.step(0).tape)).nodes)
        except TapeError:
            made = False
        return steps if made else steps[1:]

    def _check_absent(self) -> None:
        absent = set(self.manifest.checkpoints) - set(self.checkpoint_steps)
        if absent and (needed := absent - set(self.remakable())):
            path = checkpoint_path(min(needed))
            raise TranscriptError(
                f"{path} is missing, and no tape makes it: the model existed before the recording; fetch it again",
                code="transcript.file.missing",
                path=path,
            )


def open_unchanged(path: str | Path, limits: Limits) -> Transcript:
    """Opens a transcript whose files were compared with its manifest before, in a directory of the reader's own.

    Raises:
        WeighbridgeError: As `Transcript.open`.
    """
    return Transcript._open(Path(path), limits, unchanged=True)
