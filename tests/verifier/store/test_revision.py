"""Revisions of the Verifier's database: new ones are at the newest, old ones are migrated without loss, on demand."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import text
from support import postgres

from verifier.contact.witness import Witness
from verifier.registry import Chip, Registry
from verifier.store import revision
from verifier.store.database import Database
from verifier.store.tables import Base
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.cli.main import run
from weighbridge.core.errors import UsageError

ROOT = Path(__file__).parents[3]
UEID = b"\x01" + b"a" * 16

UNVERSIONED = """
CREATE TABLE chips (ueid BLOB NOT NULL, address VARCHAR NOT NULL, prover_address VARCHAR NOT NULL,
    owner VARCHAR NOT NULL, site VARCHAR NOT NULL, chip_type VARCHAR NOT NULL, registered_at VARCHAR NOT NULL,
    witnessed_size INTEGER NOT NULL, witnessed_last BLOB NOT NULL, PRIMARY KEY (ueid));
CREATE TABLE inspections (id VARCHAR NOT NULL, created_at VARCHAR NOT NULL, seed BLOB NOT NULL, plan VARCHAR NOT NULL,
    stage VARCHAR NOT NULL, report VARCHAR, PRIMARY KEY (id));
CREATE TABLE sampled (inspection VARCHAR NOT NULL, place INTEGER NOT NULL, ueid BLOB NOT NULL,
    PRIMARY KEY (inspection, place), FOREIGN KEY(inspection) REFERENCES inspections (id),
    FOREIGN KEY(ueid) REFERENCES chips (ueid));
CREATE TABLE held_logs (ueid BLOB NOT NULL, size INTEGER NOT NULL, root BLOB NOT NULL, checkpoint BLOB NOT NULL,
    chip_ms INTEGER NOT NULL, read_ms INTEGER NOT NULL, PRIMARY KEY (ueid),
    FOREIGN KEY(ueid) REFERENCES chips (ueid));
CREATE TABLE held_entries (ueid BLOB NOT NULL, place INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (ueid, place),
    FOREIGN KEY(ueid) REFERENCES chips (ueid));
CREATE TABLE log_keys (ueid BLOB NOT NULL, "key" BLOB NOT NULL, PRIMARY KEY (ueid, "key"),
    FOREIGN KEY(ueid) REFERENCES chips (ueid));
CREATE TABLE refused_checkpoints (id INTEGER NOT NULL, ueid BLOB NOT NULL, reason VARCHAR NOT NULL,
    checkpoint BLOB NOT NULL, token BLOB NOT NULL, held BLOB NOT NULL, read_ms INTEGER NOT NULL, PRIMARY KEY (id),
    FOREIGN KEY(ueid) REFERENCES chips (ueid));
"""
"""What the version before revisions made, as `.schema` of sqlite3 shows it."""

TIME = 1_790_000_000_000


def unversioned(path: Path) -> None:
    """A database of that version, with a row in each table."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(UNVERSIONED)
        row = (UEID, "chip:1", "prover:1", "owner", "site", "type", "2026-01-01T00:00:00Z", 2, b"l" * 32)
        connection.execute("INSERT INTO chips VALUES (?,?,?,?,?,?,?,?,?)", row)
        report = json.dumps({"findings": [], "verdict": "clean"})
        done = ("done", "2026-01-02T00:00:00Z", b"s" * 32, '{"samples": 1}', "done", report)
        connection.execute("INSERT INTO inspections VALUES (?,?,?,?,?,?)", done)
        left = ("left", "2026-01-03T00:00:00Z", b"t" * 32, "{}", "replay", None)
        connection.execute("INSERT INTO inspections VALUES (?,?,?,?,?,?)", left)
        connection.executemany("INSERT INTO sampled VALUES (?,?,?)", [("done", 0, UEID), ("left", 0, UEID)])
        connection.execute("INSERT INTO held_logs VALUES (?,?,?,?,?,?)", (UEID, 2, b"r" * 32, b"note", TIME, TIME + 1))
        connection.executemany("INSERT INTO held_entries VALUES (?,?,?)", [(UEID, 0, b"one"), (UEID, 1, b"two")])
        connection.execute("INSERT INTO log_keys VALUES (?,?)", (UEID, b"k" * 32))
        refused = (7, UEID, "chip.log.rolled_back", b"shown", b"token", b"held", TIME + 2)
        connection.execute("INSERT INTO refused_checkpoints VALUES (?,?,?,?,?,?,?)", refused)
    connection.close()


