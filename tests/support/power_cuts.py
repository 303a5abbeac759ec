"""Takes a chip's power at a moment between an interrupt and its snapshot, and puts an older image of its NVRAM back."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.doomed_chip import Nursery, runs

from firmware_sim import ChipProcess, Shim
from firmware_sim.frames import Connection
from weighbridge.core.errors import ChipError, FormatError

REPORT = {
    **dict.fromkeys(["held", "stall_us", "unobserved"], 0),
    **{"leaves": b"", "weights": b"", "safepoint": False, "head": b"", "running": b"", "step": -1, "op": -1},
}
"""A snapshot of a workload without memory, as a shim reports it."""
OLDER = "older"
"""What the image of the NVRAM is called in a chip's directory."""


@dataclass(frozen=True)
class Cut:
    """What came of one cut.

    Attributes:
        announced: Whether the workload heard of the interrupt.
        durable: Whether it was told that the snapshot is durable.
        alive: Whether the chip lived through both.
    """

    announced: bool
    durable: bool
    alive: bool


@dataclass
class PowerCuts:
    """Starts chips that lose their power.

    Attributes:
        path: Directory for the chips' addresses and sockets.
        credentials: Directory of their role certificate.
        nursery: Where they run.
    """

    path: Path
    credentials: Path
    nursery: Nursery

    def start(self, chip: Path, rate_per_day: float = 0.0) -> tuple[int, Connection]:
        """Starts a chip that can be doomed; returns its process and a link to it."""
        address, end = self.path / "address", socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        options = ["--dir", str(chip), "--rate", repr(rate_per_day), "--allow-forced"]
        options += ["--credentials", str(self.credentials)]
        options += ["--address-file", str(address), "--socket", str(self.path / "shim")]
        pid = self.nursery.start(chip / "fuse", address, options)
        end.connect(str(self.path / "shim"))
        return pid, Connection(end)

    def cut(self, chip: Path, touches: int, rate_per_day: float = 0.0) -> Cut:
        """Interrupts a workload and takes the power at a chosen touch of the chip's store.

        An image of the NVRAM from before the interrupt is then in the chip's directory.
        """
        pid, connection = self.start(chip, rate_per_day)
        assert "ok" in ask(connection, {"do": "hello"})[0]
        shutil.copytree(chip / "nvram", chip / OLDER)
        (chip / "fuse").write_text(str(touches))
        said = ask(connection, {"do": "force"}) + ask(connection, {"do": "snapshot", **REPORT})
        alive = (chip / "fuse").exists() and int((chip / "fuse").read_text()) > 0 and "index" in said[-1]
        (chip / "fuse").write_text("0")
        ask(connection, {"do": "event", "name": "the end", "digest": bytes(32)})
        connection.close()
        wait_for_end(pid)
        (chip / "fuse").unlink()
        return Cut(any("interrupt" in each for each in said), any("index" in each for each in said), alive)


def set_back(chip: Path) -> None:
    """Puts the older image in place of the NVRAM of a chip that is off."""
    shutil.rmtree(chip / "nvram")
    shutil.move(chip / OLDER, chip / "nvram")


def ask(connection: Connection, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what the chip says up to its answer; fewer messages if the power goes."""
    said: list[dict[str, Any]] = []
    try:
        connection.send(message)
        while not said or "interrupt" in said[-1]:
            answer = connection.receive()
            if answer is None:
                break
            said.append(answer)
    except (OSError, FormatError):
        pass
    return said


def wait_for_end(pid: int) -> None:
    """Waits until a chip's process has gone."""
    while runs(pid):
        time.sleep(0.005)


def cut_after(process: ChipProcess, home: Path, work: Callable[[Shim], object], *, older: bool) -> None:
    """Has a workload run on a chip until it returns, takes the chip's power at that moment, and starts it again.

    Args:
        process: A chip that runs.
        home: Its directory.
        work: The workload.
        older: Whether an image of the NVRAM from before the workload is put in its place.
    """
    with suppress(ChipError), Shim.connect(process.socket) as shim:
        if older:
            shutil.copytree(home / "nvram", home / OLDER)
        work(shim)
        process.kill()
    if older:
        set_back(home)
    process.start()
