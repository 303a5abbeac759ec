"""The power goes at each moment between an interrupt and its snapshot: the interrupt leaves a trace in any case.

The chip is a process of its own. It dies right before one of the calls that make something durable, and in the middle
of each write; and then it may find the NVRAM as it was before the interrupt.
"""

import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.doomed_chip import Nursery, runs

from firmware_sim import device, fsck
from firmware_sim.firmware import Firmware
from firmware_sim.frames import Connection
from firmware_sim.nvlog import NonVolatileLog
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import ChipError, FormatError

REPORT = {
    **dict.fromkeys(["held", "kernels", "flops", "stall_us", "unobserved"], 0),
    **{"leaves": b"", "weights": b"", "safepoint": False, "head": b"", "running": b"", "step": -1, "op": -1},
}


@dataclass
class Bench:
    """A provisioned chip, and what starts it."""

    path: Path
    manufacturer: CertificateAuthority
    nursery: Nursery

    def start(self, chip: Path) -> tuple[int, Connection]:
        """Starts a chip that can be doomed; returns its process and a link to it."""
        address, end = self.path / "address", socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        options = ["--dir", str(chip), "--rate", "0", "--allow-forced", "--credentials", str(self.path / "credentials")]
        options += ["--address-file", str(address), "--socket", str(self.path / "shim")]
        pid = self.nursery.start(chip / "fuse", address, options)
        end.connect(str(self.path / "shim"))
        return pid, Connection(end)

    def boot(self, chip: Path) -> list[tokens.Token]:
        """Starts a chip once more; returns its verified log."""
        with NonVolatileLog(chip) as log:
            firmware = Firmware(chip, device.boot(chip), log, rate_per_day=0, clock_speed=1, hold=1)
            entries = [data for _, data in firmware.entries(0, len(log))]
        return [each.token for each in tokens.verify_log(entries, self.manufacturer.certificate)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("bench")
    manufacturer = CertificateAuthority.create("Manufacturer")
    CertificateAuthority.create("Station").issue_role("chip", "chip").save(path / "credentials")
    device.provision(path / "chip", manufacturer)
    with Nursery() as nursery:
        yield Bench(path, manufacturer, nursery)


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
    while runs(pid):
        time.sleep(0.005)


def cut(bench: Bench, chip: Path, touches: int) -> tuple[bool, bool, bool]:
    """Interrupts a workload and takes the power at a chosen touch of the store, with an image of the NVRAM from before.

    Returns:
        Whether the workload heard of the interrupt; whether it was told that the snapshot is durable; whether the chip
        lived through it.
    """
    pid, connection = bench.start(chip)
    assert "ok" in ask(connection, {"do": "hello"})[0]
    shutil.copytree(chip / "nvram", chip / "older")
    (chip / "fuse").write_text(str(touches))
    said = ask(connection, {"do": "force"}) + ask(connection, {"do": "snapshot", **REPORT})
    alive = (chip / "fuse").exists() and int((chip / "fuse").read_text()) > 0 and "index" in said[-1]
    (chip / "fuse").write_text("0")
    ask(connection, {"do": "event", "name": "the end", "digest": bytes(32)})
    connection.close()
    wait_for_end(pid)
    (chip / "fuse").unlink()
    return any("interrupt" in each for each in said), any("index" in each for each in said), alive


@pytest.mark.parametrize("older", [False, True])
def test_no_moment_of_a_power_cut_erases_an_interrupt(bench: Bench, tmp_path: Path, older: bool) -> None:
    outcomes = set()
    for touches in range(100):
        chip = tmp_path / f"chip{touches}"
        shutil.copytree(bench.path / "chip", chip)
        announced, durable, alive = cut(bench, chip, touches)
        if older:
            shutil.rmtree(chip / "nvram")
            shutil.move(chip / "older", chip / "nvram")
        log = bench.boot(chip)
        snapshots = sum(token.kind == "snapshot" for token in log)
        unserved = log[-1].body["unserved"]
        outcomes.add((announced, durable, snapshots, unserved))
        assert snapshots + unserved == 1 or not announced, f"touch {touches} erased an interrupt"
        assert snapshots or not durable
        assert not fsck.check(chip).findings
        if alive:
            break
        shutil.rmtree(chip)
    assert touches > 10
    assert outcomes >= {
        (False, False, 0, False),
        (False, False, 0, True),
        (True, False, 0, True),
        (True, False, 1, False),
    }
    assert (True, True, 1, False) in outcomes


def test_an_image_from_before_the_entry_before_is_refused(bench: Bench, tmp_path: Path) -> None:
    """What the counter's store gives back is the newest entry; without the one before, the chip runs no workload."""
    chip = tmp_path / "chip"
    shutil.copytree(bench.path / "chip", chip)
    pid, connection = bench.start(chip)
    ask(connection, {"do": "hello"})
    shutil.copytree(chip / "nvram", chip / "older")
    for _ in range(2):
        assert "index" in ask(connection, {"do": "event", "name": "one", "digest": bytes(32)})[-1]
    (chip / "fuse").write_text("0")
    assert ask(connection, {"do": "event", "name": "the end", "digest": bytes(32)}) == []
    wait_for_end(pid)
    (chip / "fuse").unlink()
    shutil.rmtree(chip / "nvram")
    shutil.move(chip / "older", chip / "nvram")
    with NonVolatileLog(chip) as log:
        assert log.missing == 2
        firmware = Firmware(chip, device.boot(chip), log, rate_per_day=0, clock_speed=1, hold=1)
        with pytest.raises(ChipError) as caught:
            firmware.hold_workload(lambda: None)
    assert caught.value.reason == "chip.log.rolled_back"
