"""Training jobs as child processes that report their steps."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from weighbridge.cli.bench.processes import STOP_S, ProcessError, environment


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
        command = [sys.executable, "-P", "-m", "weighbridge.cli.demo.job", *self._arguments]
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
            job.join(STOP_S)
