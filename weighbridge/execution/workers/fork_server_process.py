"""The fork server: `workers.fork_server_process FD` imports what workers need and forks one when it is asked to.

FD is a socket to its parent, `weighbridge.execution.fork_server`. It starts no thread: a fork takes none along.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch._dynamo  # the shape functions of some operations import it
import torch._refs

from weighbridge.core import jit
from weighbridge.execution.fork_server import MESSAGE_BYTES, PARENT, end_with_parent
from weighbridge.execution.workers import (  # noqa: F401 (most workers need what these import)
    job_questions_worker,
    job_worker,
    replay_worker,
    transcript_facts_worker,
)
from weighbridge.numerics.warm import warm, warm_decoders


def main() -> None:
    """Runs a fork server: forks workers until the other end of the socket is closed."""
    parent = socket.socket(fileno=int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whatever the thread that started this had blocked
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's; the parent decides
    try:
        warm_decoders()
        _warm(parent)
        parent.send(json.dumps({"ready": True}).encode())
    except BrokenPipeError:  # it ended meanwhile
        return
    gc.collect()
    gc.freeze()  # what is never collected is not copied for each worker
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    workers: dict[int, int] = {}  # the number of each by process identifier
    while True:
        ready, _, _ = select.select([parent.fileno(), woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, MESSAGE_BYTES)
            _report(parent, workers)
        if parent.fileno() in ready:
            data, pipes, _, _ = socket.recv_fds(parent, MESSAGE_BYTES, 3)
            if not data:
                break
            message = json.loads(data)
            if "kill" in message:
                for process in [each for each, number in workers.items() if number == message["kill"]]:
                    os.kill(process, signal.SIGKILL)
                continue
            own = os.getpid()
            process = os.fork()
            if not process:
                for end in (parent.detach(), woken, wake):
                    os.close(end)
                _be_worker(message["module"], message["scratch"], pipes, own)
            workers[process] = message["number"]
            for end in pipes:
                os.close(end)
    for process in workers:
        os.kill(process, signal.SIGKILL)


def _warm(parent: socket.socket) -> None:
    """Loads compiled loops here, unless that would start threads, which a fork does not take along.

    If it would, each worker loads them by itself. It can keep nothing, so what is to be compiled a process that is no
    worker compiles.
    """

    def progress(done: int, total: int) -> None:
        parent.send(json.dumps({"compiling": [done, total]}).encode())

    if torch.get_num_threads() == 1:
        warm(progress)
    elif jit.lacks():
        process = os.fork()
        if not process:
            end_with_parent()
            try:
                warm(progress)
            finally:
                os._exit(0)  # if it failed, workers compile what they lack
        os.waitpid(process, 0)


def _report(parent: socket.socket, workers: dict[int, int]) -> None:
    """Tells the parent which workers have ended."""
    while workers:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            parent.send(json.dumps({"number": workers.pop(process), "code": code}).encode())


def _be_worker(module: str, scratch: str, pipes: list[int], fork_server: int) -> None:
    """Runs a module's `main` as if this process had been started for it; does not return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for standard, end in enumerate(pipes):
            os.dup2(end, standard)
            os.close(end)
        os.environ.update({"TMPDIR": scratch, PARENT: str(fork_server)})
        tempfile.tempdir = None  # the cached one is the fork server's
        os.chdir(scratch)
        Path("/proc/self/comm").write_text(module.rpartition(".")[2][:15])  # what it is called by `ps` and `top`
        importlib.import_module(module).main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
