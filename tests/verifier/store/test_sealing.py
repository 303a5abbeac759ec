"""Secrets of draws are sealed in the database: by a real Verifier, in a migration, and under one key only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.interrupted_draw import committed, interrupted, make_site, start, units

from verifier import service
from verifier.draw.log_entries import Commitment, parse_as
from verifier.model.reference_values import FirmwarePolicy
from verifier.registry import Registry
from verifier.store import revision
from verifier.store.database import Database
from verifier.store.sealing import Sealing
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.cli.main import run
from weighbridge.core.digests import bytes_digest, record_digest
from weighbridge.core.errors import UsageError

PUBLIC = {"address", "db.witness-key.pub", "db.report-key.pub", "db.log-key.pub"}
"""What a Verifier writes for others."""


@given(secret=st.binary(max_size=100), other=st.binary(min_size=32, max_size=32))
def test_only_the_key_that_sealed_opens(secret: bytes, other: bytes) -> None:
    """Law: open(seal(x)) == x, and any other key or any altered byte is refused."""
    sealing = Sealing(bytes(range(32)))
    sealed = sealing.seal(secret)
    assert sealing.open(sealed) == secret
    assert sealing.seal(secret) != sealed
    for key, data in ((other, sealed), (bytes(range(32)), sealed[:-1] + bytes([sealed[-1] ^ 1])), (other, b"")):
        with pytest.raises(UsageError, match="put back the key file"):
            Sealing(key).open(data)


def test_the_key_file(tmp_path: Path) -> None:
    first = Sealing.load(tmp_path / "draw-key")
    assert Sealing.load(tmp_path / "draw-key").open(first.seal(b"x")) == b"x"
    assert (tmp_path / "draw-key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "draw-key").write_bytes(b"short")
    with pytest.raises(UsageError, match="holds no key of draws"):
        Sealing.load(tmp_path / "draw-key")
    with pytest.raises(UsageError, match="name another file"):
        Sealing.load(tmp_path / "missing" / "draw-key")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module", name="interrupted")
def interrupted_draw(site: Path) -> Iterator[Path]:
    with interrupted(site) as home:
        yield home


def test_a_copy_of_the_database_does_not_give_the_secret_of_a_draw_away(interrupted: Path) -> None:
    """The attack: a reader of database, write-ahead log or cache knows the seed's secret before the round."""
    unit = committed(interrupted / "db")
    secret = Sealing.load(interrupted / "db.draw-key").open(unit["sealed"])
    committed_to = parse_as(unit["entry"], Commitment).secret
    assert record_digest("draw-secret/1", secret) == committed_to  # it is the secret
    files = [path for path in interrupted.rglob("*") if path.is_file()]
    assert {"db", "db-wal", "db.draw-key"} <= {path.name for path in files}
    assert [path.name for path in files if secret in path.read_bytes()] == []
    stored = units(interrupted / "db").values()
    assert any(committed_to in each for each in stored)
    assert not any(secret in each for each in stored)


