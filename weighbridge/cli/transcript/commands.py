"""`weighbridge transcript export`, `recover` and `upload`: copy a transcript, close a crashed one, hand one in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import counted, print_json
from weighbridge.cli._inputs import Json, Run, require_transcript
from weighbridge.cli.transcript import upload
from weighbridge.core.errors import UsageError

app = typer.Typer(
    help="Copy a transcript, whole or minimal; close one whose recording crashed; upload one.", no_args_is_help=True
)
app.command("upload")(upload.command)


@app.command("export")
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="New directory for the copy.")],
    minimal: Annotated[bool, typer.Option("--minimal", help="Leave out what a replay recomputes.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a transcript. A minimal copy has the same signed manifest and replays to the same state, from step 0 on."""
    require_transcript(run)
    from weighbridge.transcript.export import export as copy

    done = copy(run, out, minimal=minimal)
    before, after = sum(done.before.values()), sum(done.after.values())
    if as_json:
        print_json(
            {
                "id": done.id, "bytes_before": before, "bytes_after": after,
                "before": done.before, "after": done.after, "left_out": done.left_out,
            }
        )  # fmt: skip
        return
    print(f"{'':16}{'before':>16}{'after':>16}")
    for folder, size in done.before.items():
        print(f"{folder:16}{size:16,}{done.after.get(folder, 0):16,}")
    print(f"{'bytes':16}{before:16,}{after:16,}")
    print(
        f"{counted(len(done.left_out), 'file')} left out"
        + f"; `weighbridge replay {out}` recomputes what they held" * bool(done.left_out)
    )


@app.command("recover")
def recover(
    run: Run,
    key: Annotated[
        Path | None,
        typer.Option(help="Key file that signs; by default RUN.key, else a key for this only."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Close a recording that crashed and will not be resumed: keep its whole steps and sign them as incomplete."""
    from weighbridge.attest.manifest import SigningKey, load_or_create_key
    from weighbridge.transcript.reader import Transcript
    from weighbridge.transcript.reader import recover as close
    from weighbridge.transcript.supplements import key_path

    if not (run / "draft.cbor").is_file():
        raise UsageError(f"{run} holds no recording: it has no draft.cbor")
    if key is None and key_path(run.resolve()).is_file():
        key = key_path(run.resolve())
    identifier = close(run, key=SigningKey.generate() if key is None else load_or_create_key(key))
    steps = Transcript.open(run).steps
    if as_json:
        print_json({"id": identifier, "steps": steps})
    else:
        print(f"{steps} whole steps, signed as incomplete: {identifier}")
