"""`weighbridge registry event ...`: what parties say about chips: sign, countersign, read and submit statements."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json, read_file
from weighbridge.cli.registry.inputs import Db, Key, open_registry, private_key, ueid_of, ueids_in, write_new
from weighbridge.core.errors import UsageError

app = typer.Typer(help="Statements about chips: sign, countersign, read, submit.", no_args_is_help=True)

PART = 2000
"""Chips in one statement; more would not always fit into an entry of the log."""

_File = Annotated[Path, typer.Argument(help="The statement.")]
_Private = Annotated[Path, typer.Option("--private-key", help="Your key, as PEM: P-384 or Ed25519.")]


@app.command()
def sign(
    kind: Annotated[
        str,
        typer.Argument(
            help="made, tested, shipped, sold, installed, moved, resold, damaged, lost or scrapped.", metavar="EVENT"
        ),
    ],
    registry: Annotated[str, typer.Option("--registry", help="Name of the registry, which it prints.")],
    by: Annotated[str, typer.Option("--by", help="Your name as a party.")],
    private: _Private,
    out: Annotated[Path, typer.Option("--out", help="New file for the statement; of more, each has a number.")],
    ueid: Annotated[list[str] | None, typer.Option("--ueid", help="A chip, in hexadecimal; repeatable.")] = None,
    chips: Annotated[Path | None, typer.Option("--chips", help="File with UEIDs in hexadecimal, one a line.")] = None,
    to: Annotated[str, typer.Option("--to", help="Who gets them, or saw them scrapped; must countersign.")] = "",
    site: Annotated[str, typer.Option("--site", help="Where they are now: of installed and moved chips.")] = "",
    chip_type: Annotated[str, typer.Option("--type", help="Their model: of chips that were made.")] = "",
    time: Annotated[
        str, typer.Option("--time", help="When it happened, as 2026-01-31T12:00:00Z; now by default.")
    ] = "",
) -> None:
    """Say what happened to chips, under your signature."""
    from weighbridge.attest.custody_statements import Kind, Statement
    from weighbridge.attest.custody_statements import sign as signed

    named = sorted({*map(ueid_of, ueid or []), *(ueids_in(chips) if chips else [])})
    if not named:
        raise UsageError("say which chips it happened to; add --ueid or --chips")
    key, at = private_key(private), _seconds(time)
    said: Kind = kind  # type: ignore[assignment]  # `sign` looks at it
    parts = [tuple(named[first : first + PART]) for first in range(0, len(named), PART)]
    made = []
    for part in parts:
        statement = Statement(
            kind=said, registry=registry, by=by, to=to, time_s=at, site=site, chip_type=chip_type, chips=part
        )
        made.append(signed(statement, key))
    for number, data in enumerate(made, 1):
        path = out if len(made) == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
        write_new(path, data)
        print(f"{path}{f' (to be countersigned by {to})' if to else ''}")


@app.command()
def countersign(
    file: _File,
    private: _Private,
    out: Annotated[Path, typer.Option("--out", help="New file for the statement with both signatures.")],
) -> None:
    """Agree to a hand-over to you, or say that you saw chips scrapped. Read it first."""
    from weighbridge.attest.custody_statements import countersign as countersigned

    write_new(out, countersigned(read_file(file), private_key(private)))
    print(out)


@app.command()
def show(file: _File, as_json: Json = False) -> None:
    """Show what a statement says; signatures are verified when it is submitted."""
    from verifier.registry.listings import rfc3339
    from weighbridge.attest.custody_statements import read

    signed = read(read_file(file))
    statement = signed.statement
    said: dict[str, Any] = {
        "event": statement.kind,
        "registry": statement.registry,
        "time": rfc3339(statement.time_s),
        "by": statement.by,
        "to": statement.to,
        "site": statement.site,
        "type": statement.chip_type,
        "signed": signed.key.hex(),
        "countersigned": signed.counter_key.hex() if signed.counter_key else "",
        "chips": [ueid.hex() for ueid in statement.chips],
    }
    if as_json:
        print_json(said)
        return
    for name, value in said.items():
        if value:
            print(f"{name}: {', '.join(value[:5]) if isinstance(value, list) else value}")
    print(f"{len(statement.chips)} chips")


@app.command()
def submit(
    files: Annotated[list[Path], typer.Argument(help="Statements, in the order in which they happened.")],
    db: Db,
    key: Key = None,
) -> None:
    """Log statements; each is verified first, and the first that is not authentic ends it."""
    registry = open_registry(db, key, signing=True)
    for file in files:
        print(f"{file}: entry {registry.submit(read_file(file))}")


def _seconds(text: str) -> int:
    if not text:
        return int(datetime.now(UTC).timestamp())
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError("--time must read like 2026-01-31T12:00:00Z") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
