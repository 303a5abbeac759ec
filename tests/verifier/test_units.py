"""Units of work and progress: what was stored is not done again, what cannot be read is, and watchers miss nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.damage import flipped

from verifier import units
from verifier.registry import Chip, Registry
from verifier.store.cache import Cache
from verifier.store.exclusive_lock import claim
from verifier.units import INLINE_BYTES, Journal, Units, key_of
from weighbridge.core.errors import ChipError, TranscriptError, UsageError

UEID = b"\x01" + b"u" * 16


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(tmp_path / "registry.db")
    registry.register(Chip(ueid=UEID, address="chip:1"))
    registry.start_inspection("one", seed=b"s" * 16, plan={}, chips=[UEID])
    registry.start_inspection("two", seed=b"s" * 16, plan={}, chips=[UEID])
    yield registry
    registry.close()


def counted(done: list[int], value: bytes) -> bytes:
    done.append(1)
    return value


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES, 40 * INLINE_BYTES])
def test_a_unit_is_done_once_also_in_the_next_process(registry: Registry, tmp_path: Path, size: int) -> None:
    value, done = bytes(n * 7 % 251 for n in range(size)) + key_of("salt").encode() * (size // 64), list[int]()
    for _ in range(3):
        opened = Units(registry.session, Cache(tmp_path / "cache"), "one")
        for _ in range(2):
            assert opened.once("kind", "key", lambda: counted(done, value), to=bytes, of=bytes) == value
        assert opened.get("kind", "key", bytes) == value
        assert opened.get("kind", "other", bytes) is None
    assert len(done) == 1
    assert units.count(registry.session, "one") == 1
    other = Units(registry.session, Cache(tmp_path / "cache"), "two")
    assert other.once("kind", "key", lambda: counted(done, b"two"), to=bytes, of=bytes) == b"two"


def test_what_is_damaged_is_done_again(registry: Registry, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    opened, done = Units(registry.session, cache, "one"), list[int]()
    value = b"".join(key_of(number).encode() for number in range(2000))
    opened.once("kind", "key", lambda: counted(done, value), to=bytes, of=bytes)
    (stored,) = [path for path in (tmp_path / "cache" / "objects").rglob("*") if path.is_file()]
    assert cache.kept(bytes.fromhex(stored.name)) == stored.read_bytes()
    for damage in (lambda: stored.write_bytes(flipped(stored.read_bytes(), 0)), stored.unlink):
        damage()
        with pytest.raises(TranscriptError):
            cache.kept(bytes.fromhex(stored.name))
        assert opened.get("kind", "key", bytes) is None
        assert opened.once("kind", "key", lambda: counted(done, value), to=bytes, of=bytes) == value
    assert len(done) == 3
    opened.put("kind", "text", "no number")
    assert opened.once("kind", "text", lambda: 7, to=int, of=int) == 7
    assert opened.get("kind", "text", int) == 7


def test_work_that_fails_is_not_stored(registry: Registry, tmp_path: Path) -> None:
    opened = Units(registry.session, Cache(tmp_path / "cache"), "one")

    def fail() -> int:
        raise ChipError("gone")

    with pytest.raises(ChipError):
        opened.once("kind", "key", fail, to=int, of=int)
    assert units.count(registry.session, "one") == 0
    assert opened.once("kind", "key", lambda: 3, to=int, of=int) == 3


def test_progress_is_there_for_those_who_come_later(registry: Registry) -> None:
    journal = Journal(registry.session, "one")
    journal.say("log", 0, 2, "first")
    journal.say("replay", 0, 2, "second\n\0\x1b[31m" + "x" * 1000)
    for step in range(1000):
        journal.say("replay", 0, 2, f"step {step}", transient=True)
    lines, transient, version = journal.after(0, 0, timeout=0)
    assert [line.stage for line in lines] == ["log", "replay"]
    assert lines[1].message.isprintable()
    assert len(lines[1].message) == 500
    assert [line.message for line in transient] == ["step 999"]
    assert journal.after(2, version, timeout=0) == ([], [], version)
    journal.flush()
    later = Journal(registry.session, "one")
    assert later.after(0, 0, timeout=0)[0] == lines
    later.say("done", 1, 1, "ready")
    assert [line.stage for line in Journal(registry.session, "one").after(2, 0, timeout=0)[0]] == ["done"]
    assert Journal(registry.session, "two").after(0, 0, timeout=0)[:2] == ([], [])


def test_watchers_are_woken(registry: Registry) -> None:
    journal = Journal(registry.session, "one")
    threading.Timer(0.3, journal.say, ("log", 0, 1, "now")).start()
    started = time.monotonic()
    assert [line.message for line in journal.after(0, 0, timeout=30)[0]] == ["now"]
    assert time.monotonic() - started < 20
    threading.Timer(0.3, journal.wake).start()
    assert journal.after(1, 99, timeout=30)[0] == []
    assert time.monotonic() - started < 25


def test_attempts_count_only_while_nothing_is_done(registry: Registry, tmp_path: Path) -> None:
    assert [units.begin_attempt(registry.session, "one") for _ in range(3)] == [1, 2, 3]
    Units(registry.session, Cache(tmp_path / "cache"), "one").put("kind", "key", 1)
    assert [units.begin_attempt(registry.session, "one") for _ in range(2)] == [1, 2]
    assert units.begin_attempt(registry.session, "two") == 1
    assert units.unfinished(registry.session) == ["one", "two"]
    registry.set_stage("one", "done", {})
    assert units.unfinished(registry.session) == ["two"]


def test_keys_tell_apart_what_others_named() -> None:
    assert len({key_of("a", "b"), key_of("ab", ""), key_of("a", None), key_of(["a"], "b"), key_of(b"a", "b")}) == 5
    assert key_of("\0; DROP TABLE chips") == key_of("\0; DROP TABLE chips")
    assert len(key_of("x" * 10_000)) == 64


def test_one_verifier_has_a_database_at_a_time(registry: Registry) -> None:
    with claim(registry.database):
        with pytest.raises(UsageError, match="another Verifier"), claim(registry.database):
            raise AssertionError("unreachable")
        assert registry.chip(UEID).address == "chip:1", "others may read and write it"
    with claim(registry.database):
        pass
