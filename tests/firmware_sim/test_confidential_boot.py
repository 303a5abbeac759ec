"""A chip in a confidential boot opens its snapshots on its own machine, and to no Verifier, then or later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.chip_station import ChipStation

from firmware_sim import Shim, device
from firmware_sim.firmware import Firmware
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.opening import hidden, opened
from firmware_sim.snapshot_report import Report
from verifier.contact.clients import ChipClient
from verifier.model.facts import digest, number
from weighbridge.attest import hidden_fields, tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import HiddenBody
from weighbridge.core.digests import Leaf, region_digest
from weighbridge.core.errors import ChipError, TokenError


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
        whole = hidden_fields.reveal(token, hidden(chip.socket, [token.index])[token.index])
        assert number(whole, "leaves") > 0
        with ChipClient(chip.address, station.verifier()) as client:
            with pytest.raises(ChipError, match="sealed inspection") as caught:
                client.open_snapshot(whole)
            assert caught.value.reason == "chip.confidential"
        assert len(opened(chip.socket, token.index)[1]) == tokens.shown(whole)["leaves"]


def log_of(firmware: Firmware, count: int) -> list[tokens.Token]:
    return [tokens.read_own(data) for _, data in firmware.entries(0, count)]


def test_tokens_show_what_the_chip_did_and_not_what_the_workload_did(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, confidential=True)
        firmware.workload_attached()
        firmware.event("manifest-draft", b"d" * 32)
        index = taken(firmware)
        firmware.raise_interrupt()
        firmware.interrupt_unserved()
        head = tokens.read_own(firmware.head(b"n" * 16))
        boot, attached, draft, snapshot, unserved = found = log_of(firmware, 5)
        assert all(isinstance(each.work, HiddenBody) for each in found)
        assert head.work is None
        assert tokens.is_confidential(boot)
        assert [tokens.event_name(each) for each in (attached, unserved)] == ["workload-attached", "interrupt-unserved"]
        assert isinstance(draft.body, HiddenBody)
        assert isinstance(snapshot.body, HiddenBody)
        whole = [hidden_fields.reveal(each, firmware.hidden(each.index)) for each in found]
    assert tokens.event_name(whole[2]) == "manifest-draft"
    assert digest(whole[2], "digest") == b"d" * 32
    assert (number(whole[index], "step"), number(whole[index], "leaves")) == (3, 1)


def test_no_value_of_a_hidden_field_is_in_what_the_chip_signs(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, confidential=True)
        firmware.event("manifest-draft", b"d" * 32)
        index = taken(firmware)
        ((_, signed),) = firmware.entries(index, index + 1)
        whole = hidden_fields.reveal(tokens.read_own(signed), firmware.hidden(index))
        shown = b"".join(data for _, data in firmware.entries(0, 3)) + firmware.head(b"n" * 16)
    body = tokens.shown(whole)
    assert not any(each in shown for each in (b"manifest-draft", b"d" * 32, body["root"], body["weights_root"]))
    names = ("weights_root", "weights_bytes", "flops", "kernels", "unobserved", "stall_us", "busy_ns")
    assert not any(name.encode() in shown for name in names)


def test_a_chip_goes_on_counting_where_it_was(directory: Path) -> None:
    """It reads its own newest entry at its start, and starts not without what opens it."""
    with NonVolatileLog(directory) as log:
        start(directory, log, confidential=True).event("x", bytes(32))
    with NonVolatileLog(directory) as log:
        assert log_of(start(directory, log, confidential=True), 3)[-1].boot_count == 2
    (directory / "tokens" / "00000002.cbor").unlink()
    with NonVolatileLog(directory) as log, pytest.raises(ChipError) as caught:
        start(directory, log, confidential=False)
    assert caught.value.reason == "chip.log.damaged"


@pytest.mark.parametrize("confidential", [True, False])
def test_claims_that_no_token_may_have_are_not_hidden_either(directory: Path, confidential: bool) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, confidential=confidential)
        with pytest.raises(TokenError):
            firmware.event("x" * 101, bytes(32))
        assert len(log) == 1


def test_without_the_option_nothing_is_hidden(directory: Path) -> None:
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, confidential=False)
        firmware.event("x", bytes(32))
        assert not any(isinstance(each.work, HiddenBody) for each in log_of(firmware, 2))
        assert not (directory / "tokens").exists()
