"""What each finding about a chip's log, identity and firmware takes to appear alone in an inspection's report.

The chips are false ones (`support.false_chips`): their devices are genuine, what they sign and show is made to order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from support.exactly import alone, found, marked
from support.false_chips import FalseChips, Shown, attested
from support.station import LIMITS, Station

from firmware_sim.device import boot, builtin_image, unlock
from verifier.contact.clients import MAX_ENTRIES
from verifier.model.reference_values import FirmwarePolicy
from weighbridge.attest.firmware_image import FirmwareImage, FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.work import Work

NEWER = replace(builtin_image(), version="2.0", svn=2)


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        yield station


@pytest.fixture(scope="module")
def chips(station: Station) -> Iterator[FalseChips]:
    with FalseChips(station) as chips:
        yield chips


@pytest.fixture(scope="module")
def signer(station: Station) -> FirmwareSigner:
    return FirmwareSigner.issue(station.manufacturer)


def both(station: Station, signer: FirmwareSigner, *, minimal_svn: int = 0) -> FirmwarePolicy:
    """Trusts the built-in firmware and a newer one."""
    path = station.root / "newer.img"
    path.write_bytes(signer.sign(NEWER))
    images = [station.root / "firmware.img", path]
    return FirmwarePolicy.of(images, station.manufacturer.certificate, minimal_svn=minimal_svn, limits=LIMITS)


def start(chips: FalseChips, name: str, signer: FirmwareSigner, image: FirmwareImage) -> None:
    """Has a chip's boot ROM start an image, and goes on with the log under it."""
    path = chips.directory(name) / "update.img"
    path.write_bytes(signer.sign(image))
    shown = chips.shown(name)
    shown.log.device = boot(chips.directory(name), path)
    shown.log.boot()


def test_an_honest_log_has_no_finding(station: Station, chips: FalseChips, signer: FirmwareSigner) -> None:
    """Over boots, an event, an update of the firmware, and a second inspection of what was witnessed."""
    shown = chips.make("honest")
    shown.log.boot().event("x", bytes(32))
    assert found(station.inspect("honest")) == set()
    start(chips, "honest", signer, NEWER)
    assert found(station.inspect("honest", given={"firmware": both(station, signer)})) == set()


# --- counters of work -------------------------------------------------------------------------------------------------


@pytest.mark.finding("chip.counters.decreased")
def test_counters_that_run_backwards(station: Station, chips: FalseChips) -> None:
    log = chips.make("backwards").log
    log.attach().detach(kernels=9, flops=9)
    log.work = Work(kernels=9, flops=8)
    log.boot()
    alone(station.inspect("backwards"), "chip.counters.decreased")


@pytest.mark.finding("chip.counters.missing")
def test_a_chip_that_does_not_count(station: Station, chips: FalseChips) -> None:
    shown = chips.make("mute")
    shown.log.work = None
    shown.rewrite(0, lambda token: replace(token, work=None))
    alone(station.inspect("mute"), "chip.counters.missing")


@pytest.mark.finding("chip.work.unexplained")
def test_work_in_many_sessions_without_a_snapshot(station: Station, chips: FalseChips) -> None:
    log = chips.make("busy").log
    for _ in range(3):
        log.attach().detach(kernels=9, flops=3 * 10**11)
    report = station.inspect("busy")
    assert found(report) == set()
    assert report["ledger"]["work"]["below_flops"] == 9 * 10**11
    log.attach().detach(kernels=9, flops=3 * 10**11)
    alone(station.inspect("busy"), "chip.work.unexplained")


@pytest.mark.finding("chip.work.unexplained.many")
def test_work_on_many_chips_on_none_of_them_much(station: Station, chips: FalseChips) -> None:
    for name in ("one half", "other half"):
        chips.make(name).log.attach().detach(kernels=9, flops=6 * 10**11)
        assert found(station.inspect(name)) == set()
    report = station.inspect("one half", "other half")
    alone(report, "chip.work.unexplained.many")
    assert report["ledger"]["work"]["unexplained_flops"] == 12 * 10**11


