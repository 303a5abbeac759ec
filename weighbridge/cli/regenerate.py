"""`weighbridge regenerate RUN`: make the rounding logs of a run that was recorded with logs on demand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json, Run, require_transcript
from weighbridge.cli.replay import parse_steps, require_device
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.attest.manifest import SigningKey
    from weighbridge.execution.regeneration import Regenerated


def command(
    run: Run,
    steps: Annotated[str | None, typer.Option(help="Only the steps A to B-1, as A:B.")] = None,
    key: Annotated[Path | None, typer.Option(help="Key file of the recording; by default RUN.key.")] = None,
    device: Annotated[str | None, typer.Option(help="Device: cpu, cuda, cuda:1; by default the recording's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the logs; by default RUN.supplements.")] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="Sign the root of each step's tree too, which binds you in a dispute.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Execute steps again where they were recorded, and write their rounding logs, signed, beside the transcript.

    Of a job on several ranks, all ranks are repeated together.
    """
    if device is not None:
        require_device(device)
    from weighbridge.transcript.job_record import is_job

    run = run.resolve()
    if is_job(run):
        if tree:
            raise UsageError("steps of jobs on several ranks are not disputed, and have no tree; leave out --tree")
        made = _of_job(run, steps, key, device, out)
    else:
        require_transcript(run)
        made = [_of_run(run, steps, key, device, out, tree)]
    logged, size = (sum(getattr(each, name) for each in made) for name in ("logged", "bytes"))
    written, (first, last) = sum(each.written for each in made), made[0].steps
    if as_json:
        said = {"steps": [first, last], "written": written, "bytes": size, "logged": logged}
        print_json({**said, "folder": str(made[0].folder), "folders": [str(each.folder) for each in made]})
        return
    where = made[0].folder if len(made) == 1 else f"{made[0].folder} and those of {len(made) - 1} other ranks"
    print(
        f"steps {first}:{last} came out as recorded; {logged:,} roundings logged, {size:,} bytes, "
        f"{written} of {len(made) * (last - first)} files new in {where}"
    )


def _of_run(
    run: Path, steps: str | None, key: Path | None, device: str | None, out: Path | None, tree: bool
) -> Regenerated:  # fmt: skip
    from weighbridge.execution.regeneration import regenerate
    from weighbridge.transcript.supplements import key_path

    return regenerate(
        run, _key(key or key_path(run)), steps=_steps(run, steps), device=device, out=out, tree=tree
    )  # fmt: skip


def _of_job(
    job: Path, steps: str | None, key: Path | None, device: str | None, out: Path | None
) -> list[Regenerated]:  # fmt: skip
    from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
    from weighbridge.transcript.supplements import folder_of, key_path

    ranks = ranks_of(job)
    for each in ranks:
        require_transcript(each)
    keys = [_key(key or key_path(each)) for each in ranks]
    outs = None if out is None else [out / folder_of(each).name for each in ranks]
    return regenerate_job(ranks, keys, steps=_steps(ranks[0], steps), device=device, outs=outs)


def _steps(run: Path, text: str | None) -> tuple[int, int] | None:
    from weighbridge.core.bounded import DEFAULT_LIMITS
    from weighbridge.transcript.files import read_manifest

    return None if text is None else parse_steps(text, read_manifest(run, DEFAULT_LIMITS).steps)


def _key(place: Path) -> SigningKey:
    from weighbridge.attest.manifest import load_or_create_key

    if not place.is_file():
        raise UsageError(f"there is no key {place}; give the key file that signed the recording (--key)")
    return load_or_create_key(place)
