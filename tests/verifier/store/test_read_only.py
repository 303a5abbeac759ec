"""A database and a cache that another process writes, opened for reading: nothing is changed, nothing is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import InternalError, OperationalError
from support import postgres

from verifier.registry import Chip, Registry
from verifier.store import revision
from verifier.store.cache import Cache
from verifier.store.database import Database
from weighbridge.core.errors import UsageError


def test_what_a_writer_adds_is_read_and_nothing_can_be_changed(tmp_path: Path) -> None:
    writing = Registry(tmp_path / "a name with ? and #.sqlite")
    reading = Registry(tmp_path / "a name with ? and #.sqlite", read_only=True)
    chip = Chip(ueid=b"\x01" + bytes(16), address="127.0.0.1:1", name="gpu-0")
    writing.register(chip)
    assert [each.name for each in reading.chips()] == ["gpu-0"]
    with pytest.raises(OperationalError, match="readonly"):
        reading.register(chip)
    for registry in (reading, writing):
        registry.close()


def test_an_sqlite_url_is_opened_for_reading_too(tmp_path: Path) -> None:
    Registry(tmp_path / "one.sqlite").close()
    database = Database(f"sqlite:///{tmp_path / 'one.sqlite'}", read_only=True)
    with pytest.raises(OperationalError, match="readonly"), database.session.begin() as session:
        session.execute(text("DELETE FROM chips"))
    database.close()


def test_none_is_made_and_none_migrated(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Registry(tmp_path / "mistyped", read_only=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="is empty"):
        Registry(tmp_path / "empty", read_only=True)
    database = Database(tmp_path / "old")
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE chips (ueid BLOB)")
    database.close()
    with pytest.raises(revision.RevisionError):
        Registry(tmp_path / "old", read_only=True)


def test_what_a_verifier_is_fetching_stays_in_its_cache(tmp_path: Path) -> None:
    for name in ("partial-1", "job-1"):
        (tmp_path / name).mkdir()
    Cache(tmp_path, read_only=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["job-1", "partial-1"]
    Cache(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.postgres
def test_postgresql_refuses_changes_too() -> None:
    if not postgres.installed():
        pytest.skip("initdb and postgres are not installed")
    with postgres.server() as url:
        writing = Registry(url)
        reading = Registry(url, read_only=True)
        chip = Chip(ueid=b"\x01" + bytes(16), address="127.0.0.1:1", name="gpu-0")
        writing.register(chip)
        assert [each.name for each in reading.chips()] == ["gpu-0"]
        with pytest.raises(InternalError, match="read-only"):
            reading.register(chip)
        for registry in (reading, writing):
            registry.close()
