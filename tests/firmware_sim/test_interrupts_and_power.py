"""The power goes at each moment between an interrupt and its snapshot: the interrupt leaves a trace in any case.

The chip is a process of its own. It dies right before one of the calls that make something durable, and in the middle
of each write; and then it may find the NVRAM as it was before the interrupt.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.doomed_chip import Nursery
from support.power_cuts import OLDER, PowerCuts, ask, set_back, wait_for_end

from firmware_sim import device, fsck
from firmware_sim.firmware import Firmware
from firmware_sim.nvlog import NonVolatileLog
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import ChipError


@dataclass
class Bench:
    """A provisioned chip, and what takes its power."""

    path: Path
    manufacturer: CertificateAuthority
    power: PowerCuts

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
        yield Bench(path, manufacturer, PowerCuts(path, path / "credentials", nursery))


@pytest.mark.parametrize("older", [False, True])
def test_no_moment_of_a_power_cut_erases_an_interrupt(bench: Bench, tmp_path: Path, older: bool) -> None:
    outcomes = set()
    for touches in range(100):
        chip = tmp_path / f"chip{touches}"
        shutil.copytree(bench.path / "chip", chip)
        cut = bench.power.cut(chip, touches)
        if older:
            set_back(chip)
        log = bench.boot(chip)
        snapshots = sum(token.kind == "snapshot" for token in log)
        unserved = log[-1].body["unserved"]
        outcomes.add((cut.announced, cut.durable, snapshots, unserved))
        assert snapshots + unserved == 1 or not cut.announced, f"touch {touches} erased an interrupt"
        assert snapshots or not cut.durable
        assert not fsck.check(chip).findings
        if cut.alive:
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
    pid, connection = bench.power.start(chip)
    ask(connection, {"do": "hello"})
    shutil.copytree(chip / "nvram", chip / OLDER)
    for _ in range(2):
        assert "index" in ask(connection, {"do": "event", "name": "one", "digest": bytes(32)})[-1]
    (chip / "fuse").write_text("0")
    assert ask(connection, {"do": "event", "name": "the end", "digest": bytes(32)}) == []
    wait_for_end(pid)
    (chip / "fuse").unlink()
    set_back(chip)
    with NonVolatileLog(chip) as log:
        assert log.missing == 2
        firmware = Firmware(chip, device.boot(chip), log, rate_per_day=0, clock_speed=1, hold=1)
        with pytest.raises(ChipError) as caught:
            firmware.hold_workload(lambda: None)
    assert caught.value.reason == "chip.log.rolled_back"
