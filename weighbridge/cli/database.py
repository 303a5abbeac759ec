"""`weighbridge inspect db ...`: the revision of a Verifier's database, for whoever runs the Verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._exits import Exit, print_json

if TYPE_CHECKING:
    from verifier.database import Database

app = typer.Typer(help="Look at a Verifier's database, or migrate it to this version.", no_args_is_help=True)

_Db = Annotated[
    str, typer.Option("--db", envvar="WEIGHBRIDGE_DB", help="SQLite file, or URL as postgresql+psycopg://...")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _existing(where: str) -> Database:
    """Opens a database; a mistyped path must not become an empty one.

    Raises:
        UsageError: There is no such file, or it is no database's URL.
    """
    from pathlib import Path

    from verifier.database import Database
    from weighbridge.errors import UsageError

    if "://" not in where and not Path(where).is_file():
        raise UsageError(f"there is no database {where}; name the file that the Verifier was started with")
    return Database(where)


@app.command()
def current(db: _Db, as_json: _Json = False) -> int:
    """Print the database's revision and the one that this version needs; exit 1 if they differ."""
    from verifier import schema

    database = _existing(db)
    try:
        found = schema.revision(database)
    finally:
        database.close()
    if as_json:
        print_json({"revision": found, "needed": schema.newest()})
    else:
        print(f"{found or 'empty'} (this version needs {schema.newest()})")
    return Exit.NOTHING_FOUND if found == schema.newest() else Exit.FINDINGS


@app.command()
def upgrade(db: _Db, as_json: _Json = False) -> None:
    """Migrate the database to this version. Stop the Verifier and copy the database first."""
    from verifier import schema

    database = _existing(db)
    try:
        before, after = schema.upgrade(database)
    finally:
        database.close()
    if as_json:
        print_json({"before": before, "after": after})
    else:
        print(f"{before or 'empty'} -> {after}")
