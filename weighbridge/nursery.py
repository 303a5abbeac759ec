"""A process that workers are forked from, so that PyTorch is imported once and not by each of them.

Threads and gRPC do not go with `fork`. So the nursery is a fresh program that only imports: it starts no thread, opens
nothing and is told nothing but the ends of three pipes for each worker, which confines itself before it reads what a
Prover sent. The nursery ends when its parent does, and its workers with it.

This is its parent's side; `weighbridge.nursery_process` is the nursery.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from itertools import count
from typing import IO

PARENT = "WEIGHBRIDGE_PARENT"
"""Tells a worker whose it is: if that process is gone before the worker is confined, nobody wants its answer."""

SUPPORTED = sys.platform == "linux"
"""Whether this system has what a nursery needs: message sockets, and workers that end with whoever started them."""

MESSAGE_BYTES = 65536
_LOST = -int(signal.SIGKILL)
_KEPT = 4
"""Nurseries that a process keeps, each for another environment, and each with PyTorch in its memory."""


class Worker:
    """A worker process; what this offers is a part of what `subprocess.Popen` does, and means the same."""

    def __init__(self, nursery: Nursery, number: int, pipes: tuple[int, int, int]) -> None:
        """Takes the parent's ends of the worker's standard input, output and errors."""
        self._nursery, self._number = nursery, number
        self._code: int | None = None
        self._ended = threading.Event()
        self.stdin: IO[bytes] = os.fdopen(pipes[0], "wb")
        self.stdout: IO[bytes] = os.fdopen(pipes[1], "rb")
        self.stderr: IO[bytes] = os.fdopen(pipes[2], "rb")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):  # what was written last may have nobody who reads it
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Returns the exit code, or minus the signal that ended it; None while it runs."""
        return self._code

    def wait(self) -> int:
        """Waits for the end; returns as `poll`."""
        self._ended.wait()
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """Ends it; no harm if it has ended."""
        self._nursery.tell({"kill": self._number})

    def end_with(self, code: int) -> None:
        """Takes in how it ended."""
        self._code = code
        self._ended.set()


class Nursery:
    """The parent's side of a nursery; safe to use from several threads.

    A nursery that somebody killed takes its workers with it: they count as killed, and no others can be started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Starts one; its workers have `environment` and a `TMPDIR`."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._numbers, self._workers, self._alive = count(), dict[int, Worker](), True
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "weighbridge.nursery_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=dict(environment),
                cwd="/",
            )
        threading.Thread(target=self._listen, name="nursery", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether workers can be started."""
        return self._alive

    @property
    def is_idle(self) -> bool:
        """Whether no worker runs."""
        return not self._workers

    def start(self, module: str, scratch: str) -> Worker:
        """Starts a worker that runs `main` of a module, in a directory of its own."""
        pairs = [os.pipe() for _ in range(3)]
        theirs = [pairs[0][0], pairs[1][1], pairs[2][1]]
        number = next(self._numbers)
        worker = Worker(self, number, (pairs[0][1], pairs[1][0], pairs[2][0]))
        message = json.dumps({"number": number, "module": module, "scratch": scratch}).encode()
        with self._lock:
            self._workers[number] = worker
            try:
                socket.send_fds(self._socket, [message], theirs)
            except OSError:
                self._end_worker(number, _LOST)
        for end in theirs:
            os.close(end)
        return worker

    def tell(self, message: dict[str, int]) -> None:
        """Sends a message; a nursery that is gone needs none."""
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps(message).encode())

    def end(self) -> None:
        """Ends the nursery and the workers that it still has."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()  # it may be importing still
        self._process.wait()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._socket.recv(MESSAGE_BYTES):
                ended = json.loads(data)
                with self._lock:
                    self._end_worker(ended["number"], ended["code"])
        with self._lock:
            self._alive = False
            for number in list(self._workers):
                self._end_worker(number, _LOST)
            self._socket.close()
        self._process.wait()

    def _end_worker(self, number: int, code: int) -> None:
        self._workers.pop(number).end_with(code)


_NURSERIES: dict[frozenset[tuple[str, str]], Nursery] = {}
_LOCK = threading.Lock()


def start(module: str, environment: Mapping[str, str], scratch: str) -> Worker:
    """Starts a worker, in this process's nursery for such an environment.

    Args:
        module: Whose `main` it runs.
        environment: All of it, but for `TMPDIR`.
        scratch: A directory of its own, which it works in and has as `TMPDIR`.
    """
    key = frozenset(environment.items())
    with _LOCK:
        nursery = _NURSERIES.pop(key, None)
        if nursery is None or not nursery.alive:
            idle = [each for each, there in _NURSERIES.items() if there.is_idle]
            for other in idle[: max(0, len(_NURSERIES) + 1 - _KEPT)]:
                _NURSERIES.pop(other).end()
            nursery = Nursery(environment)
        _NURSERIES[key] = nursery  # the one that was used last is the last
        return nursery.start(module, scratch)
