"""`weighbridge show RUN`: what a transcript contains."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import one_line, print_json
from weighbridge.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.transcript import Transcript


def show(
    run: Annotated[Path, typer.Argument(help="Transcript directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Verify a transcript's files and say what is in it, without executing anything."""
    if not (run / "manifest.json").is_file():
        raise UsageError(f"{run} is no transcript: it has no manifest.json")
    from weighbridge.transcript import Transcript

    facts = describe(Transcript.open(run))
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {entry}" for key, entry in value.items())
        elif isinstance(value, list):
            value = ", ".join(str(entry) for entry in value)
        print(f"{name:18}{one_line(str(value))}")


def describe(transcript: Transcript) -> dict[str, Any]:
    """Returns the facts that `show` prints, as JSON-compatible values."""
    manifest = transcript.manifest
    kinds: Counter[str] = Counter()
    programs: Counter[bytes] = Counter()
    snapshots = free = 0
    for record in transcript.records():
        kinds[record.kind] += 1
        programs[record.tape] += 1
        snapshots += len(record.snapshots)
        free += len(record.free)
    data = transcript.data
    return {
        "name": manifest.name,
        "id": transcript.digest,
        "signed by": manifest.keyid,
        "created": manifest.created,
        "complete": manifest.complete,
        "steps": dict(kinds),
        "tapes": {digest.hex()[:16]: count for digest, count in programs.most_common()},
        "checkpoints": list(manifest.checkpoints),
        "left out": [step for step in manifest.checkpoints if step not in transcript.checkpoint_steps],
        "resumed": [resumption.step for resumption in transcript.resumptions],
        "snapshots": snapshots,
        "free tensors": free,
        "data": f"{len(data)} records, committed to before training" if data else "not committed to before training",
        "rounded elements": manifest.rounded,
        "logged roundings": manifest.logged,
        "files": len(manifest.files),
        "bytes": sum(size for _, size, _ in manifest.files),
        "head": manifest.head,
    }
