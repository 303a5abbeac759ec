"""`weighbridge show RUN`: what a transcript contains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weighbridge.cli._exits import one_line, print_json
from weighbridge.cli._inputs import Json, Run, require_transcript

if TYPE_CHECKING:
    from weighbridge.execution.transcript_facts import OpenedTranscript


def show(
    run: Run,
    as_json: Json = False,
) -> None:
    """Verify a transcript's files and say what is in it, without executing anything."""
    require_transcript(run)
    from weighbridge.execution import transcript_facts as confined

    facts = describe(confined.open_confined(run, opening=confined.OPENING, limits=confined.OPENING))
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {entry}" for key, entry in value.items())
        elif isinstance(value, list):
            value = ", ".join(str(entry) for entry in value)
        print(f"{name:20}{one_line(str(value))}")


def describe(transcript: OpenedTranscript) -> dict[str, Any]:
    """Returns the facts that `show` prints, as JSON-compatible values."""
    manifest = transcript.manifest
    summary, data = transcript.summary(), transcript.data
    return {
        "name": manifest.name,
        "id": transcript.digest,
        "signed by": manifest.keyid,
        "created": manifest.created,
        "complete": manifest.complete,
        "steps": summary.kinds,
        "tapes": {digest.hex()[:16]: count for digest, count in summary.tapes.items()},
        "first in step": {digest.hex()[:16]: step for digest, step in summary.first.items()},
        "programs": "fixed in the draft, before the first step" if summary.fixed else "not fixed in the draft",
        "checkpoints": list(manifest.checkpoints),
        "left out": [step for step in manifest.checkpoints if step not in transcript.checkpoint_steps],
        "resumed": [resumption.step for resumption in transcript.resumptions],
        "snapshots": len(transcript.recorded()),
        "undeclared tensors": summary.undeclared,
        "data": f"{data.count} records, committed to before training" if data else "not committed to before training",
        "rounded elements": manifest.rounded,
        "logged roundings": manifest.logged,
        "files": len(manifest.files),
        "bytes": sum(size for _, size, _ in manifest.files),
        "head": manifest.head,
    }
