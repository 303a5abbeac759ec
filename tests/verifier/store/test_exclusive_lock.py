"""One Verifier at a time has a database on a PostgreSQL server, also after the server let its connection go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from support import postgres

from verifier.store import exclusive_lock
from verifier.store.database import Database
from weighbridge.core.errors import UsageError

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not postgres.installed():
        pytest.skip("initdb and postgres are not installed")
    with postgres.server() as url:
        yield url


def claims(database: Database) -> int:
    """How many connections hold an advisory lock."""
    with database.session() as session:
        return session.scalar(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")) or 0


def cut(database: Database) -> None:
    """Ends the connections that hold one, as a restart of the server does, and waits until they are gone."""
    with database.session() as session:
        session.execute(text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"))
    while claims(database):
        time.sleep(0.01)


def test_a_claim_that_the_server_forgot_is_made_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusive_lock, "LOOK_SECONDS", 0.05)
    mine, other = Database(url), Database(url)
    with exclusive_lock.claim(mine, lost=lambda: pytest.fail("nobody else wanted it")):
        cut(other)
        while not claims(other):
            time.sleep(0.01)
        with pytest.raises(UsageError, match="another Verifier"), exclusive_lock.claim(other):
            pass
    assert claims(other) == 0


def test_a_verifier_learns_that_another_took_its_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other, told = Database(url), Database(url), threading.Event()
    monkeypatch.setattr(exclusive_lock, "LOOK_SECONDS", 0.5)
    with exclusive_lock.claim(mine, lost=told.set):
        cut(other)
        with exclusive_lock.claim(other):
            assert told.wait(10)
            assert claims(other) == 1
