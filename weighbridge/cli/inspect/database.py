"""`weighbridge inspect db ...`: the revision of a Verifier's database, for its operator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._exits import Exit, print_json
from weighbridge.cli._inputs import Json, read_file, require_database

if TYPE_CHECKING:
    from verifier.store.database import Database

app = typer.Typer(help="Look at a Verifier's database, or migrate it to this version.", no_args_is_help=True)

_LARGEST_OBJECT = 4 << 30

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
def upgrade(
    db: _Db,
    witness_key: Annotated[
        Path | None, typer.Option("--witness-key", help="The witness's key; by default beside an SQLite file.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="The cache directory, if a draw of many chips is in progress.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Migrate the database to this version. Stop the Verifier and copy the database first.

    Secrets of draws that are not opened yet are sealed, and others may no longer read an SQLite file.
    """
    from verifier.store import revision
    from verifier.store.database import database_files
    from verifier.store.sealing import DRAW_KEY, WITNESS_KEY, Sealing
    from weighbridge.core import secret_files

    database, files = _existing(db), database_files(db)
    keys = str(witness_key).removesuffix(WITNESS_KEY) if witness_key else str(files[0]) if files else None
    sealed: list[Path] = []

    def kept(digest: bytes) -> bytes:
        assert cache is not None
        sealed.append(cache / "objects" / digest.hex()[:2] / digest.hex())
        return read_file(sealed[-1], "name the Verifier's cache directory", max_bytes=_LARGEST_OBJECT)

    try:
        before, after = revision.upgrade(
            database,
            sealing=None if keys is None else lambda: Sealing.load(Path(keys + DRAW_KEY)),
            kept=None if cache is None else kept,
        )
    finally:
        database.close()
    for each in sealed:
        each.unlink()  # the database has it now, sealed
    private = secret_files.make_private(*files)
    if as_json:
        print_json({"before": before, "after": after, "private": [str(each) for each in private]})
    else:
        print(f"{before or 'empty'} -> {after}")
        for each in private:
            print(f"others may no longer read {each}")
