"""Services that go on after the command that started them: started once, found again, stopped.

Each holds a lock for as long as it lives, which it inherits from the command that started it. So a file with the number
of a process that is gone, or that is another's by now, is never taken for a service.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from weighbridge.cli.bench.layout import Service
from weighbridge.cli.bench.processes import (
    START_S,
    STOP_S,
    ProcessError,
    await_address,
    command_line,
    environment,
    last_words,
    read_address,
)
from weighbridge.core.errors import UsageError

State = Literal["running", "stopped", "down"]
"""`stopped` by `weighbridge down`, or never started; `down`: it ended by itself, or was killed."""

_ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Status:
    """What has become of a service.

    Attributes:
        service: Which one.
        state: See `State`.
        pid: Its process if it runs; of the last one if it is down.
        address: Where it answers; None unless it runs.
        reason: Why it is down, as far as its log says.
    """

    service: Service
    state: State
    pid: int | None = None
    address: str | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the status for programs."""
        return {
            "service": self.service.name,
            "state": self.state,
            "pid": self.pid,
            "address": self.address,
            "log": str(self.service.log),
            "reason": self.reason or None,
        }


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keeps others from starting and stopping services of the same bench until the block ends.

    Raises:
        UsageError: Another does so now.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError("another `weighbridge up` or `down` is at work on this bench; wait for it") from None
        yield


class Background:
    """A service in the background; its lock and the number of its process are in one file."""

    def __init__(self, service: Service, directory: Path) -> None:
        """Takes a service, and the directory for the files of all."""
        self.service = service
        self._file = directory / f"{service.name.replace(' ', '-')}.process"
        self._child: subprocess.Popen[bytes] | None = None

    def status(self) -> Status:
        """Looks whether it runs."""
        pid = self._pid()
        if pid is None:
            return Status(self.service, "stopped")
        if not self._lives(pid):
            words = last_words(self.service.log).removeprefix("; ").strip()
            return Status(self.service, "down", pid, reason=words)
        return Status(self.service, "running", pid, read_address(self.service.address_file))

    def start(self) -> None:
        """Starts it; `served` waits until it serves. It serves where it did before, if that port is free."""
        before = read_address(self.service.address_file)
        self._spawn(before if before is not None and _free(before) else _ANY_PORT)

    def _spawn(self, address: str) -> None:
        self.service.address_file.unlink(missing_ok=True)
        for path in (self._file, self.service.log, self.service.address_file):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file.unlink(
            missing_ok=True
        )  # what a killed service left behind may still hold the lock of the former one
        with self._file.open("w") as file, self.service.log.open("ab") as log:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._child = subprocess.Popen(
                command_line(self.service, "--address", address),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment({}), start_new_session=True,
                pass_fds=[file.fileno()],
            )  # fmt: skip
            json.dump({"pid": self._child.pid}, file)

    def served(self) -> str:
        """Waits until a service that was started serves; returns its address.

        Raises:
            ProcessError: It ended, or wrote no address within a minute.
        """
        try:
            return await_address(self.service, self._poll)
        except ProcessError:
            if self._poll() is None or "Cannot listen at" not in last_words(self.service.log):
                self.stop()
                raise
        self._spawn(_ANY_PORT)  # another process took the port meanwhile
        return await_address(self.service, self._poll)

    def _poll(self) -> int | None:
        return None if self._child is None else self._child.poll()

    def stop(self) -> bool:
        """Ends it, in order if it can; returns whether it ran."""
        pid = self._pid()
        ran = pid is not None and self._lives(pid)
        if pid is not None and ran:
            self._signal(pid, signal.SIGTERM)
            if not self._gone(pid, STOP_S):
                self._signal(pid, signal.SIGKILL)
                self._gone(pid, START_S)
        self._file.unlink(missing_ok=True)
        return ran

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _gone(self, pid: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._lives(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def _pid(self) -> int | None:
        try:
            pid = json.loads(self._file.read_text())["pid"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return pid if type(pid) is int and pid > 1 else None

    def _lives(self, pid: int) -> bool:
        """Whether the process of the file is the one that was started: only that one, or what it left, has the lock."""
        if self._child is not None and self._child.pid == pid and self._poll() is not None:
            return False
        try:
            with self._file.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            pass
        except OSError:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def _free(address: str) -> bool:
    """Whether a service can listen at an address, as far as one can tell."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
        except (OSError, ValueError, OverflowError):
            return False
    return True
