"""Processes of services: how they are started, and how their address is learnt."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from weighbridge.cli.bench.layout import Service
from weighbridge.core.errors import WeighbridgeError

START_S = 180.0
STOP_S = 15.0


class ProcessError(WeighbridgeError):
    """A process of the bench or the demo failed; the message names its log."""

    code = "process.failed"


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment without what would choose an instruction set, with one thread, and `extra`."""
    out = {name: value for name, value in os.environ.items() if name not in ("ATEN_CPU_CAPABILITY", "PYTHONWARNINGS")}
    return {**out, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **extra}


def command_line(service: Service, *more: str) -> list[str]:
    """Returns the command that runs a service, with `more` arguments."""
    words = [*service.command.split(), *service.arguments, *more, "--address-file", str(service.address_file)]
    return [sys.executable, "-P", "-m", "weighbridge.cli", *words]  # -P: no file here is taken for a module


@contextmanager
def running(service: Service) -> Iterator[str]:
    """Runs a service until the end of the block and yields the address that it wrote.

    Raises:
        ProcessError: It ended, or wrote no address in time.
    """
    service.log.parent.mkdir(parents=True, exist_ok=True)
    with service.log.open("wb") as out:
        process = subprocess.Popen(
            command_line(service), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment({})
        )
    try:
        yield await_address(service, lambda: process.poll())
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_address(service: Service, ended: Callable[[], int | None]) -> str:
    """Returns the address that a service writes once it serves.

    Args:
        service: Which one.
        ended: Returns its exit code once it has ended.

    Raises:
        ProcessError: It ended, or wrote no address in time.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (address := read_address(service.address_file)) is not None:
            return address
        if (code := ended()) is not None:
            raise ProcessError(
                f"weighbridge {service.command} ended with {code} before it served{last_words(service.log)}"
            )
        time.sleep(0.05)
    raise ProcessError(f"weighbridge {service.command} wrote no address within {START_S:.0f} s; see {service.log}")


def read_address(path: Path) -> str | None:
    """Returns what is in an address file; None if there is none yet."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def last_words(log: Path) -> str:
    """Returns where a log is and the last line in it, for the end of a message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return f" ({lines[-1][:300]}); see {log}" if lines else f"; see {log}"
