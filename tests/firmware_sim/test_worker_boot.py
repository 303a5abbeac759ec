"""A chip that was started for sealed workers opens to those alone: not on its own machine, and to no Verifier."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
from support.chip_station import ChipStation
from support.worker_evidence import IMAGE, PROVER, Site, session_order

from firmware_sim import chip as chips
from firmware_sim import device
from firmware_sim.firmware import Firmware
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.opening import hidden, opened
from firmware_sim.snapshot_report import Report
from prover.keeping.chip_openings import asked
from weighbridge.attest import hidden_fields, tokens, worker_openings
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.work import Work
from weighbridge.attest.worker_openings import Trusted
from weighbridge.core.digests import Leaf, region_digest
from weighbridge.core.errors import ChipError, IdentityError, UsageError, WeighbridgeError


def start(directory: Path, log: NonVolatileLog, workers: Trusted | None, *, confidential: bool = True) -> Firmware:
    return Firmware(
        directory, device.boot(directory), log, rate_per_day=1.0, clock_speed=1.0, hold=9, confidential=confidential,
        workers=workers,
    )  # fmt: skip


def taken(firmware: Firmware, count: int = 1) -> int:
    leaves: list[Leaf] = [(7, region_digest(bytes([each]) * 7, firmware.salt)) for each in range(count)]
    return firmware.snapshot(
        Report(
            leaves=leaves, weights=leaves[:1], safepoint=True, head=bytes(32), running=bytes(32), step=3, op=14, held=2,
            stall_us=7, unobserved=8,
        )
    )  # fmt: skip


def refused(error: str, ask: Callable[..., Any], *arguments: object, **options: object) -> None:
    """Asks a chip, which answers at once or piece by piece, and is refused."""
    with pytest.raises(ChipError) as caught:
        list(ask(*arguments, **options))
    assert caught.value.reason == error


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    device.provision(tmp_path, CertificateAuthority.create("Manufacturer"))
    return tmp_path


@pytest.mark.finding("chip.confidential")
@pytest.mark.finding("chip.worker")
def test_it_opens_to_an_attested_worker_alone(directory: Path) -> None:
    site = Site()
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, site.trusted)
        index, salt, ueid = taken(firmware, 3), firmware.salt, firmware.device.ueid
        refused("chip.confidential", firmware.open_snapshot, index)
        refused("chip.confidential", firmware.open_snapshot, index, local=True)
        refused("chip.confidential", firmware.hidden, index)
        refused("chip.worker", firmware.open_to_worker, *Site().evidence(), [index], [index])
        snapshot, token = firmware.open_to_worker(*site.evidence(), [index], [index])
        ((_, signed),) = firmware.entries(index, index + 1)
    found = cbor2.loads(worker_openings.opened(snapshot, site.order, site.worker))
    assert (found["salt"], found["leaves"][0]) == (salt, [7, 7, 7])
    whole = hidden_fields.reveal(tokens.read_own(signed), worker_openings.opened(token, site.order, site.worker))
    assert tokens.shown(whole)["leaves"] == 3
    assert (snapshot.ueid, snapshot.kind, token.kind, token.index) == (ueid, "snapshot", "token", index)


@pytest.mark.finding("chip.confidential")
def test_that_stays_with_the_snapshot(directory: Path) -> None:
    """No later boot, with less options, opens to the machine what was taken for workers."""
    site = Site()
    with NonVolatileLog(directory) as log:
        first = taken(start(directory, log, site.trusted))
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, None)
        second = taken(firmware)
        refused("chip.confidential", firmware.open_snapshot, first, local=True)
        refused("chip.confidential", firmware.hidden, first)
        refused("chip.worker", firmware.open_to_worker, *site.evidence(), [second], [])
        assert firmware.open_snapshot(second, local=True)
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, None, confidential=False)
        refused("chip.confidential", firmware.open_snapshot, first, local=True)
        refused("chip.confidential", firmware.open_snapshot, first)
    with NonVolatileLog(directory) as log:  # what the machine may read, a worker may
        boxes = list(start(directory, log, site.trusted).open_to_worker(*site.evidence(), [first, second], []))
        assert [each.index for each in boxes] == [first, second]


@pytest.mark.finding("chip.worker")
def test_no_later_boot_opens_it_to_other_workers(directory: Path) -> None:
    """A party that comes to hold the chip's machine starts it again, for workers, a key and an authority of its own."""
    site, other = Site(), Site()
    with NonVolatileLog(directory) as log:
        first = taken(start(directory, log, site.trusted))
    for trusted in (
        other.trusted, replace(site.trusted, images=frozenset({b"x" * 48})), replace(site.trusted, prover=b"v" * 32),
        replace(other.trusted, authority=site.trusted.authority, prover=b"v" * 32),
    ):  # fmt: skip
        order = session_order(prover=trusted.prover, measurement=next(iter(trusted.images)))
        evidence = (other if trusted.workers == other.trusted.workers else site).evidence(order)
        with NonVolatileLog(directory) as log:
            firmware = start(directory, log, trusted)
            second = taken(firmware)
            refused("chip.worker", firmware.open_to_worker, *evidence, [first], [])
            refused("chip.worker", firmware.open_to_worker, *evidence, [], [first])
            assert [each.index for each in firmware.open_to_worker(*evidence, [second], [second])] == [second] * 2
    more = replace(site.trusted, images=frozenset({IMAGE, b"x" * 48}))
    with NonVolatileLog(directory) as log:  # an image more harms what was kept for one no less
        firmware = start(directory, log, more)
        assert len(list(firmware.open_to_worker(*site.evidence(), [first], [first]))) == 2
        new = session_order(measurement=b"x" * 48)
        refused("chip.worker", firmware.open_to_worker, *site.evidence(new), [first], [])
    (named,) = (path for path in (directory / "workers").iterdir() if path.read_bytes() == site.trusted.kept)
    named.write_bytes(more.kept)  # what names them is held by its digest
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, more)
        refused("chip.worker", firmware.open_to_worker, *site.evidence(), [first], [])


