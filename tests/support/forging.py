"""Transcripts made to order by a dishonest Prover: changed and signed again, so that every digest is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from weighbridge.manifest import SigningKey
from weighbridge.state import Checkpoint
from weighbridge.steps import StepRecord
from weighbridge.tape import Tape
from weighbridge.transcript import Transcript
from weighbridge.writer import TranscriptWriter

Change = Callable[[int, Tape, dict[str, Any]], None]
"""Does what it likes with (step, tape, fields of the record, the rounding log, batch and free tensors among them)."""


def forge(
    source: Path,
    target: Path,
    change: Change,
    checkpoint: Callable[[Checkpoint], Checkpoint] = lambda original: original,
    **drafted: Any,
) -> Path:
    """Writes a transcript again after `change` had every step, with other entries of the draft if wanted."""
    old = Transcript.open(source)
    draft = {k: v for k, v in old.draft.items() if k not in ("format", "data")} | drafted
    writer = TranscriptWriter(target, draft=draft, key=SigningKey.generate())
    for record in old.records():
        if record.step in old.checkpoint_steps:
            writer.checkpoint(checkpoint(old.checkpoint(record.step)))
        tape = Tape.decode(old.tape(record.tape))
        fields = {name: getattr(record, name) for name in StepRecord.__slots__ if name not in ("step", "batch")}
        fields.pop("record_digests")
        fields.update(
            rounding=old.rounding(record.step), batch=old.batch(record.step), free=old.free(record.step), records=None
        )
        change(record.step, tape, fields)
        writer.append_step(**{**fields, "tape": writer.put_tape(tape.encode())})
    writer.close()
    return target


def at_step(number: int, change: Callable[[Tape, dict[str, Any]], None]) -> Change:
    """A change of one step."""
    return lambda step, tape, fields: change(tape, fields) if step == number else None


def node(tape: Tape, index: int, **fields: Any) -> None:
    """Changes an operation."""
    tape.nodes[index] = tape.nodes[index]._replace(**fields)


def where(tape: Tape, operation: str) -> int:
    """Index of the first operation of a name."""
    return next(index for index, each in enumerate(tape.nodes) if each.op == operation)
