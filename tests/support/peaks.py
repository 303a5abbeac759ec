"""How much memory and time a piece of work takes in this process, at its worst."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Peak:
    """What a block took: bytes of resident memory beyond those before it, and seconds of processor time."""

    bytes: int = 0
    seconds: float = 0.0


def _kibibytes(name: str) -> int:
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(f"{name}:"))
    return int(line.split()[1])


@contextmanager
def peak() -> Iterator[Peak]:
    """Measures a block; its result is there when the block is left. Linux only."""
    found = Peak()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, begun = _kibibytes("VmRSS"), time.process_time()
    try:
        yield found
    finally:
        found.seconds = time.process_time() - begun
        found.bytes = max(0, _kibibytes("VmHWM") - before) << 10