# --- the log --------------------------------------------------------------------------------------------------------


def altered(shown: Shown) -> None:
    """An entry whose signature is false."""
    shown.log.entries[1] = shown.log.entries[1][:-1] + bytes([shown.log.entries[1][-1] ^ 1])


def old_head(shown: Shown) -> None:
    """The head that was signed for another Verifier."""
    old = shown.log.head(b"another nonce")
    shown.head = lambda nonce: old


def held_back(shown: Shown) -> None:
    shown.entries = shown.log.entries[:-1]


def exchanged(shown: Shown) -> None:
    """Another newest entry than the one that was signed for, by the same chip."""
    shown.entries = list(shown.log.entries)
    shown.log.resign(len(shown.log.entries) - 1, time_ms=shown.log.time_ms)


def dropped(shown: Shown) -> None:
    del shown.log.entries[1]


def broken_chain(shown: Shown) -> None:
    shown.log.resign(len(shown.log.entries) - 1, previous=bytes(32))


def boot_twice(shown: Shown) -> None:
    """The chip starts without counting."""
    shown.log.boot_count -= 1
    shown.log.boot()


def turned_back(shown: Shown) -> None:
    shown.log.time_ms -= 300_000  # more than a clock may be behind is a finding of its own
    shown.log.event("x", bytes(32))


def forgotten(shown: Shown) -> None:
    """The chip's counter knows of entries that its log has not."""
    more = len(shown.log.entries) + 2
    shown.head = lambda nonce: shown.log.head(nonce, counter=more)


def endless(shown: Shown) -> None:
    shown.claimed = MAX_ENTRIES + 1


def rare(shown: Shown) -> None:
    """Half as many interrupts as planned."""
    shown.log.rate_milli = 500
    shown.log.boot()


def reports_elsewhere(shown: Shown) -> None:
    shown.claim(0, witness=b"k" * 32)


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(altered, marks=pytest.mark.finding("chip.token")),
        pytest.param(old_head, marks=pytest.mark.finding("chip.nonce.mismatch")),
        pytest.param(held_back, marks=pytest.mark.finding("chip.log.incomplete")),
        pytest.param(exchanged, marks=pytest.mark.finding("chip.log.head")),
        pytest.param(dropped, marks=pytest.mark.finding("chip.log.counter")),
        pytest.param(broken_chain, marks=pytest.mark.finding("chip.log.chain")),
        pytest.param(boot_twice, marks=pytest.mark.finding("chip.log.boot")),
        pytest.param(turned_back, marks=pytest.mark.finding("chip.log.clock")),
        pytest.param(forgotten, marks=pytest.mark.finding("chip.log.rolled_back")),
        pytest.param(endless, marks=pytest.mark.finding("chip.log.size")),
        pytest.param(rare, marks=pytest.mark.finding("chip.rate.low")),
        pytest.param(reports_elsewhere, marks=pytest.mark.finding("chip.witness.unknown")),
    ],
)
def test_a_log_that_is_not_as_it_should_be(
    station: Station, chips: FalseChips, tamper: Callable[[Shown], None], request: pytest.FixtureRequest
) -> None:
    identifier = marked(request)
    shown = chips.make(identifier)
    shown.log.event("x", bytes(32))
    shown.log.event("y", bytes(32))
    tamper(shown)
    report = station.inspect(identifier)
    alone(report, identifier)
    assert not report["chips"][0]["verified"] or identifier == "chip.witness.unknown"


@pytest.mark.finding("chip.log.changed")
def test_a_log_that_was_written_anew(station: Station, chips: FalseChips) -> None:
    """As long as before, and in order by itself; the Verifier remembers the other one."""
    shown = chips.make("rewritten")
    index = shown.log.event("x", bytes(32))
    assert found(station.inspect("rewritten")) == set()
    shown.claim(index, name="y")
    alone(station.inspect("rewritten"), "chip.log.changed")


