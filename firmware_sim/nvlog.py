"""The chip's non-volatile log: append-only, durable before it is acknowledged, repaired after a crash, of a fixed size.

`nvram/log.bin` holds the index of its first entry (8 bytes, little endian) and records of a length (4 bytes, little
endian), the entry's BLAKE3-256 digest and the entry. An append is one write to the counter's store, which holds the
entry too; the record here follows it, and the entry is acknowledged after both. So whatever the power does to the
record, and whichever image of the NVRAM is there afterwards, the next start writes the newest record again. A damaged
record before it is damage, and the chip refuses to start rather than to forget. A log that is whole but lacks more than
the newest entry is an older copy: it can be read, and `missing` says what it lacks, but nothing more is appended to it.

What a witness holds may be *released*: `nvram/released.bin` keeps the leaf hashes of these entries, so that every proof
can still be given, and the records go. Nothing else makes room; a log without room refuses the next entry.
docs/formats/chip-log.md is the specification.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from firmware_sim.counter import MonotonicCounter, write_all, write_durably
from weighbridge.attest.tlog import MAX_NOTE_BYTES
from weighbridge.attest.tokens import GENESIS, MAX_TOKEN_BYTES, entry_digest
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest
from weighbridge.core.errors import ChipError, NotFoundError, UsageError
from weighbridge.core.merkle import HASH_SIZE, Tree, leaf_hash

__all__ = ["DEFAULT_CAPACITY", "MIN_CAPACITY", "NonVolatileLog", "rolled_back", "write_durably"]

_BASE = 8
_LENGTH = 4
_HEADER = _LENGTH + DIGEST_SIZE
_RELEASED = 8 + DIGEST_SIZE  # Count and last digest, before the hashes; a digest of it all comes behind them.

LARGEST_RECORD = _HEADER + MAX_TOKEN_BYTES
MIN_CAPACITY = 6 * MAX_TOKEN_BYTES
DEFAULT_CAPACITY = 16 << 20
"""Bytes of NVRAM: room for some 9,000 unread entries, or the hashes of half a million."""


class NonVolatileLog:
    """The entries of one chip, held by one process at a time.

    Attributes:
        tree: The RFC 6962 tree over all entries, released ones too.
        counter: The monotonic counter.
        released: How many entries were released; the others can be read.
        missing: Entries that were acknowledged and are not there: the NVRAM was replaced by an older copy of itself.
        cosigned: The newest checkpoint that a witness has cosigned, as a note; empty if there is none.
    """

    def __init__(self, directory: Path, *, capacity: int = DEFAULT_CAPACITY) -> None:
        """Opens or creates the log, takes the lock, and finishes an append that the power cut short.

        Args:
            directory: The chip's directory; it must exist.
            capacity: Bytes of NVRAM, at least `MIN_CAPACITY`.

        Raises:
            ChipError: An acknowledged entry is damaged (`chip.log.damaged`).
            UsageError: Another process has the log open, or the capacity is too small.
        """
        if capacity < MIN_CAPACITY:
            raise UsageError(f"A chip needs at least {MIN_CAPACITY} bytes of NVRAM, not {capacity}.")
        self._directory, self._capacity = directory / "nvram", capacity
        self._directory.mkdir(exist_ok=True)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(f"Another process runs the chip in {directory}; stop it first.") from error
        self._file = self._open()
        self._places: list[tuple[int, int, bytes]] = []  # offset and length of each entry in the file, and its digest
        self._end = _BASE
        self._failed = False
        self.tree = Tree()
        self.released, self.missing = 0, 0
        self._last_released = GENESIS
        try:
            self.counter = MonotonicCounter(directory)
            self._read_released()
            self._recover()
            self.cosigned = self._read("cosigned") or b""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> NonVolatileLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.tree)

    @property
    def last(self) -> bytes:
        """Digest of the newest entry; `GENESIS` if there is none."""
        return self._places[-1][2] if self._places else self._last_released

    @property
    def last_released(self) -> bytes:
        """Digest of the newest entry that was released; `GENESIS` if there is none."""
        return self._last_released

    @property
    def free(self) -> int:
        """Bytes of NVRAM that entries may still take; a cosigned checkpoint and the hashes have theirs."""
        hashes = _RELEASED + HASH_SIZE * len(self.tree) + DIGEST_SIZE
        return self._capacity - self._end - hashes - MAX_NOTE_BYTES

    @property
    def has_room(self) -> bool:
        """Whether the next two entries fit, however long they are: what is asked for, and a snapshot at any moment."""
        return self._admits(self.free)

    @property
    def is_half_full(self) -> bool:
        """Whether entries that were not released take half of what there is for them."""
        return 2 * (self._end - _BASE) > self.free + self._end - _BASE - 2 * LARGEST_RECORD

    @property
    def is_spent(self) -> bool:
        """Whether hashes of entries take so much that there would be no room even if a witness held everything."""
        newest = _HEADER + self._places[-1][1] if self._places else 0
        return not self._admits(self.free + (self._end - _BASE) - newest)

    def no_room(self) -> ChipError:
        """Returns the error of a log that has no room, and what makes some."""
        if self.is_spent:
            return ChipError(
                f"The hashes of {len(self)} entries fill the NVRAM, and they are never dropped; "
                "restart the chip with more NVRAM, or replace it.",
                code="chip.log.spent",
            )
        return ChipError(
            "The NVRAM is full and nothing in it may be overwritten; report to the Verifier, then go on.",
            code="chip.log.full",
        )

    def append(self, data: bytes, *, raises: bool = False, closes: bool = False) -> int:
        """Makes an entry durable, together with what it says of an interrupt, and returns its index.

        Args:
            data: 1 to `MAX_TOKEN_BYTES` bytes.
            raises: As for `MonotonicCounter.advance`.
            closes: Likewise.

        Raises:
            ChipError: The NVRAM is full (`chip.log.full`, `chip.log.spent`) or was replaced by an older copy
                (`chip.log.rolled_back`), or does not take it (`chip.log.write`). Nothing is acknowledged after a failed
                write, as only a restart can tell what reached the store.
        """
        self._must_be_whole()
        record = _record_of(data)
        if self.free < len(record) + HASH_SIZE:
            raise self.no_room()
        try:
            self.counter.advance(data, raises=raises, closes=closes)
            self._write(record)
        except OSError as error:
            raise self._failure(error) from error
        return len(self) - 1

    def raise_interrupt(self) -> int:
        """Makes durable that an interrupt stands, and returns its number.

        Raises:
            ChipError: As `append`, but for a full NVRAM.
        """
        self._must_be_whole()
        try:
            return self.counter.raise_interrupt()
        except OSError as error:
            raise self._failure(error) from error

    def read(self, index: int) -> bytes:
        """Returns an entry.

        Raises:
            NotFoundError: There is no such entry.
            ChipError: It was released (`chip.log.released`), or damaged since it was written (`chip.log.damaged`).
        """
        if not 0 <= index < len(self):
            raise NotFoundError(
                f"The log has {len(self)} entries and so none at {index}; ask for the head first.",
                resource="entry",
                name=str(index),
            )
        if index < self.released:
            raise ChipError(
                f"Entry {index} was released after a witness had it; ask the Verifier that cosigned the log.",
                code="chip.log.released",
                index=index,
            )
        offset, length, digest = self._places[index - self.released]
        data = os.pread(self._file, length, offset)
        if entry_digest(data) != digest:
            if self._failed and digest == self.counter.last:
                return self.counter.newest  # The next start writes it here.
            raise _damaged(index)
        return data

    def keep_cosigned(self, note: bytes) -> None:
        """Makes a cosigned checkpoint durable in place of the one before.

        Raises:
            ChipError: The NVRAM does not take it (`chip.log.write`).
        """
        assert len(note) <= MAX_NOTE_BYTES
        try:
            write_durably(self._directory / "cosigned", note)
        except OSError as error:
            raise self._failure(error) from error
        self.cosigned = note

    def release(self, size: int) -> None:
        """Drops the first `size` entries but for their hashes. The newest entry always stays.

        Args:
            size: Entries that a witness holds; the caller has verified its cosignature.

        Raises:
            ChipError: An entry is damaged, or the NVRAM cannot be written.
        """
        size = min(size, len(self) - 1)
        if size <= self.released or self.missing:
            return
        rest = b"".join(self._record(index) for index in range(size, len(self)))
        last = self._places[size - 1 - self.released][2]
        content = size.to_bytes(8, "little") + last + b"".join(self.tree.leaves(0, size))
        try:
            # Hashes first: what comes after a crash in between is a log that still has the records, too.
            write_durably(self._directory / "released.bin", content + bytes_digest(content))
            self._replace(size, rest)
        except OSError as error:
            raise self._failure(error) from error
        self._places = self._places[size - self.released :]
        shift = self._places[0][0] - (_BASE + _HEADER)
        self._places = [(offset - shift, length, digest) for offset, length, digest in self._places]
        self.released, self._last_released = size, last

    def close(self) -> None:
        """Gives the log up; another process may open it."""
        os.close(self._file)
        os.close(self._lock)

    @staticmethod
    def _admits(free: int) -> bool:
        return free >= 2 * (LARGEST_RECORD + HASH_SIZE)

    def _must_be_whole(self) -> None:
        if self.missing:
            raise rolled_back(self.missing)
        if self._failed:
            raise ChipError("The log failed to be written before; restart the chip.", code="chip.log.write")

    def _write(self, record: bytes) -> None:
        """Makes a record durable at the end of the file. The entry counts already, so it is remembered before."""
        place = self._end
        self._keep(record)
        write_all(self._file, record, place)
        os.fsync(self._file)

    def _open(self) -> int:
        return os.open(self._directory / "log.bin", os.O_RDWR | os.O_CREAT, 0o600)

    def _keep(self, record: bytes) -> None:
        """Remembers a record that stands at the end of the file."""
        self._places.append((self._end + _HEADER, len(record) - _HEADER, record[_LENGTH:_HEADER]))
        self.tree.append(leaf_hash(record[_HEADER:]))
        self._end += len(record)

    def _record(self, index: int) -> bytes:
        return _record_of(self.read(index))

    def _replace(self, base: int, records: bytes) -> None:
        write_durably(self._directory / "log.bin", base.to_bytes(_BASE, "little") + records)
        os.close(self._file)
        self._file = self._open()
        self._end = _BASE + len(records)

    def _recover(self) -> None:
        """Reads all records, and repairs what a crash can have left."""
        head = os.pread(self._file, _BASE, 0)
        if len(head) < _BASE:
            if self.released:
                raise _damaged(self.released)
            if self.counter.value > len(self.counter.newest[:1]):  # More than the counter's store can give back.
                self.missing = self.counter.value
                return
            self._replace(0, b"")
            head = bytes(_BASE)
        base = int.from_bytes(head, "little")
        if base > self.released:
            raise _damaged(self.released)
        if base < self.released:
            self._finish_release(base)
        while (record := self._record_at(self._end)) is not None:
            self._keep(record)
        self._agree(clean=self._end == os.fstat(self._file).st_size)
        if self._end < os.fstat(self._file).st_size:
            os.ftruncate(self._file, self._end)
            os.fsync(self._file)

    def _record_at(self, offset: int) -> bytes | None:
        """Returns a record of the file; None if there is no whole one."""
        header = os.pread(self._file, _HEADER, offset)
        length = int.from_bytes(header[:_LENGTH], "little")
        if len(header) < _HEADER or not 0 < length <= MAX_TOKEN_BYTES:
            return None
        data = os.pread(self._file, length, offset + _HEADER)
        return header + data if len(data) == length and entry_digest(data) == header[_LENGTH:] else None

    def _finish_release(self, base: int) -> None:
        """Does what a crash in `release` left undone: the hashes are durable and the records still there."""
        offset = _BASE
        for index in range(base, self.released):
            record = self._record_at(offset)
            if record is None or leaf_hash(record[_HEADER:]) != self.tree.leaves(index, index + 1)[0]:
                raise _damaged(index)
            offset += len(record)
        self._replace(self.released, os.pread(self._file, os.fstat(self._file).st_size - offset, offset))
        self._end = _BASE

    def _agree(self, *, clean: bool) -> None:
        """Compares the log with the counter; `clean` says that the file ended with its last record."""
        known, newest = self.counter.value, self.counter.newest
        if newest and len(self) == known - 1:
            os.ftruncate(self._file, self._end)
            self._write(_record_of(newest))
            return
        if len(self) < known:
            if not clean:
                raise _damaged(len(self))
            self.missing = known - len(self)
            return
        if known and (known <= self.released or self._places[known - 1 - self.released][2] != self.counter.last):
            raise _damaged(known - 1)
        if len(self) > known:
            raise _damaged(known)

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def _read_released(self) -> None:
        data = self._read("released.bin")
        if data is None:
            return
        content, digest = data[:-DIGEST_SIZE], data[-DIGEST_SIZE:]
        count = int.from_bytes(content[:8], "little")
        if bytes_digest(content) != digest or len(content) != _RELEASED + HASH_SIZE * count:
            raise ChipError("The hashes of released entries are damaged.", code="chip.log.damaged")
        self.released, self._last_released = count, content[8:_RELEASED]
        self.tree = Tree(content[at : at + HASH_SIZE] for at in range(_RELEASED, len(content), HASH_SIZE))

    def _failure(self, error: OSError) -> ChipError:
        self._failed = True
        return ChipError(
            f"The log cannot be written ({error}); free space and restart the chip.", code="chip.log.write"
        )


def _record_of(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH, "little") + entry_digest(data) + data


def _damaged(index: int) -> ChipError:
    return ChipError(
        f"Entry {index} of the chip's log is damaged or missing; inspect the chip on site.",
        code="chip.log.damaged",
        index=index,
    )


def rolled_back(missing: int) -> ChipError:
    """Returns the error of a log that lacks acknowledged entries."""
    return ChipError(
        f"The log lacks {missing} entries that this chip acknowledged; restore its newest NVRAM image.",
        code="chip.log.rolled_back",
    )
