"""Only one Verifier at a time runs inspections on a database: two would do every unit of work twice."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from verifier.store.database import Database
from weighbridge.core.errors import UsageError

LOCK = 0x77656968
"""Number of PostgreSQL's advisory lock that a Verifier holds."""


@contextmanager
def claim(database: Database) -> Iterator[None]:
    """Holds a database until the block ends, or the process does, however it does.

    Others may read and write it meanwhile, the command line for instance; they may not claim it.

    Raises:
        UsageError: Another Verifier has it.
    """
    if database.engine.dialect.name == "sqlite":
        with _file(f"{database.engine.url.database}.lock"):
            yield
        return
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:number)"), {"number": LOCK}):
            raise _taken(database.name)
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:number)"), {"number": LOCK})


@contextmanager
def _file(path: str) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); put the database where the Verifier may") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _taken(path.removesuffix(".lock")) from None
        yield
    finally:
        os.close(descriptor)


def _taken(name: str) -> UsageError:
    return UsageError(f"another Verifier uses the database {name}; stop that one first")
