"""A process that workers are forked from, so that PyTorch is imported once and not by each of them.

Threads and gRPC do not go with `fork`. So the fork server is a fresh program that only imports: it starts no thread,
opens nothing and is told nothing but the ends of three pipes for each worker, which confines itself before it reads
what a Prover sent. The fork server ends when its parent does, and its workers with it.

This is its parent's side; `weighbridge.execution.workers.fork_server_process` is the fork server.
"""

from __future__ import annotations

import contextlib
import ctypes
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

from weighbridge.core.announcement import compiling

PARENT = "WEIGHBRIDGE_PARENT"
"""Tells a worker whose it is: if that process is gone before the worker is confined, its answer is not wanted."""

SEALED = "WEIGHBRIDGE_SEALED"
"""Tells a worker that all of this machine that it could see is a sealed session's: it has no namespaces to enter."""

SUPPORTED = sys.platform == "linux"
"""Whether this system has what a fork server needs: message sockets, and workers that end with their parent."""

MESSAGE_BYTES = 65536
_LOST = -int(signal.SIGKILL)
_KEPT = 4
"""Nurseries that a process keeps, each for another environment, and each with PyTorch in its memory."""


_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Has the kernel kill this process as soon as its parent ends, on Linux; one whose parent is gone asks too late."""
    if SUPPORTED:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Worker:
    """A worker process; what this offers is a part of what `subprocess.Popen` does, and means the same."""

    def __init__(self, fork_server: ForkServer, number: int, pipes: tuple[int, int, int]) -> None:
        """Takes the parent's ends of the worker's standard input, output and errors."""
        self._fork_server, self._number = fork_server, number
        self._code: int | None = None
        self._ended = threading.Event()
        self.stdin: IO[bytes] = os.fdopen(pipes[0], "wb")
        self.stdout: IO[bytes] = os.fdopen(pipes[1], "rb")
        self.stderr: IO[bytes] = os.fdopen(pipes[2], "rb")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):  # the reader of what was written last may be gone
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
        self._fork_server.kill(self._number)

    def end_with(self, code: int) -> None:
        """Takes in how it ended."""
        self._code = code
        self._ended.set()


class ForkServer:
    """The parent's side of a fork server; safe to use from several threads.

    A fork server that is killed takes its workers with it: they count as killed, and no others can be started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Starts one; its workers have `environment` and a `TMPDIR`."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._numbers, self._workers, self._alive, self._ready = count(), dict[int, Worker](), True, False
        self._heard = threading.Event()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "weighbridge.execution.workers.fork_server_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=dict(environment),
                cwd="/",
            )
        threading.Thread(target=self._listen, name="fork-server", daemon=True).start()

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

    def kill(self, number: int) -> None:
        """Ends a worker; one that was not forked yet, and that no other waits with, by ending the fork server."""
        with self._lock:
            if not self._ready and list(self._workers) == [number]:  # compiling, it hears nothing for a minute
                self._alive = False
                self._process.kill()
                return
        with contextlib.suppress(OSError):  # a fork server that is gone needs no message
            self._socket.send(json.dumps({"kill": number}).encode())

    def wait_until_ready(self) -> bool:
        """Waits until it has imported all that workers need; returns whether it has, or has ended before."""
        self._heard.wait()
        return self._ready

    def end(self) -> None:
        """Ends the fork server and the workers that it still has."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()  # it may be importing still
        self._process.wait()

    def _listen(self) -> None:
        announcement = compiling()
        with contextlib.suppress(OSError):
            while data := self._socket.recv(MESSAGE_BYTES):
                message = json.loads(data)
                if "compiling" in message:
                    announcement(*message["compiling"])
                    continue
                if "ready" in message:
                    self._ready = True
                    self._heard.set()
                    continue
                with self._lock:
                    self._end_worker(message["number"], message["code"])
        self._heard.set()
        with self._lock:
            self._alive = False
            for number in list(self._workers):
                self._end_worker(number, _LOST)
            self._socket.close()
        self._process.wait()

    def _end_worker(self, number: int, code: int) -> None:
        self._workers.pop(number).end_with(code)


_FORK_SERVERS: dict[frozenset[tuple[str, str]], ForkServer] = {}
_LOCK = threading.Lock()


def start(module: str, environment: Mapping[str, str], scratch: str) -> Worker:
    """Starts a worker, in this process's fork server for such an environment.

    Args:
        module: Whose `main` it runs.
        environment: All of it, but for `TMPDIR`.
        scratch: A directory of its own, which it works in and has as `TMPDIR`.
    """
    with _LOCK:
        return _for(environment).start(module, scratch)


def prepare(environment: Mapping[str, str]) -> bool:
    """Starts the fork server for such an environment, for a process that may start no program later.

    Returns:
        Whether workers can be started.
    """
    with _LOCK:
        fork_server = _for(environment)
    return fork_server.wait_until_ready()


def alive(environment: Mapping[str, str]) -> bool:
    """Whether there is a fork server for such an environment, and workers can be started by it."""
    with _LOCK:
        found = _FORK_SERVERS.get(frozenset(environment.items()))
        return found is not None and found.alive


def _for(environment: Mapping[str, str]) -> ForkServer:
    key = frozenset(environment.items())
    fork_server = _FORK_SERVERS.pop(key, None)
    if fork_server is None or not fork_server.alive:
        idle = [each for each, there in _FORK_SERVERS.items() if there.is_idle]
        for other in idle[: max(0, len(_FORK_SERVERS) + 1 - _KEPT)]:
            _FORK_SERVERS.pop(other).end()
        fork_server = ForkServer(environment)
    _FORK_SERVERS[key] = fork_server  # the one that was used last is the last
    return fork_server
