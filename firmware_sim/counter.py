"""The chip's monotonic counter: a small store of its own that no image of the NVRAM brings back (RPMB, fuses).

It holds how many entries the log has acknowledged and the digest of the newest, and only goes forwards. So a log that
was replaced by an older copy of itself is seen to be shorter than it was. `counter` in the chip's directory stands for
it: 8 bytes, little endian, and 32 bytes.
"""

from __future__ import annotations

import os
from pathlib import Path

from weighbridge.attest.tokens import GENESIS
from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.durable import sync
from weighbridge.core.errors import ChipError

_COUNT = 8


class MonotonicCounter:
    """The counter of one chip.

    Attributes:
        value: Entries that were acknowledged.
        last: Digest of the newest of them (32 bytes); `GENESIS` if there is none.
    """

    def __init__(self, directory: Path) -> None:
        """Reads the counter; one that was never advanced is zero.

        Raises:
            ChipError: It is unreadable (`chip.log.damaged`).
        """
        self._path = directory / "counter"
        self.value, self.last = 0, GENESIS
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        if len(data) != _COUNT + DIGEST_SIZE:
            raise ChipError("The chip's counter is damaged; inspect the chip on site.", code="chip.log.damaged")
        self.value, self.last = int.from_bytes(data[:_COUNT], "little"), data[_COUNT:]

    def advance(self, value: int, last: bytes) -> None:
        """Makes a higher count durable; a lower one is a fault of the firmware.

        Raises:
            OSError: The store does not take it.
        """
        assert value >= self.value, "a monotonic counter never goes back"
        write_durably(self._path, value.to_bytes(_COUNT, "little") + last)
        self.value, self.last = value, last


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
