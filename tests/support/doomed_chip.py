"""Chips in processes that lose their power at a chosen moment: right before the n-th time that they touch their store.

`Nursery` starts this file as a program. It imports the chip once, and forks a process for each that is wanted: that is
much quicker than to start Python again, and each is a chip with a process of its own all the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TOUCHES = ("pwrite", "fsync", "rename")
"""Calls of `os` by which anything becomes durable. A write that the power cuts short has done half of its work."""


class Nursery:
    """Starts chips that can be doomed; use as a context manager."""

    def __enter__(self) -> Self:
        command = [sys.executable, __file__]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def start(self, fuse: Path, address_file: Path, options: Sequence[str]) -> int:
        """Starts a chip and waits until it serves; returns its process's number.

        Args:
            fuse: File that dooms the chip once it exists: it holds how many touches it still survives.
            address_file: As in `options`; removed first.
            options: Of `firmware_sim.chip`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        address_file.unlink(missing_ok=True)
        self._process.stdin.write("\t".join([str(fuse), *options]) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        while not address_file.exists():
            assert runs(pid), "the chip did not start"
            time.sleep(0.005)
        return pid


def runs(pid: int) -> bool:
    """Whether a chip's process is there; until its last thread has ended it holds the chip's files."""
    return Path(f"/proc/{pid}").exists()


def _doom(fuse: Path) -> None:
    """Replaces the calls that touch the store by ones that look at the fuse first."""

    def doomed(call: Callable[..., Any]) -> Callable[..., Any]:
        def touch(*arguments: Any, **more: Any) -> Any:
            if fuse.exists():
                left = int(fuse.read_text())
                if left == 0:
                    if call is pwrite:
                        descriptor, data, offset = arguments
                        pwrite(descriptor, bytes(data)[: len(data) // 2], offset)
                    os.kill(os.getpid(), signal.SIGKILL)
                fuse.write_text(str(left - 1))
            return call(*arguments, **more)

        return touch

    pwrite = os.pwrite
    for name in TOUCHES:
        setattr(os, name, doomed(getattr(os, name)))


def _serve() -> None:
    from firmware_sim import chip

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for a chip.
    for line in sys.stdin:
        fuse, *options = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            os.close(0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _doom(Path(fuse))
            os._exit(chip.main(options))
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