@pytest.mark.finding("chip.clock.slow")
def test_a_clock_that_was_set_back_between_contacts(station: Station, chips: FalseChips) -> None:
    """No entry shows it, as there is no new one; the head does."""
    shown = chips.make("slow")
    assert found(station.inspect("slow")) == set()
    shown.log.time_ms -= 120_000
    alone(station.inspect("slow"), "chip.clock.slow")


# --- who the chip is, and what it runs ------------------------------------------------------------------------------


@pytest.mark.finding("identity.chain")
def test_a_chip_of_another_manufacturer(station: Station, chips: FalseChips) -> None:
    chips.make("foreign", manufacturer=CertificateAuthority.create("Manufacturer"))
    alone(station.inspect("foreign"), "identity.chain")


@pytest.mark.finding("chip.identity.mismatch")
def test_another_chip_in_the_place_of_the_registered_one(station: Station, chips: FalseChips) -> None:
    shown = chips.make("present")
    absent = chips.make("absent").log.device.ueid
    chips.show("absent", shown, ueid=absent)
    report = station.inspect("absent")
    alone(report, "chip.identity.mismatch")


@pytest.mark.finding("chip.identity.shared")
def test_two_devices_with_one_attestation_key(station: Station, chips: FalseChips) -> None:
    """The second one's boot ROM certified the key of the first."""
    first, second = chips.make("first"), chips.make("second")
    assert found(station.inspect("first", "second")) == set()
    second.log.device = attested(chips.directory("second"), second.log.device, key=first.log.device.key)
    second.log.boot()
    alone(station.inspect("first", "second"), "chip.identity.shared")


@pytest.mark.finding("chip.firmware.unknown")
def test_firmware_that_the_verifier_was_not_told_of(
    station: Station, chips: FalseChips, signer: FirmwareSigner
) -> None:
    chips.make("unknown", image=signer.sign(replace(builtin_image(), payload=b"something else")))
    alone(station.inspect("unknown"), "chip.firmware.unknown")


@pytest.mark.finding("chip.firmware.debug")
def test_a_chip_that_was_unlocked_with_the_right_firmware(
    station: Station, chips: FalseChips, signer: FirmwareSigner
) -> None:
    chips.make("unlocked")
    unlock(chips.directory("unlocked"))
    start(chips, "unlocked", signer, builtin_image())
    alone(station.inspect("unlocked"), "chip.firmware.debug")


@pytest.mark.finding("chip.firmware.old")
def test_firmware_that_is_not_trusted_any_more(station: Station, chips: FalseChips, signer: FirmwareSigner) -> None:
    chips.make("old")
    policy = both(station, signer, minimal_svn=2)
    alone(station.inspect("old", given={"firmware": policy}), "chip.firmware.old")


@pytest.mark.finding("chip.firmware.rolled_back")
def test_fuses_that_were_restored(station: Station, chips: FalseChips, signer: FirmwareSigner) -> None:
    chips.make("back")
    fuses = (chips.directory("back") / "fuses.cbor").read_bytes()
    start(chips, "back", signer, NEWER)
    (chips.directory("back") / "fuses.cbor").write_bytes(fuses)
    start(chips, "back", signer, builtin_image())
    alone(station.inspect("back", given={"firmware": both(station, signer)}), "chip.firmware.rolled_back")


@pytest.mark.finding("chip.firmware.mismatch")
def test_a_boot_rom_that_makes_firmware_newer_than_it_is(station: Station, chips: FalseChips) -> None:
    shown = chips.make("flattered")
    device = shown.log.device
    shown.log.device = attested(chips.directory("flattered"), device, tcb=replace(device.tcb, svn=9))
    shown.log.entries.clear()
    shown.log.boot()
    alone(station.inspect("flattered"), "chip.firmware.mismatch")
