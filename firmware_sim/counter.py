"""The chip's monotonic counter: a small store of its own that no image of the NVRAM brings back (an RPMB).

It holds how many entries the log has acknowledged, the newest of them, how many interrupts were raised, and whether one
of them stands. It is replaced as a whole, so an entry, its count and what it says of an interrupt are one transaction:
either all of them are durable or none is. The count only goes forwards, so a log that was replaced by an older copy of
itself is seen to be shorter than it was; and as the newest entry is here, a log that lacks no more than that is made
whole again. `counter` in the chip's directory stands for the store; docs/formats/chip-log.md has the bytes.
"""

from __future__ import annotations

import os
from pathlib import Path

from weighbridge.attest.tokens import GENESIS, MAX_TOKEN_BYTES, entry_digest
from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.durable import sync
from weighbridge.core.errors import ChipError

_COUNT = 8
_EARLIER = _COUNT + DIGEST_SIZE
_STANDING = _EARLIER + _COUNT
_HEADER = _STANDING + 1


class MonotonicCounter:
    """The counter of one chip.

    Attributes:
        value: Entries that were acknowledged.
        last: Digest of the newest of them (32 bytes); `GENESIS` if there is none.
        newest: The newest of them; empty if there is none, or if earlier firmware wrote the store.
        raised: Interrupts that were raised.
        standing: Whether the last of them has left no entry yet.
    """

    def __init__(self, directory: Path) -> None:
        """Reads the counter; one that was never advanced is zero.

        Raises:
            ChipError: It is unreadable (`chip.log.damaged`).
        """
        self._path = directory / "counter"
        self.value, self.last, self.newest, self.raised, self.standing = 0, GENESIS, b"", 0, False
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        self.value, self.last = int.from_bytes(data[:_COUNT], "little"), data[_COUNT:_EARLIER]
        if len(data) == _EARLIER:
            return  # Earlier firmware held neither interrupts nor the newest entry.
        self.raised, self.newest = int.from_bytes(data[_EARLIER:_STANDING], "little"), data[_HEADER:]
        self.standing = data[_STANDING:_HEADER] == b"\x01"
        last = entry_digest(self.newest) if self.newest else GENESIS
        whole = data[_STANDING:_HEADER] in (b"\x00", b"\x01") and len(self.newest) <= MAX_TOKEN_BYTES
        if not whole or last != self.last or bool(self.newest) != (self.value > 0):
            raise ChipError("The chip's counter is damaged; inspect the chip on site.", code="chip.log.damaged")

    def advance(self, entry: bytes, *, raises: bool = False, closes: bool = False) -> None:
        """Makes one more entry durable.

        Args:
            entry: The entry.
            raises: Whether it tells of an interrupt that nothing else has counted.
            closes: Whether it tells what became of the interrupt that stands.

        Raises:
            OSError: The store does not take it.
        """
        raised, standing = self.raised + raises, self.standing and not closes
        self._write(self.value + 1, entry_digest(entry), raised, standing, entry)

    def raise_interrupt(self) -> int:
        """Makes durable that an interrupt stands, and returns its number; it is the same one if one stands already.

        Raises:
            OSError: The store does not take it.
        """
        if not self.standing:
            self._write(self.value, self.last, self.raised + 1, True, self.newest)
        return self.raised

    def _write(self, value: int, last: bytes, raised: int, standing: bool, newest: bytes) -> None:
        counts = value.to_bytes(_COUNT, "little") + last + raised.to_bytes(_COUNT, "little") + bytes([standing])
        write_durably(self._path, counts + newest)
        self.value, self.last, self.newest, self.raised, self.standing = value, last, newest, raised, standing


def write_durably(path: Path, data: bytes) -> None:
    """Replaces a file so that after a crash it has either its old or its new content."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    sync(path.parent)


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Writes all of `data` at an offset, however little the system takes at a time."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
