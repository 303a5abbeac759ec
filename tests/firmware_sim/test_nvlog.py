"""The non-volatile log: what is acknowledged is never lost silently, and what was torn is never shown."""

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.damage import flipped

from firmware_sim.nvlog import MIN_CAPACITY, NonVolatileLog, write_durably
from weighbridge.attest.tokens import GENESIS, MAX_TOKEN_BYTES, entry_digest
from weighbridge.core import merkle
from weighbridge.core.errors import ChipError, UsageError

ENTRIES = [b"first", b"second entry", b"x" * 3000]
_BITS = 8 * (8 + sum(4 + 32 + len(entry) for entry in ENTRIES))


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


@pytest.mark.parametrize("torn", range(0, 4 + 32 + len(b"torn entry"), 5))
def test_a_torn_append_is_finished(tmp_path: Path, torn: int) -> None:
    """Power lost after the counter and before the record is whole: the entry is in the counter's store, and stays."""
    write(tmp_path, ENTRIES)
    before = (tmp_path / "nvram/log.bin").read_bytes()
    write(tmp_path, [b"torn entry"])
    whole = (tmp_path / "nvram/log.bin").read_bytes()
    record = whole[len(before) :]
    for rest in (b"", bytes(len(record) - torn)):  # A file system may also leave zeros where nothing was written.
        (tmp_path / "nvram/log.bin").write_bytes(before + record[:torn] + rest)
        assert read(tmp_path) == [*ENTRIES, b"torn entry"]
        assert (tmp_path / "nvram/log.bin").read_bytes() == whole
    write(tmp_path, [b"next"])
    assert read(tmp_path) == [*ENTRIES, b"torn entry", b"next"]


def test_what_was_never_counted_is_not_in_the_log(tmp_path: Path) -> None:
    """Nobody writes a record before the counter, so one beyond it is foreign; a torn tail is only cut off."""
    write(tmp_path, ENTRIES)
    counter, good = (tmp_path / "counter").read_bytes(), (tmp_path / "nvram/log.bin").read_bytes()
    (tmp_path / "nvram/log.bin").write_bytes(good + b"\x40\x04\x00\x00" + bytes(50))
    assert read(tmp_path) == ENTRIES
    assert (tmp_path / "nvram/log.bin").read_bytes() == good
    write(tmp_path, [b"foreign"])
    (tmp_path / "counter").write_bytes(counter)
    with pytest.raises(ChipError) as caught:
        NonVolatileLog(tmp_path)
    assert caught.value.reason == "chip.log.damaged"


def test_a_counter_of_earlier_firmware_goes_on(tmp_path: Path) -> None:
    """It held only count and digest; from the next entry on it holds more."""
    write(tmp_path, ENTRIES)
    counter = (tmp_path / "counter").read_bytes()
    (tmp_path / "counter").write_bytes(counter[:40])
    assert read(tmp_path) == ENTRIES
    write(tmp_path, [b"next"])
    assert read(tmp_path) == [*ENTRIES, b"next"]
    assert len((tmp_path / "counter").read_bytes()) == 49 + len(b"next")


def test_interrupts_are_counted_with_the_entries_that_close_them(tmp_path: Path) -> None:
    with NonVolatileLog(tmp_path) as log:
        assert (log.counter.raised, log.counter.standing) == (0, False)
        assert [log.raise_interrupt(), log.raise_interrupt()] == [1, 1]  # the second merges with the first
        log.append(b"something else")
    with NonVolatileLog(tmp_path) as log:
        assert (log.counter.raised, log.counter.standing) == (1, True)
        log.append(b"an interrupt that found nobody", raises=True)
        log.append(b"snapshot", closes=True)
    with NonVolatileLog(tmp_path) as log:
        assert (log.counter.raised, log.counter.standing) == (2, False)
        assert log.raise_interrupt() == 3
    assert read(tmp_path) == [b"something else", b"an interrupt that found nobody", b"snapshot"]


