"""How much the cache directory may hold: what was used longest ago makes room for what is fetched.

What is there is counted from the disk when a Verifier starts, the modification time of a transcript's directory says
when it was used last, and what an inspection uses is noted in files until it ends. So a Verifier that was killed goes
on where it was. Transcripts that Provers uploaded are not pruned, because they cannot be fetched again; uploads have
quotas of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weighbridge.core.errors import UsageError

JOB = "job-"
CELLS = "-cells"
"""Behind the name of a job's directory: where results of its collectives lie."""
PARTIAL = "partial-"
"""Begins the names of what is being written or removed; nothing of it is left when a Verifier starts."""
_HELD = "held"
SUPPLEMENTS = ".supplements"
"""Behind the name of a transcript: where its rounding logs that were made on demand lie."""
_PRUNABLE = re.compile(rf"[0-9a-f]{{64}}({re.escape(SUPPLEMENTS)})?|{JOB}[0-9a-f]{{64}}{CELLS}")


class StorageError(OSError):
    """The Verifier's own disk does not do what it should.

    It is no `WeighbridgeError`, so that no stage of an inspection takes it for something that a Prover did.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What the cache may take.

    Attributes:
        total: Bytes of fetched transcripts, of their supplements, and of what Provers sent for cells; None for any
            number.
        reserve: Bytes that must stay free on the disk.
    """

    total: int | None = None
    reserve: int = 0

    def __post_init__(self) -> None:
        """Refuses what would refuse everything (UsageError)."""
        if (self.total is not None and self.total < 1) or self.reserve < 0:
            raise UsageError("a cache needs at least one byte, and its reserve is no negative number of bytes")


class Room:
    """The room in a cache directory; safe to use from several threads."""

    def __init__(self, root: Path, budget: Budget) -> None:
        """Counts what is there.

        Args:
            root: The cache directory.
            budget: What it may take.
        """
        self._root, self._budget = root, budget
        self._lock = threading.RLock()
        self._spared: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._holder = ""
        for place in root.iterdir():
            self._count(place.name)

    @property
    def used(self) -> int:
        """Bytes that count against the budget."""
        with self._lock:
            return sum(size for name, size in self._sizes.items() if name not in self._spared)

    def spare(self, transcript_id: str) -> None:
        """Notes that a transcript was uploaded: it does not count against the budget, and is not pruned."""
        with self._lock:
            self._spared.add(transcript_id)

    def hold(self, inspection: str) -> None:
        """Notes whatever is used from now on as in use by this inspection, until it is released."""
        with self._lock:
            self._holder = inspection

    def release(self, *inspections: str) -> None:
        """Ends what inspections hold, removes jobs that were put together for them, and prunes to the budget."""
        with self._lock:
            if self._holder in inspections:
                self._holder = ""
            for each in inspections:
                shutil.rmtree(self._root / _HELD / each, ignore_errors=True)
            with suppress(OSError):  # it is not there, or other inspections hold something
                (self._root / _HELD).rmdir()
            for place in self._root.glob(f"{JOB}*"):
                if place.name.endswith(CELLS):
                    self._count(place.name)
                elif not self._holder:
                    shutil.rmtree(place, ignore_errors=True)  # links, which would keep what is pruned on the disk
            self._prune(0)

    def held(self) -> list[str]:
        """Returns the inspections that hold something, also those of former processes."""
        return sorted(place.name for place in (self._root / _HELD).glob("*"))

    def use(self, transcript_id: str) -> None:
        """Notes that a transcript is used now, whether it is here already or not.

        Raises:
            OSError: That cannot be written down.
        """
        with self._lock:
            if self._holder:
                note = self._root / _HELD / self._holder / transcript_id
                note.parent.mkdir(parents=True, exist_ok=True)
                note.touch()
            if self._budget.total is None:
                return  # nothing is pruned, so when it was used is not asked
            with suppress(FileNotFoundError):
                os.utime(self._root / transcript_id)

    def arriving(self, size: int, more: int) -> None:
        """Makes room for what is being fetched.

        Args:
            size: Bytes of it so far, those that come now included.
            more: Bytes that come now.

        Raises:
            StorageError: There is none; the message says what to do.
        """
        with self._lock:
            total = self._budget.total
            if total is not None and self.used + size > total:
                self._prune(size)
                if self.used + size > total:
                    raise StorageError(
                        f"the cache directory {self._root} may hold {total} bytes (--cache-bytes), and the inspection "
                        f"in progress uses {self.used} of them; raise that budget, or inspect fewer chips at once"
                    )
            free = shutil.disk_usage(self._root).free
            if free - more < self._budget.reserve:
                raise StorageError(
                    f"the disk of the cache directory {self._root} has {free} bytes left, and {self._budget.reserve} "
                    "must stay free (--cache-reserve); free space on that disk, or give --cache another one, and start "
                    "the inspection again"
                )

    def stored(self, transcript_id: str) -> None:
        """Counts a transcript that is here from now on, or is gone."""
        with self._lock:
            self._sizes.pop(transcript_id, None)
            self._count(transcript_id)

    def _count(self, name: str) -> None:
        place = self._root / name
        if _PRUNABLE.fullmatch(name) and place.is_dir():
            with suppress(FileNotFoundError):  # another process, which fetches into the directory, pruned it meanwhile
                self._sizes[name] = sum(each.stat().st_size for each in place.rglob("*") if each.is_file())

    def _in_use(self) -> Collection[str]:
        return {note.name for note in (self._root / _HELD).glob("*/*")}

    def _prune(self, arriving: int) -> None:
        """Removes what was used longest ago until there is room, but nothing that is in use."""
        total = self._budget.total
        if total is None or self.used + arriving <= total:
            return
        used = self._in_use()
        names = [name for name in self._sizes if name not in used and name not in self._spared]
        if self._holder:
            names = [name for name in names if not name.endswith(CELLS)]
        for name in sorted(names, key=self._last_used):
            if self.used + arriving <= total:
                return
            place, gone = self._root / name, self._root / f"{PARTIAL}{name}"
            with suppress(FileNotFoundError):
                place.rename(gone)  # so that it is never there in part
                shutil.rmtree(gone)
            del self._sizes[name]

    def _last_used(self, name: str) -> int:
        try:
            return (self._root / name).stat().st_mtime_ns
        except FileNotFoundError:  # it was removed by hand
            return 0
