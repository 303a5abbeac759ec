"""The Verifier's database: one engine for the tables of all its modules, in an SQLite file or behind a URL.

An SQLite file is its owner's alone. It is written ahead and synchronously, so that what was committed survives a loss
of power, and any number of processes may read while one writes. PostgreSQL is meant for a Verifier that several
machines share.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from weighbridge.core.errors import UsageError

_BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite keeps of a database: it gives each of these files the permissions of the first."""

_PRAGMAS = ("journal_mode=WAL", "foreign_keys=ON", "synchronous=FULL", "busy_timeout=10000")
_READING_PRAGMAS = ("query_only=ON", "busy_timeout=10000")


def database_url(where: str | Path) -> URL:
    """Returns the URL of a database.

    Args:
        where: Path of an SQLite file, or any URL of SQLAlchemy's, such as `postgresql+psycopg://user@host/name`.

    Raises:
        UsageError: It looks like a URL and is none.
    """
    if isinstance(where, Path) or "://" not in where:
        return URL.create("sqlite", database=str(Path(where).resolve()))
    try:
        return make_url(where)
    except ArgumentError:
        raise UsageError(
            "the database is neither a file nor a URL such as postgresql+psycopg://user@host/name; correct it"
        ) from None


def database_files(where: str | Path) -> list[Path]:
    """Returns the files that a database may consist of; none for one behind another URL than SQLite's.

    Raises:
        UsageError: It looks like a URL and is none.
    """
    url = database_url(where)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return []
    return [Path(f"{url.database}{ending}") for ending in _BESIDE]


class Database:
    """An open database; safe to use from several threads.

    Attributes:
        name: What to call it in messages; without a password.
        engine: SQLAlchemy's engine.
        session: Makes sessions on it.
    """

    def __init__(self, where: str | Path, *, read_only: bool = False) -> None:
        """Prepares connections; the first is made when something is asked of it.

        Args:
            where: As `database_url` takes it.
            read_only: Whether the database itself is to refuse every change, and to make no file that is missing.

        Raises:
            UsageError: It is no URL, or nothing here can speak to such a database.
        """
        url = database_url(where)
        self.name = str(where) if "://" not in str(where) else url.render_as_string()
        sqlite_file = url.get_backend_name() == "sqlite"
        try:
            self.engine: Engine = create_engine(_read_only(url) if read_only and sqlite_file else url)
        except (SQLAlchemyError, ImportError) as error:
            raise UsageError(
                f"{self.name} cannot be used as a database ({error}); install its driver, or name an SQLite file"
            ) from None
        if sqlite_file and read_only:
            event.listen(self.engine, "connect", _on_reading)
        elif sqlite_file:
            event.listen(self.engine, "do_connect", partial(_make_private, database_files(where)[:1]))
            event.listen(self.engine, "connect", _on_connect)
        elif read_only:
            event.listen(self.engine, "do_connect", _reading_session)
        self.session: sessionmaker[Session] = sessionmaker(self.engine)

    def close(self) -> None:
        """Closes all connections."""
        self.engine.dispose()


def put(session: Session, row: type[DeclarativeBase], *values: Mapping[str, Any]) -> None:
    """Writes rows of one table, each in the place of one with the same primary key if there is one.

    As `Session.merge`, but it asks for nothing first where the database has a statement for this.

    Args:
        session: Whose transaction it belongs to.
        row: The table's class.
        *values: Every column of each row, by name.
    """
    if not values:
        return
    insert = _INSERTS.get(session.get_bind().dialect.name)
    if insert is None:
        for each in values:
            session.merge(row(**each))
        return
    session.execute(_putting(insert, row), [dict(each) for each in values])


_INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


@lru_cache(maxsize=128)
def _putting(insert: Any, row: type[DeclarativeBase]) -> Any:
    """Returns the statement of `put` for one table: making it takes as long as executing it."""
    columns = row.__table__.columns
    keys = [column.name for column in columns if column.primary_key]
    statement = insert(row.__table__)
    others = {column.name: statement.excluded[column.name] for column in columns if not column.primary_key}
    if others:
        return statement.on_conflict_do_update(index_elements=keys, set_=others)
    return statement.on_conflict_do_nothing(index_elements=keys)


def _make_private(files: Sequence[Path], *_: Any) -> None:
    """Makes a new database before SQLite does, which would let others read it; if that fails, SQLite says why."""
    for path in files:
        with suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _on_connect(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    _set(connection, _PRAGMAS)


def _on_reading(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    _set(connection, _READING_PRAGMAS)


def _set(connection: DBAPIConnection, pragmas: Sequence[str]) -> None:
    cursor = connection.cursor()
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _read_only(url: URL) -> URL:
    """Returns the URL under which SQLite opens a file for reading only."""
    return url.set(database=f"file:{quote(url.database or '')}", query={**url.query, "mode": "ro", "uri": "true"})


def _reading_session(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
    """Asks PostgreSQL to refuse changes in every transaction of a connection."""
    options["options"] = f"{options.get('options', '')} -c default_transaction_read_only=on".strip()