def test_acknowledged_entries_cannot_be_damaged(tmp_path: Path) -> None:
    """A log whose records are damaged before the newest does not open, and stays as it is."""
    write(tmp_path, ENTRIES)
    good = (tmp_path / "nvram/log.bin").read_bytes()
    for altered in (good[:60], good[:8] + good[-40:], good + good[8:], flipped(good, 0), flipped(good, 12)):
        (tmp_path / "nvram/log.bin").write_bytes(altered)
        with pytest.raises(ChipError) as caught:
            NonVolatileLog(tmp_path)
        assert caught.value.reason == "chip.log.damaged"
        assert (tmp_path / "nvram/log.bin").read_bytes() == altered


def test_an_image_that_lacks_the_newest_entry_gets_it_back(tmp_path: Path) -> None:
    for number, entry in enumerate(ENTRIES):
        if number:
            shutil.copytree(tmp_path / "nvram", tmp_path / "backup")
        write(tmp_path, [entry])
        shutil.rmtree(tmp_path / "nvram")
        if number:
            shutil.move(tmp_path / "backup", tmp_path / "nvram")
        assert read(tmp_path) == ENTRIES[: number + 1]


@pytest.mark.parametrize("kept", range(len(ENTRIES) - 1))
def test_an_older_image_is_seen_to_be_older(tmp_path: Path, kept: int) -> None:
    """It can be read, and nothing is appended to it; the newest image brings the log back."""
    write(tmp_path, ENTRIES[:kept])
    shutil.copytree(tmp_path / "nvram", tmp_path / "backup") if kept else (tmp_path / "backup").mkdir()
    write(tmp_path, ENTRIES[kept:])
    shutil.move(tmp_path / "nvram", tmp_path / "newest")
    shutil.copytree(tmp_path / "backup", tmp_path / "nvram")
    for _ in range(2):  # It is no less old at the next start.
        with NonVolatileLog(tmp_path) as log:
            assert (len(log), log.missing, log.counter.value) == (kept, len(ENTRIES) - kept, len(ENTRIES))
            assert [log.read(index) for index in range(kept)] == ENTRIES[:kept]
            with pytest.raises(ChipError) as caught:
                log.append(b"more")
            assert caught.value.reason == "chip.log.rolled_back"
    shutil.rmtree(tmp_path / "nvram")
    shutil.move(tmp_path / "newest", tmp_path / "nvram")
    write(tmp_path, [b"next"])
    assert read(tmp_path) == [*ENTRIES, b"next"]


