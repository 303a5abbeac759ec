"""Transcripts made to order by a dishonest Prover: changed and signed again, so that every digest is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weighbridge.attest.manifest import Predicate, SigningKey, open_manifest, sign_manifest
from weighbridge.core import digests
from weighbridge.core.bounded import DEFAULT_LIMITS, file_digest
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint
from weighbridge.transcript.steps import StepRecord, pack_records, read_records
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.writer import DRAFT, MANIFEST, RANK_LAYOUT, TranscriptWriter

Change = Callable[[int, Tape, dict[str, Any]], None]
"""Does what it likes with (step, tape, fields of the record, the rounding log, batch and undeclared tensors too)."""


def forge(
    source: Path,
    target: Path,
    change: Change,
    checkpoint: Callable[[Checkpoint], Checkpoint] = lambda original: original,
    *,
    data: DataCommitment | None = None,
    notes: ChipNotes | None = None,
    crashed_in: int | None = None,
    key: SigningKey | None = None,
    **drafted: Any,
) -> Path:
    """Writes a transcript again after `change` had every step.

    Args:
        source: The transcript.
        target: Where to write.
        change: Gets every step.
        checkpoint: Gets every checkpoint.
        data: Commitment to the batches as they are after `change`; none by default, whatever the transcript had.
        notes: What to say about the run's chips.
        crashed_in: The step from which on there is nothing, as if a crash had cut it off.
        key: Signs; by default one that exists for this only.
        drafted: Other entries of the draft.
    """
    old = Transcript.open(source)
    draft = {k: v for k, v in old.draft.items() if k not in ("format", "data")} | drafted
    writer = TranscriptWriter(target, draft=draft, key=key or SigningKey.generate(), data=data)
    if notes is not None:
        writer.put_notes(notes)
    if old.claims:
        writer.put_claims(old.claims)
    if (source / RANK_LAYOUT).exists():
        writer.put_layout((source / RANK_LAYOUT).read_bytes())
    for record in old.records():
        if record.step == crashed_in:
            writer.abort()
            return target
        if record.step in old.checkpoint_steps:
            writer.checkpoint(checkpoint(old.checkpoint(record.step)))
        tape = Tape.decode(old.tape(record.tape))
        others = ("step", "batch", "free", "record_digests")
        fields = {name: getattr(record, name) for name in StepRecord.__slots__ if name not in others}
        fields.update(
            rounding=old.named_log(record.step),
            batch=old.batch(record.step),
            undeclared=old.undeclared(record.step),
            records=None,
        )
        change(record.step, tape, fields)
        writer.append_step(**{**fields, "tape": writer.put_tape(tape.encode())})
    writer.close()
    return target


def rewrite(path: Path, change: Callable[[StepRecord], StepRecord]) -> str:
    """Changes the step records of a transcript as they lie there, and signs it again; returns its identifier."""
    for file in sorted((path / "steps").iterdir()):
        file.write_bytes(pack_records([change(record) for record in read_records(file, DEFAULT_LIMITS)]))
    return resign(path)


def resign(path: Path, **claims: Any) -> str:
    """Signs a transcript again as its files lie there now, with other claims if wanted; returns its identifier."""
    manifest = open_manifest((path / MANIFEST).read_bytes())
    said = {field.name: getattr(manifest, field.name) for field in dataclasses.fields(Predicate)}
    names = sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file() and f.name != MANIFEST)
    found = [(name, *file_digest(path / name)) for name in names]
    head = draft = digests.bytes_digest((path / DRAFT).read_bytes())
    for file in sorted((path / "steps").iterdir()):
        for record in read_records(file, DEFAULT_LIMITS):
            head = digests.chain(head, record.digest())
    said |= {"files": tuple((name, size, digest.hex()) for name, size, digest in found)}
    said |= {"head": head.hex(), "draft": draft.hex()}
    text = sign_manifest(Predicate(**{**said, **claims}), SigningKey.generate())
    (path / MANIFEST).write_bytes(text)
    return digests.bytes_digest(text).hex()


def at_step(number: int, change: Callable[[Tape, dict[str, Any]], None]) -> Change:
    """A change of one step."""
    return lambda step, tape, fields: change(tape, fields) if step == number else None


def node(tape: Tape, index: int, **fields: Any) -> None:
    """Changes an operation."""
    tape.nodes[index] = tape.nodes[index]._replace(**fields)


def where(tape: Tape, operation: str) -> int:
    """Index of the first operation of a name."""
    return next(index for index, each in enumerate(tape.nodes) if each.op == operation)
