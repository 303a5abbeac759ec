"""A chip in a confidential boot opens its snapshots on its own machine, and to no Verifier, then or later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.chip_station import ChipStation

from firmware_sim import Shim, device
from firmware_sim.firmware import Firmware
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.opening import opened
from firmware_sim.snapshot_report import Report
from verifier.contact.clients import ChipClient
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.digests import Leaf, region_digest
from weighbridge.core.errors import ChipError


def start(directory: Path, log: NonVolatileLog, *, confidential: bool) -> Firmware:
    booted = device.boot(directory)
    return Firmware(directory, booted, log, rate_per_day=1.0, clock_speed=1.0, hold=9, confidential=confidential)


def taken(firmware: Firmware, count: int = 1) -> int:
    """Logs a snapshot of some storages, and returns its place."""
    leaves: list[Leaf] = [(7, region_digest(bytes([each]) * 7, firmware.salt)) for each in range(count)]
    return firmware.snapshot(
        Report(
            leaves=leaves, weights=leaves[:1], safepoint=True, head=bytes(32), running=bytes(32), step=3, op=14, held=2,
            stall_us=7, unobserved=8,
        )
    )  # fmt: skip


def refused(firmware: Firmware, index: int) -> bool:
    try:
        firmware.open_snapshot(index)
    except ChipError as error:
        return error.reason == "chip.confidential" and "sealed inspection" in error.message
    return False


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    device.provision(tmp_path, CertificateAuthority.create("Manufacturer"))
    return tmp_path


@pytest.mark.finding("chip.confidential")
def test_it_stays_with_the_snapshot(directory: Path) -> None:
    """Starting the chip again, without the option, opens nothing that was taken under it."""
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, confidential=True)
        assert [tokens.is_confidential(tokens.read_own(each)) for _, each in firmware.entries(0, 1)] == [True]
        first, salt = taken(firmware, 3), firmware.salt
        assert refused(firmware, first)
        assert firmware.open_snapshot(first, local=True)[0] == salt
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, confidential=False)
        second = taken(firmware)
        assert refused(firmware, first)
        assert not refused(firmware, second)
        assert len(firmware.open_snapshot(first, local=True)[1]) == 3
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, confidential=True)
        third = taken(firmware, 0)
        assert [refused(firmware, each) for each in (first, second, third)] == [True, False, True]
        boots = [tokens.read_own(each) for _, each in firmware.entries(0, 6)][::2]
        assert [(each.kind, tokens.is_confidential(each)) for each in boots] == [
            ("boot", True),
            ("boot", False),
            ("boot", True),
        ]


def test_what_is_left_of_a_damaged_file_is_not_opened_either(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, confidential=True)
        index = taken(firmware)
        (path,) = (directory / "snapshots").iterdir()
        content = path.read_bytes()
        for damaged in (content[:-1], content[:-20], b"", content + b"\x00", content[:40]):
            path.write_bytes(damaged)
            with pytest.raises(ChipError):
                firmware.open_snapshot(index)


def test_no_verifier_gets_what_the_own_machine_gets(tmp_path: Path) -> None:
    station = ChipStation.create(tmp_path)
    with station.chip(allow_forced=True, confidential=True) as chip, Shim.connect(chip.socket) as shim:
        x = torch.ones(3)
        shim.request_snapshot()
        while not any(token.kind == "snapshot" for token in station.log(chip)):
            for _ in range(256):  # an interrupt waits for many kernels; reading the log takes longer
                x = x + 1
        (token,) = (each for each in station.log(chip) if each.kind == "snapshot")
        with ChipClient(chip.address, station.verifier()) as client:
            with pytest.raises(ChipError, match="sealed inspection") as caught:
                client.open_snapshot(token)
            assert caught.value.reason == "chip.confidential"
        assert len(opened(chip.socket, token.index)[1]) == token.body["leaves"] > 0
