"""Heads that are kept to compare clocks: few of an honest chip, and all that show a clock to have been slow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.chip_logs import LogBuilder, facts, make_device

from firmware_sim.device import Device
from verifier.checks import chip_clock
from verifier.contact import anchors
from verifier.contact.witness import Witness
from verifier.model.reference_values import ChipLimits
from verifier.registry import Chip, Registry
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tlog import WITNESS, NoteSigner
from weighbridge.core import merkle

MANUFACTURER = CertificateAuthority.create("Manufacturer")
SIGNER = NoteSigner("verifier.example/w1", WITNESS, b"w" * 32)
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return make_device(tmp_path_factory.mktemp("chip"), MANUFACTURER)


class Reporting:
    """A chip of one boot that reports every hour; its board drives its clock."""

    def __init__(self, path: Path, device: Device) -> None:
        self.log = LogBuilder(device).boot()
        self.now_ms = self.log.time_ms
        registry = Registry(path / "registry.db")
        registry.register(Chip(ueid=device.ueid, address="localhost:1"))
        self.witness = Witness(registry, MANUFACTURER.certificate, SIGNER, clock=lambda: self.now_ms / 1000)
        self.report()

    def report(self) -> None:
        held, nonce = self.witness.nonce(self.log.device.ueid)
        tree = merkle.Tree(map(merkle.leaf_hash, self.log.entries))
        self.witness.receive(
            ueid=self.log.device.ueid, checkpoint=self.log.checkpoint(), token=self.log.head(nonce),
            proof=tree.consistency_proof(held.size), data=self.log.entries[held.size :],
        )  # fmt: skip

    def hours(self, speeds: Sequence[float]) -> None:
        for speed in speeds:
            self.now_ms += HOUR_MS
            self.log.uptime_ms += round(speed * HOUR_MS)
            self.log.time_ms += HOUR_MS
            self.report()

    def found(self) -> list[str]:
        kept = self.witness.anchors(self.log.device.ueid)
        shown = facts(self.log, MANUFACTURER.certificate, anchors=kept, now_ms=self.now_ms)
        return [each.id for each in chip_clock.check(shown, ChipLimits())]

    @property
    def kept(self) -> int:
        return len(self.witness.anchors(self.log.device.ueid))


def test_two_heads_of_an_honest_boot_are_kept(tmp_path: Path, device: Device) -> None:
    chip = Reporting(tmp_path, device)
    chip.hours([1.0] * 20)
    assert (chip.kept, chip.found()) == (2, [])


@pytest.mark.parametrize("speeds", [[1, 1, 0.1, 0.1, 2, 2, 2, 2], [3, 3, 0.1, 0.1], [0.1, 5, 1, 1, 1], [9, 0.5, 1, 1]])
def test_fast_time_does_not_make_up_for_slow_time(tmp_path: Path, device: Device, speeds: list[float]) -> None:
    """Over the whole boot the clock went on as far as the Verifier's: only reports in between tell."""
    chip = Reporting(tmp_path, device)
    chip.hours(speeds)
    total = [anchor.token.uptime_ms for anchor in chip.witness.anchors(device.ueid)]
    assert total[-1] - total[0] >= 0.99 * len(speeds) * HOUR_MS
    assert chip.found() == ["chip.clock.slow"]
    assert chip.kept <= 4


def test_what_is_kept_of_a_boot_is_bounded(tmp_path: Path, device: Device) -> None:
    chip = Reporting(tmp_path, device)
    chip.hours([0.1, 2.0] * (anchors.MOST // 2 + 3))
    assert (chip.kept, chip.found()) == (anchors.MOST, ["chip.clock.slow"])
