"""`weighbridge inspect db ...`: the revision of a Verifier's database, for its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._exits import Exit, print_json
from weighbridge.cli._inputs import Json, require_database

if TYPE_CHECKING:
    from verifier.store.database import Database

app = typer.Typer(help="Look at a Verifier's database, or migrate it to this version.", no_args_is_help=True)

_Db = Annotated[
    str, typer.Option("--db", envvar="WEIGHBRIDGE_DB", help="SQLite file, or URL as postgresql+psycopg://...")
]


def _existing(where: str) -> Database:
    """Opens a database; a mistyped path must not become an empty one.

    Raises:
        UsageError: There is no such file, or it is no database's URL.
    """
    from verifier.store.database import Database

    require_database(where)
    return Database(where)


@app.command()
def current(db: _Db, as_json: Json = False) -> int:
    """Print the database's revision and the one that this version needs; exit 1 if they differ."""
    from verifier.store import revision

    database = _existing(db)
    try:
        found = revision.revision(database)
    finally:
        database.close()
    if as_json:
        print_json({"revision": found, "needed": revision.newest()})
    else:
        print(f"{found or 'empty'} (this version needs {revision.newest()})")
    return Exit.NOTHING_FOUND if found == revision.newest() else Exit.FINDINGS


@app.command()
def upgrade(db: _Db, as_json: Json = False) -> None:
    """Migrate the database to this version. Stop the Verifier and copy the database first."""
    from verifier.store import revision

    database = _existing(db)
    try:
        before, after = revision.upgrade(database)
    finally:
        database.close()
    if as_json:
        print_json({"before": before, "after": after})
    else:
        print(f"{before or 'empty'} -> {after}")