def test_no_other_user_may_read_what_a_verifier_writes(interrupted: Path) -> None:
    readable = {path.name for path in interrupted.rglob("*") if path.stat().st_mode & 0o077}
    assert readable <= PUBLIC
    assert readable
    assert (interrupted / "db-wal").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "name", ["db", "db-wal", "db.draw-key", "db.witness-key", "db.log-key", "db.beacon-key", "key"]
)
def test_a_verifier_does_not_start_with_a_secret_that_others_may_read(
    interrupted: Path, site: Path, tmp_path: Path, name: str
) -> None:
    for path in interrupted.iterdir():
        if path.name.startswith("db"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
            (tmp_path / path.name).chmod(0o600)
    (tmp_path / "key").mkdir()
    for path in (site / "verifier").iterdir():
        (tmp_path / "key" / path.name).write_bytes(path.read_bytes())
        (tmp_path / "key" / path.name).chmod(0o600)
    wrong = tmp_path / "key" / "key.pem" if name == "key" else tmp_path / name
    wrong.chmod(0o640)
    with pytest.raises(UsageError) as caught, serving(site, tmp_path):
        pass
    assert f"`chmod 600 {wrong}`" in caught.value.message


def serving(site: Path, home: Path) -> Any:
    maker = CertificateAuthority.load(site / "maker").certificate
    return service.serve(
        db=str(home / "db"), cache=home / "cache", credentials=Credentials.load(home / "key"), manufacturer=maker,
        firmware=FirmwarePolicy.of([site / "firmware.img"], maker),
    )  # fmt: skip


def test_the_process_says_which_file_and_ends_with_2(interrupted: Path, site: Path) -> None:
    (interrupted / "db").chmod(0o644)
    try:
        process = start(site)
        _, said = process.communicate(timeout=300)
    finally:
        (interrupted / "db").chmod(0o600)
    assert process.returncode == 2
    assert f"type `chmod 600 {interrupted / 'db'}`" in said


SECRET = os.urandom(32)


def draw_of_a_former_version(path: Path, cache: Path, *, large: bool = False, ended: str = "") -> None:
    """A database of revision 0005 with the unit of a draw whose secret lies open."""
    Registry(path).close()
    population = os.urandom(40_000) if large else b"population"
    unit = zstandard.ZstdCompressor().compress(
        cbor2.dumps({"entry": b"entry", "secret": SECRET, "population": population, "beacon": {}}, canonical=True)
    )
    digest = b""
    if large:
        digest = bytes_digest(unit)
        place = cache / "objects" / digest.hex()[:2] / digest.hex()
        place.parent.mkdir(parents=True)
        place.write_bytes(unit)
        unit = b""
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE anchors")
        connection.execute("DROP TABLE contacts")
        connection.execute("DROP TABLE regenerations")
        connection.execute("DROP TABLE supplement_trees")
        connection.execute("DROP TABLE supplements")
        connection.execute("ALTER TABLE inspections DROP COLUMN summary")
        connection.execute("ALTER TABLE chips DROP COLUMN name")
        connection.execute("UPDATE alembic_version SET version_num = '0005'")
        connection.execute("INSERT INTO inspections VALUES ('i', '2026-01-01T00:00:00Z', x'', '{}', 'draw', NULL)")
        rows = [("commitment-0", unit, digest), *([(f"{ended}-0", b"", b"")] if ended else [])]
        connection.executemany("INSERT INTO inspection_units VALUES ('i', 'draw', ?, ?, ?)", rows)
    connection.close()
    path.chmod(0o644)


@pytest.mark.parametrize("large", [False, True])
def test_a_migration_seals_what_is_not_opened_yet(
    tmp_path: Path, large: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    db, cache = tmp_path / "db", tmp_path / "cache"
    draw_of_a_former_version(db, cache, large=large)
    assert any(SECRET in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert run(["inspect", "db", "upgrade", "--db", str(db), *(["--cache", str(cache)] if large else [])]) == 0
    assert f"others may no longer read {db}" in capsys.readouterr().out
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} <= {"db", "db-wal", "db-shm", "db.draw-key"}
    assert [path.name for path in files if SECRET in path.read_bytes()] == []
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []
    unit = committed(db)
    assert Sealing.load(tmp_path / "db.draw-key").open(unit.pop("sealed")) == SECRET
    assert sorted(unit) == ["beacon", "entry", "population"]


@pytest.mark.parametrize("ended", ["opening", "abandoned"])
def test_a_migration_leaves_what_is_in_the_log(tmp_path: Path, ended: str) -> None:
    draw_of_a_former_version(tmp_path / "db", tmp_path / "cache", ended=ended)
    assert run(["inspect", "db", "upgrade", "--db", str(tmp_path / "db")]) == 0
    assert committed(tmp_path / "db")["secret"] == SECRET
    assert not (tmp_path / "db.draw-key").exists()


@pytest.mark.parametrize(("large", "option"), [(True, "--cache"), (False, "--witness-key")])
def test_a_migration_that_lacks_what_it_needs_changes_nothing(tmp_path: Path, large: bool, option: str) -> None:
    draw_of_a_former_version(tmp_path / "db", tmp_path / "cache", large=large)
    database = Database(tmp_path / "db")
    with pytest.raises(UsageError, match=f"add {option} to seal it"):
        revision.upgrade(database)
    assert revision.revision(database) == "0005"
    database.close()
