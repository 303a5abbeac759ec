"""`weighbridge transcript upload RUN`: hand a transcript, or those of all ranks of a job, to a Verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.core.errors import UsageError


def command(
    run: Annotated[Path, typer.Argument(help="Transcript directory, or that of a job.")],
    verifier: Annotated[str, typer.Option("--verifier", envvar="WEIGHBRIDGE_VERIFIER", help="Verifier's host:port.")],
    credentials: Annotated[Path, typer.Option("--credentials", help="Directory of the Prover's credentials.")],
    patience: Annotated[
        float, typer.Option(help="Seconds to try without getting any further before giving up.", min=0)
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Hand a transcript to a Verifier; after any break, or called again, it goes on where it was."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from prover.keeping.upload import upload
    from weighbridge.attest.identity import Credentials
    from weighbridge.transcript.job_record import is_job, rank_name, read_job

    if not is_job(run) and not (run / "manifest.json").is_file():
        raise UsageError(f"{run} is no transcript: it has no manifest.json")
    ranks = range(read_job(run).ranks) if is_job(run) else ()
    runs, own = [run / rank_name(rank) for rank in ranks] or [run], Credentials.load(credentials)
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    done = []
    console = Console(stderr=True)
    hidden = as_json or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        for each in runs:
            bar = bars.add_task(each.name, total=None)
            done.append(
                upload(
                    each,
                    verifier,
                    own,
                    patience_s=patience,
                    progress=lambda there, total, bar=bar: bars.update(bar, completed=there, total=total),  # type: ignore[misc]
                )
            )
    if as_json:
        print_json({"uploads": [{"id": e.id, "bytes": e.bytes, "files": e.files, "already": e.already} for e in done]})
        return
    for got in done:
        print(
            f"{got.id}: whole and verified, {got.files:,} files, {got.bytes:,} bytes, "
            f"of which {got.already:,} were there already"
        )
