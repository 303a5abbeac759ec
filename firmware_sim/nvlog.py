"""The chip's non-volatile log: append-only, durable before it is acknowledged, repaired after a crash.

`log.bin` holds records of a length (4 bytes, little endian), the entry's BLAKE3-256 digest and the entry. `counter`
holds the number of acknowledged entries (8 bytes, little endian) and the digest of the newest. An append makes the
record durable first and the counter second, and is acknowledged after both. So a damaged record beyond the counter is a
torn append that nobody was told of, and is cut off; a missing or damaged record below the counter is damage, and
the chip refuses to start rather than to forget. docs/formats/chip-log.md is the specification.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from weighbridge.digests import DIGEST_SIZE
from weighbridge.errors import ChipError, UsageError
from weighbridge.tokens import GENESIS, MAX_TOKEN_BYTES, entry_digest

_LENGTH = 4
_HEADER = _LENGTH + DIGEST_SIZE
_COUNT = 8


class NonVolatileLog:
    """The entries of one chip, held by one process at a time."""

    def __init__(self, directory: Path) -> None:
        """Opens or creates the log, takes the lock, and cuts off a torn append.

        Args:
            directory: The chip's directory; it must exist.

        Raises:
            ChipError: An acknowledged entry is missing or damaged (`chip.log.damaged`).
            UsageError: Another process has the log open.
        """
        self._directory = directory
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(f"Another process runs the chip in {directory}; stop it first.") from error
        self._file = os.open(directory / "log.bin", os.O_RDWR | os.O_CREAT, 0o600)
        self._places: list[tuple[int, int, bytes]] = []  # offset and length of each entry, and its digest
        self._end = 0
        self._failed = False
        try:
            self._recover(*self._read_counter())
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
        return len(self._places)

    @property
    def last(self) -> bytes:
        """Digest of the newest entry; `GENESIS` if there is none."""
        return self._places[-1][2] if self._places else GENESIS

    def append(self, data: bytes) -> int:
        """Makes an entry durable and returns its index.

        Args:
            data: 1 to `MAX_TOKEN_BYTES` bytes.

        Raises:
            ChipError: The disk does not take it (`chip.log.write`). Nothing is acknowledged from then on, as only a
                restart can tell what reached the disk.
        """
        if self._failed:
            raise ChipError("The log failed to be written before; restart the chip.", code="chip.log.write")
        digest = entry_digest(data)
        record = len(data).to_bytes(_LENGTH, "little") + digest + data
        try:
            _write_all(self._file, record, self._end)
            os.fsync(self._file)
            self._places.append((self._end + _HEADER, len(data), digest))
            self._end += len(record)
            self._write_counter()
        except OSError as error:
            self._failed = True
            raise ChipError(
                f"The log cannot be written ({error}); free space and restart the chip.", code="chip.log.write"
            ) from error
        return len(self._places) - 1

    def read(self, index: int) -> bytes:
        """Returns an entry.

        Raises:
            UsageError: There is no such entry.
            ChipError: It was damaged since it was written (`chip.log.damaged`).
        """
        if not 0 <= index < len(self._places):
            raise UsageError(f"The log has {len(self._places)} entries and so none at {index}; ask for the head first.")
        offset, length, digest = self._places[index]
        data = os.pread(self._file, length, offset)
        if entry_digest(data) != digest:
            raise _damaged(index)
        return data

    def close(self) -> None:
        """Gives the log up; another process may open it."""
        os.close(self._file)
        os.close(self._lock)

    def _recover(self, counter: int, last: bytes) -> None:
        size = os.fstat(self._file).st_size
        while self._end < size:
            header = os.pread(self._file, _HEADER, self._end)
            length = int.from_bytes(header[:_LENGTH], "little")
            if len(header) < _HEADER or not 0 < length <= MAX_TOKEN_BYTES:
                break
            data = os.pread(self._file, length, self._end + _HEADER)
            if len(data) < length or entry_digest(data) != header[_LENGTH:]:
                break
            self._places.append((self._end + _HEADER, length, header[_LENGTH:]))
            self._end += _HEADER + length
        if len(self._places) < counter or (counter and self._places[counter - 1][2] != last):
            raise _damaged(min(len(self._places), counter - 1))
        if len(self._places) > counter + 1:
            raise _damaged(counter + 1)
        if self._end < size:
            os.ftruncate(self._file, self._end)
            os.fsync(self._file)
        self._write_counter()

    def _read_counter(self) -> tuple[int, bytes]:
        try:
            data = (self._directory / "counter").read_bytes()
        except FileNotFoundError:
            return 0, GENESIS
        if len(data) != _COUNT + DIGEST_SIZE:
            raise ChipError("The chip's counter is damaged; inspect the chip on site.", code="chip.log.damaged")
        return int.from_bytes(data[:_COUNT], "little"), data[_COUNT:]

    def _write_counter(self) -> None:
        write_durably(self._directory / "counter", len(self._places).to_bytes(_COUNT, "little") + self.last)


def write_durably(path: Path, data: bytes) -> None:
    """Replaces a file so that after a crash it has either its old or its new content."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write_all(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _damaged(index: int) -> ChipError:
    return ChipError(
        f"Entry {index} of the chip's log is damaged or missing; inspect the chip on site.",
        code="chip.log.damaged",
        index=index,
    )
