"""`weighbridge show RUN` (what a transcript contains) and `weighbridge ops` (which operations can be recorded)."""

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
        "snapshots": snapshots,
        "free tensors": free,
        "data": f"{len(data)} records, committed to before training" if data else "not committed to before training",
        "rounded elements": manifest.rounded,
        "logged roundings": manifest.logged,
        "files": len(manifest.files),
        "bytes": sum(size for _, size, _ in manifest.files),
        "head": manifest.head,
    }


def ops(
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind, e.g. rounded.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the table from ATen overload to rule: what a recorded step may contain."""
    from weighbridge.numerics.rules import RULES, Kind

    if kind is not None and kind not in set(Kind):
        raise UsageError(f"there is no kind {kind!r}; choose one of {', '.join(Kind)}")
    chosen = {name: rule for name, rule in sorted(RULES.items()) if kind is None or rule.kind == kind}
    if as_json:
        print_json({name: {"kind": rule.kind.value, "note": rule.note} for name, rule in chosen.items()})
        return
    width = max((len(name) for name in chosen), default=0)
    for name, rule in chosen.items():
        print(f"{name:{width}}  {rule.kind.value:8}  {rule.note}".rstrip())
