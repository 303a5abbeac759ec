"""How fast a script trains: moments of its optimizers' steps, and where in the program one step spends its time."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prover.capture.step_capture import wraps
from prover.capture.user_line import text_of, user_place
from weighbridge.numerics.schemas import Op


class Enough(SystemExit):
    """Ends an examined script; what it has shown is enough."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(slots=True)
class LineTimes:
    """Seconds by line of the program and operation."""

    seconds: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)

    def add(self, func: Op, seconds: float) -> None:
        """Adds one operation of the line that runs."""
        if func.namespace == "profiler":
            return
        place, name = user_place() or ("", 0), str(func).removesuffix(".default")
        operations = self.seconds.setdefault(place, {})
        operations[name] = operations.get(name, 0.0) + seconds
        self.calls[place] += 1

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the lines, the slowest first."""
        return [
            {
                "line": text_of(place) if place[1] else "",
                "seconds": sum(operations.values()),
                "calls": self.calls[place],
                "operation": max(operations, key=operations.__getitem__),
            }
            for place, operations in sorted(self.seconds.items(), key=lambda each: -sum(each[1].values()))
        ]


class TimedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times every operation of a program that is not recorded."""

    def __init__(self, lines: LineTimes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lines = lines

    def __torch_dispatch__(self, func: Op, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t is not torch.Tensor and wraps(t) for t in types):
            return NotImplemented
        begin = time.perf_counter()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._lines.add(func, time.perf_counter() - begin)


def now() -> float:
    """Returns the time in seconds once all devices are idle."""
    if torch.accelerator.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


def peaks() -> dict[str, int]:
    """Returns the most memory that this process has had, in bytes."""
    found = {"host": _peak_on_host()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["accelerator"] = int(torch.cuda.max_memory_allocated())
    return found


def _peak_on_host() -> int:
    """The most memory that this program has had; `getrusage` on Linux counts that of the one which started it too."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