def test_each_place_is_asked_for_once(directory: Path) -> None:
    """Otherwise one short request would have the chip encrypt without end."""
    site = Site()
    with NonVolatileLog(directory) as log:
        firmware = start(directory, log, site.trusted)
        index = taken(firmware)
        for wanted in (([index] * 2, []), ([], [index] * 2)):
            with pytest.raises(UsageError):
                list(firmware.open_to_worker(*site.evidence(), *wanted))


def test_workers_without_a_confidential_boot_are_a_mistake(directory: Path) -> None:
    with NonVolatileLog(directory) as log, pytest.raises(UsageError):
        start(directory, log, Site().trusted, confidential=False)


def test_a_running_chip_opens_to_workers_over_the_network(tmp_path: Path) -> None:
    """What carries it is the Prover's side; a Verifier is refused, and so is the machine's own socket."""
    site, station = Site(), ChipStation.create(tmp_path)
    (tmp_path / "workers.pem").write_bytes(site.maker.pem)
    options = ("--worker-authority", str(tmp_path / "workers.pem"), "--worker-prover", PROVER.hex())
    options += ("--worker-image", IMAGE.hex())
    prover = station.authority.issue_role("prover", "prover")
    with station.chip(confidential=True, workers=options) as chip:
        (boot,) = station.log(chip)
        wanted = {"snapshots": [], "tokens": [0]}
        (box,) = asked(chip.address, prover, boot.ueid, site.evidence(), **wanted)
        whole = hidden_fields.reveal(boot, worker_openings.opened(box, site.order, site.worker))
        assert isinstance(whole.work, Work)
        with pytest.raises(ChipError) as caught:
            hidden(chip.socket, [0])
        assert caught.value.reason == "chip.confidential"
        with pytest.raises(IdentityError):
            asked(chip.address, station.verifier(), boot.ueid, site.evidence(), **wanted)
        with pytest.raises(ChipError) as caught:
            asked(chip.address, prover, boot.ueid, Site().evidence(), **wanted)
        assert caught.value.reason == "chip.worker"
        for evidence in ((b"", b""), (secrets.token_bytes(5000), b"x")):
            with pytest.raises(WeighbridgeError):
                asked(chip.address, prover, boot.ueid, evidence, **wanted)
        with pytest.raises(ChipError):
            opened(chip.socket, 0)


@pytest.mark.parametrize(
    "changes",
    [{"--worker-prover": ""}, {"--worker-prover": "zz"}, {"--worker-image": "00"}, {"--worker-authority": ""}],
)
def test_half_of_what_names_workers_is_refused(tmp_path: Path, changes: dict[str, str]) -> None:
    (tmp_path / "workers.pem").write_bytes(Site().maker.pem)
    given = {
        "--worker-authority": str(tmp_path / "workers.pem"), "--worker-prover": PROVER.hex(),
        "--worker-image": IMAGE.hex(), **changes,
    }  # fmt: skip
    words = [word for name, value in given.items() if value for word in (name, value)]
    place = [word for name in ("dir", "credentials", "address-file", "socket") for word in (f"--{name}", str(tmp_path))]
    with pytest.raises(UsageError):
        chips._workers(chips.parser().parse_args(["--rate", "0", *place, *words]))
