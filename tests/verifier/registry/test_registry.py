"""The registry: what it stores survives, and what it refuses."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from verifier.registry import Chip, Registry
from verifier.registry.entries import decode
from weighbridge.core.errors import NotFoundError, UsageError

A, B = b"\x01" + bytes(16), b"\x01" + bytes(15) + b"\x01"


def test_chips_survive_reopening(tmp_path: Path) -> None:
    path = tmp_path / "registry ?#%20.db"
    registry = Registry(path)
    chip = Chip(ueid=B, address="localhost:4000", prover_address="[::1]:5000", owner="Ö", site="Kiel", chip_type="sim")
    registry.register(chip)
    registry.register(Chip(ueid=A, address="localhost:4001"))
    registry.close()
    assert path.exists()
    found = Registry(path).chips()
    assert [each.ueid for each in found] == [A, B]
    assert (found[1].owner, found[1].site, found[1].prover_address) == ("Ö", "Kiel", "[::1]:5000")


def test_chips_have_names_that_the_log_holds_and_are_found_by_them(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    registry.register(Chip(ueid=A, address="localhost:1", name="gpu-0"))
    registry.register(Chip(ueid=B, address="localhost:1"))
    size = registry.tree_size
    registry.register(Chip(ueid=A, address="localhost:1", name="gpu-0"))
    assert registry.tree_size == size  # nothing new was said
    registry.register(Chip(ueid=A, address="localhost:1", name="0100"))
    assert registry.tree_size == size + 1
    _, listed = decode(next(iter(registry.log.entries(size, size + 1))))
    assert [row.name for row in listed] == ["0100"]  # type: ignore[union-attr]
    assert [chip.ueid for chip in registry.find("0100")] == [A]  # a name goes before the beginnings of UEIDs
    assert [chip.ueid for chip in registry.find("010")] == [A, B]
    assert [chip.ueid for chip in registry.find(B.hex().upper())] == [B]
    assert [chip.ueid for chip in registry.find("010", limit=1)] == [A]
    assert registry.find("02") == registry.find("gpu-0") == registry.find("") == registry.find("0g") == []


def test_inspections_are_listed_with_what_their_reports_say(tmp_path: Path) -> None:
    now = 1_790_000_000
    registry = Registry(tmp_path / "registry.db", clock=lambda: now)
    for number, identifier in enumerate(("a1", "a2", "b1")):
        now = 1_790_000_000 + number
        registry.start_inspection(identifier, seed=b"", plan={"samples": 7}, chips=[])
    registry.set_stage("a2", "done", {"findings": []}, {"verdict": "clean", "p": 0.5})
    assert [each.id for each in registry.inspections()] == ["b1", "a2", "a1"]
    assert [each.id for each in registry.inspections(prefix="a", limit=1)] == ["a2"]
    (line,) = registry.inspections(prefix="a2")
    assert (line.stage, line.samples, line.summary) == ("done", 7, {"verdict": "clean", "p": 0.5})
    assert registry.inspections(prefix="%") == []


def test_texts_that_look_like_sql_are_texts(tmp_path: Path) -> None:
    """What owners and operators write is bound to statements, and no part of them."""
    registry = Registry(tmp_path / "registry.db")
    hostile = [
        "'; DROP TABLE chips; --",
        '" OR 1=1 --',
        "%' UNION SELECT seed FROM inspections --",
        "\\'); ATTACH 'x' AS y",
    ]
    for number, text in enumerate(hostile):
        registry.register(
            Chip(ueid=bytes([1, number]) + bytes(15), address="h:1", owner=text, site=text, chip_type=text)
        )
    assert [chip.owner for chip in registry.chips()] == hostile
    for text in hostile:
        with pytest.raises(NotFoundError):
            registry.inspection(text)
    assert len(registry.chips()) == len(hostile)


def test_registering_again_changes_the_address_and_keeps_what_was_witnessed(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    registry.register(Chip(ueid=A, address="localhost:4000"))
    registry.witness(A, size=5, last=b"5" * 32)
    registry.witness(A, size=4, last=b"4" * 32)
    first = registry.chip(A)
    registry.register(Chip(ueid=A, address="localhost:4444", owner="someone"))
    chip = registry.chip(A)
    assert (chip.address, chip.witnessed_size, chip.witnessed_last) == ("localhost:4444", 5, b"5" * 32)
    assert chip.registered_at == first.registered_at


@pytest.mark.parametrize(
    ("chip", "says"),
    [
        (Chip(ueid=b"short", address="localhost:1"), "17 to 33"),
        (Chip(ueid=A, address="localhost"), "host:port"),
        (Chip(ueid=A, address="unix:/tmp/x"), "host:port"),
        (Chip(ueid=A, address="localhost:1", prover_address="dns:///evil:1"), "Prover's address"),
        (Chip(ueid=A, address="localhost:1", owner="x" * 201), "owner"),
        (Chip(ueid=A, address="localhost:1", site="two\nlines"), "site"),
        (Chip(ueid=A, address="localhost:1", name="two words"), "name"),
        (Chip(ueid=A, address="localhost:1", name="-x"), "name"),
    ],
)
def test_bad_registrations_are_refused(tmp_path: Path, chip: Chip, says: str) -> None:
    registry = Registry(tmp_path / "registry.db")
    with pytest.raises(UsageError, match=says):
        registry.register(chip)
    assert registry.chips() == []


def test_inspections_keep_plan_sample_stage_and_report(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    for ueid in (A, B):
        registry.register(Chip(ueid=ueid, address="localhost:1"))
    registry.start_inspection("one", seed=b"s" * 32, plan={"samples": 2}, chips=[B, A])
    registry.set_stage("one", "replaying")
    registry.start_inspection("two", seed=b"t" * 32, plan={}, chips=[A])
    registry.set_stage("two", "done", {"findings": []})
    one, two = registry.inspection("one"), registry.inspection("two")
    assert (one.stage, one.plan, one.report, one.seed) == ("replaying", {"samples": 2}, None, b"s" * 32)
    assert (two.stage, two.report) == ("done", {"findings": []})
    assert registry.sampled("one") == [B, A]


def test_unknown_and_doubled_things_are_usage_errors(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    with pytest.raises(UsageError, match="not registered"):
        registry.chip(A)
    with pytest.raises(UsageError, match="no inspection"):
        registry.inspection("none")
    with pytest.raises(UsageError, match="an unregistered chip"):  # foreign keys are on
        registry.start_inspection("one", seed=b"", plan={}, chips=[A])
    registry.register(Chip(ueid=A, address="localhost:1"))
    registry.start_inspection("one", seed=b"", plan={}, chips=[A])
    with pytest.raises(UsageError, match="exists already"):
        registry.start_inspection("one", seed=b"", plan={}, chips=[A])


def test_a_file_that_is_no_registry_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"this is not a database, but it is long enough to be looked at" * 50)
    with pytest.raises(UsageError, match="another file"):
        Registry(path)


def test_threads_write_at_once_and_the_journal_is_write_ahead(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    ueids = [bytes([1, number]) * 9 for number in range(24)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda ueid: registry.register(Chip(ueid=ueid, address="localhost:1")), ueids))
    assert [chip.ueid for chip in registry.chips()] == ueids
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
