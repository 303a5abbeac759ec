"""The page in which a chip counts: the shim adds to it kernel by kernel, and the chip reads it at any time.

`work` in the chip's directory stands for registers on the chip; it is mapped into both processes. So nothing that a
workload does or leaves undone takes work back: not detaching, not being killed, and not a power cut of the chip. The
file holds, in the machine's byte order:

- the number of slots that were taken (8 bytes), and the totals before any slot (5 numbers of 16 bytes, little endian);
- from byte 4096 on, slots of 5 counters of 8 bytes, in the order of `weighbridge.attest.work.Work`.

A slot has one writer, a thread, and its counters only grow; the totals are the sum of everything. Words of 8 bytes are
written and read whole, so a reader needs no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
from pathlib import Path

from weighbridge.attest.work import END, NAMES, NONE, Work
from weighbridge.core.errors import ChipError

SLOTS = 4096
SLOT = struct.Struct(f"@{len(NAMES)}Q")
MOST = (1 << 64) - 1
"""What a counter of a slot holds at most; then its thread takes another slot."""

_HEADER = 4096
_COUNT = struct.Struct("@Q")
_WIDE = 16
_SIZE = _HEADER + SLOTS * SLOT.size


class Slots:
    """The page as the shim sees it; without a chip, one of its own."""

    def __init__(self, path: str | Path | None = None) -> None:
        """Maps the page.

        Args:
            path: Its file; None for a page of this process alone.

        Raises:
            ChipError: There is none.
        """
        self._file = -1
        self._taking = threading.Lock()
        try:
            if path is not None:
                self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self.memory = mmap.mmap(self._file, _SIZE)
        except (OSError, ValueError) as error:
            self.close()
            raise ChipError(f"The chip's counters cannot be reached ({error}); restart it.") from error

    def take(self) -> int:
        """Returns the offset of a slot of zeros that no other thread, of any process, writes to.

        Raises:
            ChipError: All are taken; the chip makes room when no workload is attached.
        """
        with self._taking:
            if self._file >= 0:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                (taken,) = _COUNT.unpack_from(self.memory)
                if taken >= SLOTS:
                    raise ChipError("Too many threads have run kernels on this chip; detach, then attach again.")
                _COUNT.pack_into(self.memory, 0, taken + 1)
            finally:
                if self._file >= 0:
                    fcntl.lockf(self._file, fcntl.LOCK_UN)
        return int(_HEADER + taken * SLOT.size)

    def forked(self) -> None:
        """Goes on in a forked process; a thread of the parent's may have held the lock."""
        self._taking = threading.Lock()

    def close(self) -> None:
        """Gives up the file; what is mapped stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class WorkPage:
    """The page as the chip sees it.

    Attributes:
        path: Its file.
    """

    def __init__(self, directory: Path, floor: Work) -> None:
        """Reads what earlier boots counted.

        Args:
            directory: The chip's directory.
            floor: What its newest log entry says; an older image of the page does not take that back.
        """
        self.path = (directory / "work").resolve()
        self._slots: Slots | None = None
        self._base = floor
        with contextlib.suppress(FileNotFoundError):
            self._base = floor.at_least(_sum(self.path.read_bytes()))
        self._said = self._base

    def attach(self) -> None:
        """Makes the page ready for a workload; call it only while none is attached.

        Raises:
            ChipError: It cannot be made (`chip.log.write`).
        """
        if self._slots is not None and 2 * _COUNT.unpack_from(self._slots.memory)[0] <= SLOTS:
            return
        base = self.totals()
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            with temporary.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                numbers = (getattr(base, name).to_bytes(_WIDE, "little") for name in NAMES)
                file.write(_COUNT.pack(0) + b"".join(numbers))
                file.truncate(_SIZE)
            temporary.rename(self.path)
        except OSError as error:
            raise ChipError(f"The counters cannot be written ({error}); free space.", code="chip.log.write") from error
        if self._slots is not None:
            self._slots.close()
        self._slots = Slots(self.path)

    def totals(self) -> Work:
        """Returns all work over the chip's life. It is never less than it was."""
        found = self._base if self._slots is None else _sum(self._slots.memory)
        self._said = self._said.at_least(found)
        return self._said

    def close(self) -> None:
        """Gives up the file."""
        if self._slots is not None:
            self._slots.close()


def _sum(page: bytes | mmap.mmap) -> Work:
    if len(page) != _SIZE:
        return NONE
    wide = page[_COUNT.size : _COUNT.size + _WIDE * len(NAMES)]
    totals = [int.from_bytes(wide[at : at + _WIDE], "little") for at in range(0, len(wide), _WIDE)]
    taken = min(_COUNT.unpack_from(page)[0], SLOTS)
    for slot in SLOT.iter_unpack(page[_HEADER : _HEADER + taken * SLOT.size]):
        totals = [total + each for total, each in zip(totals, slot, strict=True)]
    return Work(**{name: min(total, END - 1) for name, total in zip(NAMES, totals, strict=True)})
