"""`weighbridge regenerate RUN`: make the rounding logs of a run that was recorded with logs on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json, Run, require_transcript
from weighbridge.cli.replay import parse_steps, require_device
from weighbridge.core.errors import UsageError


def command(
    run: Run,
    steps: Annotated[str | None, typer.Option(help="Only the steps A to B-1, as A:B.")] = None,
    key: Annotated[Path | None, typer.Option(help="Key file of the recording; by default RUN.key.")] = None,
    device: Annotated[str | None, typer.Option(help="Device: cpu, cuda, cuda:1; by default the recording's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the logs; by default RUN.supplements.")] = None,
    as_json: Json = False,
) -> None:
    """Execute steps again where they were recorded, and write their rounding logs, signed, beside the transcript."""
    require_transcript(run)
    if device is not None:
        require_device(device)
    from weighbridge.attest.manifest import load_or_create_key
    from weighbridge.core.bounded import DEFAULT_LIMITS
    from weighbridge.execution.regeneration import regenerate
    from weighbridge.transcript.files import read_manifest
    from weighbridge.transcript.supplements import key_path

    run = run.resolve()
    wanted = None if steps is None else parse_steps(steps, read_manifest(run, DEFAULT_LIMITS).steps)
    place = key_path(run) if key is None else key
    if not place.is_file():
        raise UsageError(f"there is no key {place}; give the key file that signed the recording (--key)")
    done = regenerate(run, load_or_create_key(place), steps=wanted, device=device, out=out)
    if as_json:
        said = {"steps": list(done.steps), "written": done.written, "bytes": done.bytes, "logged": done.logged}
        print_json({**said, "folder": str(done.folder)})
        return
    first, last = done.steps
    print(
        f"steps {first}:{last} came out as recorded; {done.logged:,} roundings logged, {done.bytes:,} bytes, "
        f"{done.written} of {last - first} files new in {done.folder}"
    )
