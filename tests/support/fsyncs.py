"""Which files had their content made durable, and whether before or after they got their name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class Fsyncs:
    """Every call of `os.fsync` so far: (inode, size) of the file at that moment."""

    calls: list[tuple[int, int]] = field(default_factory=list)

    def __contains__(self, file: Path) -> bool:
        """Whether all that a file has now was made durable."""
        status = file.stat()
        return (status.st_ino, status.st_size) in self.calls


def watched(monkeypatch: pytest.MonkeyPatch) -> Fsyncs:
    """Watches `os.fsync`, and refuses `os.replace` of a file that was not made durable before."""
    seen, fsync, replace = Fsyncs(), os.fsync, os.replace

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        seen.calls.append((status.st_ino, status.st_size))

    def checking(source: Path, target: Path) -> None:
        assert Path(source) in seen, f"{target} gets its name before its content is durable"
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "replace", checking)
    return seen
