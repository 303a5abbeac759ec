"""Child processes of the demo: services that write their address to a file, and jobs that report their steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from weighbridge.core.errors import WeighbridgeError

_START_S = 60.0
_STOP_S = 15.0


class ProcessError(WeighbridgeError):
    """A child process of the demo failed; the message names its log."""

    code = "process.failed"


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment without what would choose an instruction set, with one thread, and `extra`."""
    out = {name: value for name, value in os.environ.items() if name not in ("ATEN_CPU_CAPABILITY", "PYTHONWARNINGS")}
    return {**out, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **extra}


@contextmanager
def service(command: str, arguments: Sequence[str], *, address_file: Path, log: Path) -> Iterator[str]:
    """Runs `weighbridge COMMAND` until the end of the block and yields the address that it wrote.

    Args:
        command: Its words, e.g. `serve prover`.
        arguments: Its command line, without the address file.
        address_file: Where it writes `host:port` once it serves; passed to it as `--address-file`.
        log: File for everything it prints.

    Raises:
        ProcessError: It ended, or wrote no address within a minute.
    """
    words = [*command.split(), *arguments, "--address-file", str(address_file)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "weighbridge.cli", *words],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment({}),
        )  # fmt: skip
    try:
        yield _await_address(process, command, address_file, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_address(process: subprocess.Popen[bytes], command: str, address_file: Path, log: Path) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if address_file.exists() and (address := address_file.read_text(encoding="utf-8").strip()):
            return address
        if process.poll() is not None:
            raise ProcessError(f"weighbridge {command} ended with {process.returncode} before it served; see {log}")
        time.sleep(0.05)
    raise ProcessError(f"weighbridge {command} wrote no address within {_START_S:.0f} s; see {log}")


class Job(threading.Thread):
    """One training job: a process whose progress is followed by a thread."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, on_step: Callable[[int, int, float], None]
    ) -> None:
        """Prepares a job; `start` starts it.

        Args:
            name: Of the job.
            arguments: Command line of `weighbridge.cli.demo.job`.
            log: File for what it says on standard error.
            on_step: Called with (steps done, steps in all, loss).
        """
        super().__init__(name=name, daemon=True)
        self._arguments, self._log, self._on_step = list(arguments), log, on_step
        self._process: subprocess.Popen[bytes] | None = None
        self.failure: ProcessError | None = None

    def run(self) -> None:
        """Runs the process to its end."""
        command = [sys.executable, "-m", "weighbridge.cli.demo.job", *self._arguments]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment({})
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
                self._on_step(int(message["step"]), int(message["steps"]), float(message["loss"]))
            except (ValueError, KeyError, TypeError):
                continue  # some library printed something; its text is of no use here
        if self._process.wait():
            last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            self.failure = ProcessError(f"job {self.name} failed: {''.join(last) or 'no message'}; see {self._log}")

    def stop(self) -> None:
        """Ends the process if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()


def run_all(jobs: Sequence[Job], *, at_once: int) -> None:
    """Runs jobs, `at_once` at a time, in their order.

    Raises:
        ProcessError: One failed; the others are stopped.
    """
    waiting, running = list(jobs), list[Job]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(waiting.pop(0))
                running[-1].start()
            time.sleep(0.05)
            for job in [job for job in running if not job.is_alive()]:
                running.remove(job)
                if job.failure is not None:
                    raise job.failure
    finally:
        for job in running:
            job.stop()
        for job in running:
            job.join(_STOP_S)
