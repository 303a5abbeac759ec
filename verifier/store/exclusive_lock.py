"""Only one Verifier at a time runs inspections on a database: two would do every unit of work twice."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from verifier.store.database import Database
from weighbridge.core.errors import UsageError

LOCK = 0x77656968
"""Number of PostgreSQL's advisory lock that a Verifier holds."""
LOOK_SECONDS = 5.0
"""How often a Verifier looks whether it still holds that lock."""
_log = logging.getLogger(__name__)


def end_process() -> None:
    """Asks this process to end, as an operator does."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def claim(database: Database, lost: Callable[[], None] = end_process) -> Iterator[None]:
    """Holds a database until the block ends, or the process does, however it does.

    Others may read and write it meanwhile, the command line for instance; they may not claim it.

    Args:
        database: Which one.
        lost: Called from another thread if another Verifier has taken it. Behind a URL a claim is one connection's: it
            ends when the server restarts, or an administrator ends the connection.

    Raises:
        UsageError: Another Verifier has it.
    """
    if database.engine.dialect.name == "sqlite":
        with _file(f"{database.engine.url.database}.lock"):
            yield
        return
    connection = _locked(database)
    if connection is None:
        raise _taken(database.name)
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(database, connection, ended, lost), name="claim", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


def _locked(database: Database) -> Connection | None:
    """Returns a connection that holds the lock; None if another one does.

    Raises:
        SQLAlchemyError: The server does not answer.
    """
    connection = database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        if connection.scalar(text("SELECT pg_try_advisory_lock(:number)"), {"number": LOCK}):
            return connection
    except SQLAlchemyError:
        connection.close()
        raise
    connection.close()
    return None


def _keep(database: Database, held: Connection, ended: threading.Event, lost: Callable[[], None]) -> None:
    """Keeps the lock until the claim ends, on another connection if need be, and gives it back then."""
    while not ended.wait(LOOK_SECONDS):
        with suppress(SQLAlchemyError):
            held.scalar(text("SELECT 1"))
            continue
        _log.warning("the connection that claims the database broke; claiming it again")
        with suppress(SQLAlchemyError):
            held.invalidate()
            held.close()
        again = _locked_again(database, ended)
        if again is None:
            if not ended.is_set():
                _log.error("another Verifier has claimed the database meanwhile; this one ends")
                lost()
            return
        held = again
    with suppress(SQLAlchemyError):
        held.execute(text("SELECT pg_advisory_unlock(:number)"), {"number": LOCK})
        held.close()


def _locked_again(database: Database, ended: threading.Event) -> Connection | None:
    """Returns as `_locked`, once the server answers; None also if the claim ends before."""
    while not ended.is_set():
        try:
            return _locked(database)
        except SQLAlchemyError:  # nobody can claim what does not answer
            ended.wait(LOOK_SECONDS)
    return None


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
