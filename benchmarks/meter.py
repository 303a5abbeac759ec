"""Time and memory of a process and of the processes that it starts, phase by phase, as Linux counts them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_TICK = os.sysconf("SC_CLK_TCK")
_PAUSE_S = 0.05
"""How often children are looked at; what they take in their last moments may be missed."""

Phase = dict[str, float]


class Meter:
    """Follows one process; use as a context manager.

    Attributes:
        phases: By name: seconds on the wall (`wall_s`), processor seconds of the process (`cpu_s`) and of its workers
            (`workers_cpu_s`); the most memory that the process had (`peak_bytes`), that one worker had
            (`worker_peak_bytes`), and that all had together (`workers_peak_bytes`, as far as it was seen; what they
            share is counted once).
        name: The phase that runs; empty if none does.
    """

    def __init__(self, pid: int) -> None:
        """Prepares to follow the process `pid`, which must be this user's."""
        self.phases: dict[str, Phase] = {}
        self._process = Path(f"/proc/{pid}")
        self.name, self._begun = "", (0.0, 0.0, 0.0)
        self._lock = threading.Lock()
        self._worker = self._workers = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def begin(self, name: str) -> None:
        """Ends the phase before and begins one; a phase that comes again is added to what it had."""
        self.end()
        (self._process / "clear_refs").write_text("5")  # the peak is that of the phase
        with self._lock:
            self._worker = self._workers = 0
        self.name, self._begun = name, (time.perf_counter(), *seconds(self._process))

    def end(self) -> None:
        """Ends the phase that runs, if any."""
        if not self.name:
            return
        wall, own, others = (
            now - then for now, then in zip((time.perf_counter(), *seconds(self._process)), self._begun, strict=True)
        )
        known = self.phases.setdefault(self.name, {"wall_s": 0.0, "cpu_s": 0.0, "workers_cpu_s": 0.0})
        for key, spent in (("wall_s", wall), ("cpu_s", own), ("workers_cpu_s", others)):
            known[key] = round(known[key] + spent, 3)
        with self._lock:
            peaks = {"worker_peak_bytes": self._worker, "workers_peak_bytes": self._workers}
        for key, size in {"peak_bytes": self.bytes("VmHWM"), **peaks}.items():
            known[key] = max(known.get(key, 0), size)
        self.name = ""

    def bytes(self, field: str = "VmRSS") -> int:
        """Memory that the process holds, or by its end had held at most (`VmHWM`)."""
        return _bytes(self._process, field)

    def _look(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            found = _below(self._process)
            peak = max((_bytes(each, "VmHWM") for each in found), default=0)
            held = sum(_bytes(each, "Pss", "smaps_rollup") for each in found)
            with self._lock:
                self._worker, self._workers = max(self._worker, peak), max(self._workers, held)


def seconds(process: Path = Path("/proc/self")) -> tuple[float, float]:
    """Processor seconds of a process (its place in /proc) so far, and of its workers and of what else has ended."""
    own, ended = _stat(process)
    return own, ended + sum(sum(_stat(each)) for each in _below(process) if _is_worker(each))


def _is_worker(process: Path) -> bool:
    """Whether it is a fork server or was forked from one."""
    try:
        return b"weighbridge.execution.workers.fork_server_process" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _stat(process: Path) -> tuple[float, float]:
    """Processor seconds of a process, and of those of its children that it has waited for; 0 of one that has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK, (int(fields[13]) + int(fields[14])) / _TICK


def _below(process: Path) -> list[Path]:
    """All processes that descend from one and still run."""
    try:
        tasks = list((process / "task").iterdir())
        found = [Path(f"/proc/{child}") for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it ended, or one of its threads did, in between
        return []
    return found + [each for child in found for each in _below(child)]


def _bytes(process: Path, field: str, file: str = "status") -> int:
    """Reads a size from /proc; 0 of a process that has ended."""
    try:
        lines = (process / file).read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":")), 0)