def test_a_lost_or_altered_counter_is_damage(tmp_path: Path) -> None:
    write(tmp_path, ENTRIES)
    counter = (tmp_path / "counter").read_bytes()
    places = (0, 8, 48, len(counter) - 1)  # count, digest, whether an interrupt stands, the entry
    flips = [counter[:at] + bytes([counter[at] ^ 2]) + counter[at + 1 :] for at in places]
    for altered in (b"", counter[:-1], counter[:39], counter[:45], *flips):
        (tmp_path / "counter").write_bytes(altered)
        with pytest.raises(ChipError):
            NonVolatileLog(tmp_path)
    (tmp_path / "counter").unlink()
    with pytest.raises(ChipError):
        NonVolatileLog(tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@example(place=98 * 8 + 2)  # the newest record is longer than the file
@given(place=st.integers(0, _BITS - 1))
def test_flipped_bits_never_pass(tmp_path: Path, place: int) -> None:
    """Every flip is one ChipError, or it was in the newest record and is mended; nothing altered is ever returned."""
    directory = tmp_path / "flips"
    if not directory.exists():
        directory.mkdir()
        write(directory, ENTRIES)
        shutil.copy(directory / "nvram/log.bin", tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    assert len(good) * 8 == _BITS
    flipped = bytearray(good)
    flipped[place // 8] ^= 1 << place % 8
    (directory / "nvram/log.bin").write_bytes(flipped)
    if place // 8 < len(good) - 36 - len(ENTRIES[-1]):
        with pytest.raises(ChipError):
            read(directory)
    else:
        assert read(directory) == ENTRIES
    (directory / "nvram/log.bin").write_bytes(good)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=400) | st.binary(max_size=99).map(bytes(8).__add__), st.binary(max_size=60), st.binary())
def test_hostile_files_raise_only_our_errors(tmp_path: Path, log: bytes, counter: bytes, released: bytes) -> None:
    (tmp_path / "nvram").mkdir(exist_ok=True)
    (tmp_path / "nvram/log.bin").write_bytes(log)
    (tmp_path / "nvram/released.bin").write_bytes(released)
    if not released:
        (tmp_path / "nvram/released.bin").unlink()
    (tmp_path / "counter").write_bytes(counter)
    with suppress(ChipError):
        read(tmp_path)
    (tmp_path / "counter").unlink()
    with suppress(ChipError):
        read(tmp_path)


def test_damage_while_running_is_noticed(tmp_path: Path) -> None:
    with NonVolatileLog(tmp_path) as log:
        log.append(ENTRIES[0])
        content = bytearray((tmp_path / "nvram/log.bin").read_bytes())
        content[-1] ^= 1
        (tmp_path / "nvram/log.bin").write_bytes(content)
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


def test_an_entry_that_the_nvram_does_not_take_counts_all_the_same(tmp_path: Path) -> None:
    """It is in the counter's store. It is not acknowledged, but a head that says how many there are must not lie."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with NonVolatileLog(tmp_path) as log:
        log.append(bytes(3000))
        size = (tmp_path / "nvram/log.bin").stat().st_size
        previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 9, hard))
        try:
            with pytest.raises(ChipError) as caught:
                log.append(b"half of this")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, previous)
        assert caught.value.reason == "chip.log.write"
        assert (len(log), log.counter.value, log.read(1)) == (2, 2, b"half of this")
    assert read(tmp_path) == [bytes(3000), b"half of this"]


def test_write_durably_replaces(tmp_path: Path) -> None:
    for content in (b"old content", b"new"):
        write_durably(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content


def test_the_tree_is_over_all_entries(tmp_path: Path) -> None:
    write(tmp_path, ENTRIES)
    with NonVolatileLog(tmp_path) as log:
        assert log.tree.root() == merkle.root([merkle.leaf_hash(entry) for entry in ENTRIES])


def test_a_full_nvram_refuses_and_overwrites_nothing(tmp_path: Path) -> None:
    """Everything acknowledged is still there, also after a restart, until a witness has it; then there is room."""
    with NonVolatileLog(tmp_path, capacity=MIN_CAPACITY) as log:
        entries = []
        while log.free > 30_100:
            entries.append(os.urandom(20_000))
            log.append(entries[-1])
        assert not log.has_room
        for _ in range(2):
            with pytest.raises(ChipError) as caught:
                log.append(bytes(30_000))
            assert caught.value.reason == "chip.log.full"
        root = log.tree.root()
    with NonVolatileLog(tmp_path, capacity=MIN_CAPACITY) as log:
        assert [log.read(index) for index in range(len(log))] == entries
        log.release(len(log) - 2)
        assert log.has_room
        assert log.tree.root() == root
        assert log.append(bytes(30_000)) == len(entries)
    with pytest.raises(UsageError):
        NonVolatileLog(tmp_path, capacity=MIN_CAPACITY - 1)


@pytest.mark.finding("chip.log.spent")
def test_an_nvram_full_of_hashes_says_that_no_report_makes_room(tmp_path: Path) -> None:
    """Hashes are never dropped, so this chip's life is over; with more NVRAM it goes on and has forgotten nothing."""
    with NonVolatileLog(tmp_path, capacity=MIN_CAPACITY) as log:
        while log.has_room:
            log.append(bytes(8))
            if not log.has_room:
                log.release(len(log))
        assert log.is_spent
        assert log.released == len(log) - 1
        assert log.no_room().reason == "chip.log.spent"
        root, size = log.tree.root(), len(log)
        assert size > 5_000
    with NonVolatileLog(tmp_path, capacity=2 * MIN_CAPACITY) as log:
        assert log.has_room
        assert not log.is_spent
        assert (log.tree.root(), log.append(b"next")) == (root, size)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40) | st.integers(0, 12), max_size=16))
