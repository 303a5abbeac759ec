"""The non-volatile log: what is acknowledged is never lost silently, and what was torn is never shown."""

import os
import resource
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmware_sim.nvlog import NonVolatileLog, write_durably
from weighbridge.errors import ChipError, UsageError
from weighbridge.tokens import GENESIS, MAX_TOKEN_BYTES, entry_digest

ENTRIES = [b"first", b"second entry", b"x" * 3000]


def write(directory: Path, entries: list[bytes]) -> None:
    with NonVolatileLog(directory) as log:
        for entry in entries:
            log.append(entry)


def read(directory: Path) -> list[bytes]:
    with NonVolatileLog(directory) as log:
        return [log.read(index) for index in range(len(log))]


def test_an_empty_log(tmp_path: Path) -> None:
    with NonVolatileLog(tmp_path) as log:
        assert (len(log), log.last) == (0, GENESIS)
        with pytest.raises(UsageError):
            log.read(0)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=6))
def test_round_trip(tmp_path: Path, entries: list[bytes]) -> None:
    """What is appended is read back in order, also by the next process."""
    directory = tmp_path / os.urandom(8).hex()
    directory.mkdir()
    with NonVolatileLog(directory) as log:
        assert [log.append(entry) for entry in entries] == list(range(len(entries)))
        assert [log.read(index) for index in range(len(log))] == entries
        assert log.last == (entry_digest(entries[-1]) if entries else GENESIS)
    assert read(directory) == entries


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with NonVolatileLog(tmp_path), pytest.raises(UsageError, match="Another process"):
        NonVolatileLog(tmp_path)
    NonVolatileLog(tmp_path).close()


@pytest.mark.parametrize("torn", range(1, 4 + 32 + len(b"torn entry"), 5))
def test_a_torn_append_is_cut_off(tmp_path: Path, torn: int) -> None:
    """Power lost after some bytes of a record and before the counter: the log is as if the append had not begun."""
    write(tmp_path, ENTRIES)
    counter, before = (tmp_path / "counter").read_bytes(), (tmp_path / "log.bin").read_bytes()
    write(tmp_path, [b"torn entry"])
    record = (tmp_path / "log.bin").read_bytes()[len(before) :]
    for rest in (b"", bytes(len(record) - torn)):  # A file system may also leave zeros where nothing was written.
        (tmp_path / "log.bin").write_bytes(before + record[:torn] + rest)
        (tmp_path / "counter").write_bytes(counter)
        assert read(tmp_path) == ENTRIES
        assert (tmp_path / "log.bin").read_bytes() == before
    write(tmp_path, [b"next"])
    assert read(tmp_path) == [*ENTRIES, b"next"]


def test_a_whole_record_before_its_counter_is_kept(tmp_path: Path) -> None:
    write(tmp_path, ENTRIES)
    counter = (tmp_path / "counter").read_bytes()
    write(tmp_path, [b"durable"])
    (tmp_path / "counter").write_bytes(counter)
    assert read(tmp_path) == [*ENTRIES, b"durable"]


def test_acknowledged_entries_cannot_be_taken_away(tmp_path: Path) -> None:
    """Shortening or restoring the log file alone contradicts the counter."""
    write(tmp_path, ENTRIES[:2])
    older = (tmp_path / "log.bin").read_bytes()
    write(tmp_path, ENTRIES[2:])
    newer = (tmp_path / "log.bin").read_bytes()
    for altered in (older, newer[:-1], b"", older + older, newer[len(older) :]):
        (tmp_path / "log.bin").write_bytes(altered)
        with pytest.raises(ChipError) as caught:
            NonVolatileLog(tmp_path)
        assert caught.value.reason == "chip.log.damaged"


def test_a_lost_or_altered_counter_is_damage(tmp_path: Path) -> None:
    write(tmp_path, ENTRIES)
    counter = (tmp_path / "counter").read_bytes()
    for altered in (b"", counter[:-1], counter[:-1] + bytes([counter[-1] ^ 1]), bytes([9]) + counter[1:]):
        (tmp_path / "counter").write_bytes(altered)
        with pytest.raises(ChipError):
            NonVolatileLog(tmp_path)
    (tmp_path / "counter").unlink()
    with pytest.raises(ChipError):
        NonVolatileLog(tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_bits_never_pass(tmp_path: Path, data: st.DataObject) -> None:
    """Every flip in an acknowledged record is one ChipError; nothing altered is ever returned."""
    directory = tmp_path / "flips"
    if not directory.exists():
        directory.mkdir()
        write(directory, ENTRIES)
        shutil.copy(directory / "log.bin", tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    place = data.draw(st.integers(0, len(good) * 8 - 1))
    flipped = bytearray(good)
    flipped[place // 8] ^= 1 << place % 8
    (directory / "log.bin").write_bytes(flipped)
    with pytest.raises(ChipError):
        read(directory)
    (directory / "log.bin").write_bytes(good)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=400), st.binary(max_size=60))
def test_hostile_files_raise_only_our_errors(tmp_path: Path, log: bytes, counter: bytes) -> None:
    (tmp_path / "log.bin").write_bytes(log)
    (tmp_path / "counter").write_bytes(counter)
    with suppress(ChipError):
        read(tmp_path)


def test_damage_while_running_is_noticed(tmp_path: Path) -> None:
    with NonVolatileLog(tmp_path) as log:
        log.append(ENTRIES[0])
        content = bytearray((tmp_path / "log.bin").read_bytes())
        content[-1] ^= 1
        (tmp_path / "log.bin").write_bytes(content)
        with pytest.raises(ChipError):
            log.read(0)


def test_a_full_disk_stops_the_log(tmp_path: Path) -> None:
    """A failed append is not acknowledged, nor is anything after it until a restart has looked at the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with NonVolatileLog(tmp_path) as log:
        log.append(b"fits")
        previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
        try:
            with pytest.raises(ChipError) as caught:
                log.append(bytes(MAX_TOKEN_BYTES))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, previous)
        assert caught.value.reason == "chip.log.write"
        with pytest.raises(ChipError):
            log.append(b"more")
    assert read(tmp_path) == [b"fits"]


def test_write_durably_replaces(tmp_path: Path) -> None:
    for content in (b"old content", b"new"):
        write_durably(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