def dump(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the old tables, in their old columns."""
    tables = dict(re.findall(r"CREATE TABLE (\w+) \((.*?)\);", UNVERSIONED, re.DOTALL))
    with sqlite3.connect(path) as connection:
        out = {}
        for name, body in tables.items():
            columns = ", ".join(re.findall(r'("?\w+"?) (?:BLOB|VARCHAR|INTEGER)\b', body))
            out[name] = sorted(connection.execute(f"SELECT {columns} FROM {name}").fetchall())
    connection.close()
    return out


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of either kind."""
    if request.param == "sqlite":
        opened = Database(tmp_path / "empty.db")
        yield opened
        opened.close()
        return
    if not postgres.installed():
        pytest.skip("no PostgreSQL on this machine")
    with postgres.server() as url:
        opened = Database(url)
        yield opened
        opened.close()


def test_a_new_database_is_at_the_newest_revision(database: Database) -> None:
    assert revision.revision(database) is None
    revision.prepare(database)
    assert revision.revision(database) == revision.newest()
    revision.prepare(database)
    assert revision.upgrade(database) == (revision.newest(), revision.newest())


def test_models_and_revisions_agree(database: Database) -> None:
    """If this fails, write a revision: `python -m verifier.store.migrations "what changed"`."""
    assert revision.upgrade(database) == (None, revision.newest())
    with database.engine.connect() as connection:
        command.check(revision.config(connection))


def test_revisions_make_what_new_databases_have(tmp_path: Path) -> None:
    made, migrated = Database(tmp_path / "made.db"), Database(tmp_path / "migrated.db")
    revision.prepare(made)
    revision.upgrade(migrated)
    shapes = []
    for each in (made, migrated):
        with each.engine.connect() as connection:
            tables = [row[0] for row in connection.execute(text("SELECT name FROM sqlite_master WHERE type='table'"))]
            columns = {
                table: sorted(tuple(row)[1:4] for row in connection.execute(text(f"PRAGMA table_info({table})")))
                for table in tables
            }
            shapes.append(columns)
        each.close()
    assert shapes[0] == shapes[1]


def test_tables_are_declared_in_one_place() -> None:
    """A table of another module would be missing from a new database until that module is imported."""
    declaring = {
        path.relative_to(ROOT / "verifier").as_posix()
        for path in (ROOT / "verifier").rglob("*.py")
        if re.search(r"^class \w+\((?:\w+\.)?Base\)", path.read_text(), re.MULTILINE)
    }
    assert declaring == {"store/tables.py"}


def test_a_database_from_before_revisions_is_refused_with_the_command_that_migrates_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.db"
    unversioned(path)
    before = dump(path)
    with pytest.raises(revision.RevisionError, match=re.escape(f"`weighbridge inspect db upgrade --db {path}`")):
        Registry(path)
    assert run(["inspect", "db", "current", "--db", str(path)]) == 1
    assert capsys.readouterr().out.startswith("0001 ")
    assert run(["inspect", "db", "upgrade", "--db", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"0001 -> {revision.newest()}"
    assert run(["inspect", "db", "current", "--db", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"revision": revision.newest(), "needed": revision.newest()}
    assert dump(path) == before
    assert all(before.values())
    registry = Registry(path)
    assert registry.chip(UEID).witnessed_last == b"l" * 32
    assert registry.inspection("done").report == {"findings": [], "verdict": "clean"}
    assert registry.sampled("left") == [UEID]
    with registry.session() as session:
        assert session.execute(text("PRAGMA foreign_key_check")).all() == []
    with pytest.raises(UsageError, match="an unregistered chip"):
        registry.start_inspection("new", seed=b"", plan={}, chips=[UEID[::-1]])
    witness = Witness(registry, CertificateAuthority.create("Manufacturer").certificate)
    assert witness.held(UEID).chip_ms == TIME
    assert witness.entries(UEID, 0, 9) == [b"one", b"two"]
    assert [each.reason for each in witness.refused(UEID)] == ["chip.log.rolled_back"]
    registry.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "odd.db"
    unversioned(path)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE inspection_progress (something INTEGER)")
        names = sorted(connection.execute("SELECT name FROM sqlite_master").fetchall())
    connection.close()
    database = Database(path)
    with pytest.raises(UsageError, match="nothing was changed"):
        revision.upgrade(database)
    database.close()
    with sqlite3.connect(path) as connection:
        assert sorted(connection.execute("SELECT name FROM sqlite_master").fetchall()) == names
    connection.close()


def test_databases_of_newer_versions_and_of_others_are_refused(database: Database) -> None:
    revision.prepare(database)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(revision.RevisionError, match="newer version"):
        revision.prepare(database)
    with pytest.raises(revision.RevisionError, match="newer version"):
        revision.upgrade(database)
    with database.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))
        connection.execute(text("CREATE TABLE recipes (name VARCHAR)"))
    with pytest.raises(UsageError, match="recipes"):
        revision.prepare(database)


def test_no_database_is_made_by_looking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("current", "upgrade"):
        assert run(["inspect", "db", verb, "--db", str(tmp_path / "none.db")]) == 2
        assert "there is no database" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text("no database at all, but long enough to be one " * 100)
    assert run(["inspect", "db", "current", "--db", str(tmp_path / "text.db")]) == 2
    assert "is no database" in capsys.readouterr().err


def test_registry_and_witness_work_on_either(database: Database) -> None:
    """On PostgreSQL times in milliseconds need 64 bits, and row numbers come from a sequence."""
    url = database.engine.url.render_as_string(hide_password=False)
    registry = Registry(url)
    registry.register(Chip(ueid=UEID, address="chip:1", owner="ö", site="s", chip_type="t"))
    registry.start_inspection("one", seed=b"s" * 32, plan={"x": 1}, chips=[UEID])
    registry.set_stage("one", "done", {"findings": []})
    assert registry.inspection("one").report == {"findings": []}
    with registry.session.begin() as session:
        session.execute(
            text("INSERT INTO held_logs VALUES (:ueid, 2, :root, :note, :chip, :here)"),
            {"ueid": UEID, "root": b"r" * 32, "note": b"n", "chip": TIME, "here": TIME},
        )
    assert Witness(registry, CertificateAuthority.create("Manufacturer").certificate).held(UEID).read_ms == TIME
    registry.close()