def test_releases_keep_hashes_and_what_was_not_released(tmp_path: Path, work: list[bytes | int]) -> None:
    """Appends (bytes) and releases (numbers) in any order, each followed by a restart, against a plain list."""
    directory = tmp_path / os.urandom(8).hex()
    directory.mkdir()
    entries: list[bytes] = []
    released = 0
    for each in work:
        with NonVolatileLog(directory) as log:
            if isinstance(each, bytes):
                log.append(each)
                entries.append(each)
            else:
                log.release(each)
                released = max(released, min(each, len(entries) - 1))
            assert (log.released, len(log)) == (released, len(entries))
        with NonVolatileLog(directory) as log:
            assert log.tree.root() == merkle.root([merkle.leaf_hash(entry) for entry in entries])
            assert [log.read(index) for index in range(released, len(entries))] == entries[released:]
            if released:
                assert log.last_released == entry_digest(entries[released - 1])
                with pytest.raises(ChipError) as caught:
                    log.read(released - 1)
                assert caught.value.reason == "chip.log.released"


def states(before: Path, after: Path) -> Iterator[dict[str, bytes]]:
    """Every state of the store between two: files change one after another, each torn at any byte or not yet there."""
    files = {path.relative_to(after): path.read_bytes() for path in after.rglob("*") if path.is_file()}
    old = {path.relative_to(before): path.read_bytes() for path in before.rglob("*") if path.is_file()}
    order = [Path("counter"), Path("nvram/released.bin"), Path("nvram/log.bin"), Path("nvram/cosigned")]
    state = dict(old)
    for name in order:
        new, known = files.get(name), old.get(name)
        if new is None or new == known:
            continue
        if name == Path("nvram/log.bin") and known is not None and new.startswith(known):
            for end in range(len(known), len(new)):  # An append may be torn anywhere, or leave zeros.
                yield {str(k): v for k, v in state.items()} | {str(name): new[:end]}
                yield {str(k): v for k, v in state.items()} | {str(name): new[:end] + bytes(len(new) - end)}
        else:
            for end in (0, len(new) // 2, len(new)):  # Replaced as a whole: only the new file's spare may be torn.
                yield {str(k): v for k, v in state.items()} | {f"{name}.new": new[:end]}
        state[name] = new
        yield {str(k): v for k, v in state.items()}


def test_power_may_go_at_every_byte(tmp_path: Path) -> None:
    """Whatever an append or a release had written when the power went, nothing that was acknowledged is lost.

    And what may be acknowledged next continues the same tree.
    """
    store, before = tmp_path / "store", tmp_path / "before"
    store.mkdir()
    entries = [b"zero", b"one", b"two", b"three"]
    write(store, entries[:1])
    work: list[bytes | int] = [*entries[1:3], 1, entries[3], 3]
    acknowledged, tried = 1, 0
    for each in work:
        shutil.rmtree(before, ignore_errors=True)
        shutil.copytree(store, before)
        with NonVolatileLog(store) as log:
            log.append(each) if isinstance(each, bytes) else log.release(each)
            release = 0 if isinstance(each, bytes) else each
        for state in states(before, store):
            tried += 1
            torn = tmp_path / "torn"
            shutil.rmtree(torn, ignore_errors=True)
            (torn / "nvram").mkdir(parents=True)
            for name, content in state.items():
                (torn / name).write_bytes(content)
            with NonVolatileLog(torn) as log:
                assert acknowledged <= len(log) <= acknowledged + isinstance(each, bytes)
                assert log.missing == 0
                assert log.released in (log.released, release)
                assert [log.read(i) for i in range(log.released, len(log))] == entries[log.released : len(log)]
                assert log.tree.root() == merkle.root([merkle.leaf_hash(entry) for entry in entries[: len(log)]])
                assert log.counter.value == len(log)
                log.append(b"next")
            with NonVolatileLog(torn) as log:
                assert log.read(len(log) - 1) == b"next"
        acknowledged += isinstance(each, bytes)
    assert tried > 200


def test_a_cosigned_checkpoint_is_kept(tmp_path: Path) -> None:
    write(tmp_path, ENTRIES)
    with NonVolatileLog(tmp_path) as log:
        assert log.cosigned == b""
        log.keep_cosigned(b"note")
    with NonVolatileLog(tmp_path) as log:
        assert log.cosigned == b"note"
