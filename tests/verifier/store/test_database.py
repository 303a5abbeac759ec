"""Where the Verifier keeps its tables: files and URLs, and what cannot be one."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from verifier.registry import Registry
from verifier.store.database import Database, database_url
from verifier.store.tables import Base
from weighbridge.core.errors import UsageError


def test_a_path_is_a_file_and_a_url_is_what_it_says(tmp_path: Path) -> None:
    assert database_url(tmp_path / "x.db").database == str(tmp_path / "x.db")
    assert database_url("postgresql+psycopg://me:secret@host/name").get_backend_name() == "postgresql"
    with pytest.raises(UsageError, match="neither a file nor a URL"):
        database_url("://nothing")


def test_sqlite_by_url_is_set_up_as_by_path(tmp_path: Path) -> None:
    registry = Registry(f"sqlite:///{tmp_path / 'by-url.db'}")
    with registry.database.engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL
    registry.close()


def test_messages_hide_passwords(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        Database("nosuch+driver://me:secret@host/name")
    assert "secret" not in str(caught.value)
    assert "driver" in str(caught.value)


def test_every_constraint_has_a_name() -> None:
    for table in Base.metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table.name
