"""Inspections of real chips: genuine ones pass; other firmware and copied device secrets are found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.exactly import exactly
from support.station import Station, ids

from firmware_sim.device import builtin_image, unlock
from verifier.registry import Party, Registry, load_key
from weighbridge.attest.custody_statements import Statement, encode_key, sign
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.core.errors import ChipError


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    with Station(tmp_path) as station:
        for name in ("one", "two"):
            station.chip(name)
        yield station


def restarted(station: Station, name: str) -> None:
    station.chips[name].stop()
    station.chips[name].start()
    station.register(name)


def verified(report: dict[str, Any]) -> set[str]:
    return {chip["site"] for chip in report["chips"] if chip["verified"]}


def test_genuine_chips_pass_over_restarts(station: Station) -> None:
    first = station.inspect("one", "two")
    restarted(station, "one")
    second = station.inspect("one", "two")
    assert ids(first) == ids(second) == []
    assert verified(first) == verified(second) == {"one", "two"}
    (allowed,) = second["firmware"]["allowed"]
    assert allowed["measurement"] == builtin_image().measurement.hex()


def test_an_altered_firmware_is_found_whatever_its_chip_does_next(station: Station) -> None:
    directory = station.root / "chips" / "two"
    evil = replace(builtin_image(), payload=b"snapshots of zeros")
    station.chips["two"].stop()
    (directory / "firmware.img").write_bytes(FirmwareSigner.issue(station.authority).sign(evil))
    with pytest.raises(ChipError, match=r"chip\.image\.signature"):
        station.chips["two"].start()
    unlock(directory)
    restarted(station, "two")
    report = station.inspect("one", "two")
    assert set(ids(report, "violation")) == {"chip.firmware.debug", "chip.firmware.unknown"}
    assert verified(report) == {"one"}
    (directory / "firmware.img").write_bytes(station.image)
    restarted(station, "two")
    assert verified(station.inspect("one", "two")) == {"one"}


@pytest.mark.finding("chip.log.fork")
def test_a_device_secret_that_was_copied_into_another_chip_is_found(station: Station) -> None:
    """The box of chip two becomes chip one again: same secret, same certificates, the log so far. Both then go on."""
    one, two = station.root / "chips" / "one", station.root / "chips" / "two"
    for name in ("one", "two"):
        station.chips[name].stop()
    shutil.rmtree(two)
    shutil.copytree(one, two)
    for name in ("one", "two"):
        restarted(station, name)
    report = station.inspect("one", "two")
    # The copy answers where another chip is registered, so that is said, too.
    exactly(report, "chip.log.fork", beside={"chip.identity.mismatch"})
    (fork,) = (finding for finding in report["findings"] if finding["id"] == "chip.log.fork")
    assert station.ueids["one"].hex() in fork["subject"]
    assert sorted(fork["evidence"]["chips"]) == sorted(ueid.hex() for ueid in station.ueids.values())
    assert verified(report) == set()


def test_a_drawn_chip_that_somebody_else_says_to_have_is_found(station: Station) -> None:
    path = station.root / "registry.db"
    registry = Registry(path, load_key(path.with_name("registry-key")))
    key = Ed25519PrivateKey.generate()
    registry.statements.declare(Party(name="thief", roles=("owner",), key=encode_key(key.public_key())))
    taken = Statement(
        kind="installed",
        registry=registry.name,
        by="thief",
        time_s=registry.now(),
        site="x",
        chips=(station.ueids["two"],),
    )
    registry.submit(sign(taken, key))
    registry.close()
    report = station.inspect("one", "two")
    (finding,) = report["findings"]
    assert (finding["id"], finding["subject"]) == ("registry.gap", f"chip {station.ueids['two'].hex()}")
    assert verified(report) == {"one", "two"}  # it still answers, and for whom it answered before
