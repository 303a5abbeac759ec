"""The revision of the Verifier's database: new ones are made at the newest, older ones are migrated on demand.

The revisions lie in `verifier/store/migrations/versions/` and are Alembic's. Nothing is migrated behind an operator's
back: a database of another revision is refused with the command that migrates it. After changing or adding a table in
`verifier.store.tables`, write a revision with `python -m verifier.store.migrations "what changed"` and read it before
it is committed; a test compares models and revisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import SQLAlchemyError

from verifier.store.database import Database
from verifier.store.sealing import Sealing
from verifier.store.tables import Base
from weighbridge.core.errors import UsageError

T = TypeVar("T")

UNVERSIONED = "0001"
"""The revision of databases from before there were revisions."""

LOCK = 0x77656967
"""Number of PostgreSQL's advisory lock under which tables are changed."""

_VERSIONS = "alembic_version"
_OLDEST_TABLE = "chips"


class RevisionError(UsageError):
    """The database is of another revision than this software."""

    code = "verifier.revision"


def config(connection: Connection | None = None) -> Config:
    """Returns Alembic's configuration, for the database behind a connection if there is one."""
    out = Config()
    out.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    out.set_main_option("path_separator", "os")
    out.attributes["connection"] = connection
    return out


@lru_cache(maxsize=1)
def newest() -> str:
    """Returns the revision that this software needs."""
    head = ScriptDirectory.from_config(config()).get_current_head()
    assert head is not None
    return head


def current(connection: Connection) -> str | None:
    """Returns a database's revision; None if it is empty.

    Raises:
        UsageError: It holds something else.
    """
    names = set(inspect(connection).get_table_names())
    if _VERSIONS in names:
        return MigrationContext.configure(connection).get_current_revision()
    if _OLDEST_TABLE in names:
        return UNVERSIONED
    if names:
        raise UsageError(f"the database holds other tables ({', '.join(sorted(names))[:200]}); name another one")
    return None


def revision(database: Database) -> str | None:
    """Returns a database's revision; None if it is empty.

    Raises:
        UsageError: It cannot be opened, or holds something else.
    """
    try:
        with database.engine.connect() as connection:
            return current(connection)
    except SQLAlchemyError as error:
        raise UsageError(f"{database.name} is no database ({error.__cause__ or error}); name the right one") from None


def prepare(database: Database) -> None:
    """Makes a new database, or checks that one is of the newest revision.

    Raises:
        RevisionError: It is of another one; the message names the command that migrates it.
        UsageError: It cannot be opened, or holds something else.
    """
    wanted = Base.metadata
    try:
        with database.engine.connect() as connection:
            found = current(connection)
            missing = set(wanted.tables) - set(inspect(connection).get_table_names())
        if found not in (None, newest()):
            raise _other_revision(database.name, str(found))
        if missing:
            with database.engine.begin() as connection:
                _lock(connection)
                if current(connection) is None:
                    MigrationContext.configure(connection).stamp(ScriptDirectory.from_config(config()), newest())
                wanted.create_all(connection)
    except SQLAlchemyError as error:
        raise UsageError(
            f"{database.name} cannot be used as a registry: {error.__cause__ or error}; name another file"
        ) from None


def require_newest(database: Database) -> None:
    """Checks that a database is of the newest revision, and changes nothing.

    Raises:
        RevisionError: It is of another one; the message names the command that migrates it.
        UsageError: It is empty, cannot be opened, or holds something else.
    """
    found = revision(database)
    if found is None:
        raise UsageError(f"{database.name} is empty; name the database that the Verifier was started with")
    if found != newest():
        raise _other_revision(database.name, found)


def _lock(connection: Connection) -> None:
    """Keeps others from changing tables until the transaction ends; on SQLite it makes changes of tables part of it."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")


def _other_revision(name: str, found: str) -> RevisionError:
    known = {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}
    if found in known:
        advice = f"stop the Verifier, copy the database, and run `weighbridge inspect db upgrade --db {name}`"
    else:
        advice = "a newer version of Weighbridge wrote it; use that version"
    return RevisionError(
        f"{name} is of revision {found} and this version needs {newest()}; {advice}", found=found, needed=newest()
    )


def upgrade(
    database: Database, *, sealing: Callable[[], Sealing] | None = None, kept: Callable[[bytes], bytes] | None = None
) -> tuple[str | None, str]:
    """Migrates a database to the newest revision, without losing anything; an empty one is made.

    Args:
        database: Which one.
        sealing: Returns the key of draws, if there is a secret to seal; without it such a database is refused.
        kept: Returns an object of the cache directory by its digest; without it a database that needs one is refused.

    Returns:
        The revision before and after.

    Raises:
        UsageError: It cannot be opened or migrated, or is of a newer revision; it is as it was then.
    """
    try:
        with database.engine.connect() as connection, _rewritten(connection), connection.begin():
            _lock(connection)
            before = current(connection)
            scripts = ScriptDirectory.from_config(config())
            if before is not None and before not in {script.revision for script in scripts.walk_revisions()}:
                raise _other_revision(database.name, before)
            if before == UNVERSIONED:
                MigrationContext.configure(connection).stamp(scripts, UNVERSIONED)
            handed = config(connection)
            handed.attributes["seal"] = lambda secret: _needed(sealing, "--witness-key")().seal(secret)
            handed.attributes["kept"] = lambda digest: _needed(kept, "--cache")(digest)
            command.upgrade(handed, "head")
    except SQLAlchemyError as error:
        raise UsageError(
            f"{database.name} could not be migrated: {error.__cause__ or error}; nothing was changed"
        ) from None
    return before, newest()


def _needed(given: Callable[..., T] | None, option: str) -> Callable[..., T]:
    if given is None:
        raise UsageError(f"the database has the secret of a draw that is not opened yet; add {option} to seal it")
    return given


@contextmanager
def _rewritten(connection: Connection) -> Iterator[None]:
    """Lets SQLite drop a table that others refer to, as it changes tables by writing them anew, and leave no secret.

    What is overwritten becomes zeros, in the file and in the log of what is written ahead.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
    connection.exec_driver_sql("PRAGMA secure_delete=ON")
    connection.commit()
    try:
        yield
    finally:
        connection.exec_driver_sql("PRAGMA foreign_keys=ON")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.commit()
