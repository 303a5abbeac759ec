"""The checks of firmware and of copied keys: honest chips pass, every other one is caught."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from support.chip_logs import LogBuilder, facts

from firmware_sim.device import Device, boot, builtin_image, provision, unlock
from verifier.checks import chip_firmware, chip_fork, chip_log
from verifier.model.facts import LogFacts
from verifier.model.reference_values import FirmwarePolicy
from verifier.registry import Chip
from weighbridge.attest.certificates import certificate_builder
from weighbridge.attest.firmware_image import FirmwareImage, FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tokens import entry_digest, verify
from weighbridge.core.errors import ChipError, UsageError

MAKER = CertificateAuthority.create("Manufacturer")
ROOT = MAKER.certificate
SIGNER = FirmwareSigner.issue(MAKER)
OLD, NEW = (replace(builtin_image(), version=f"{svn}.0", svn=svn) for svn in (1, 2))


@pytest.fixture
def chip(tmp_path: Path) -> Path:
    """A chip that comes with the newer firmware."""
    provision(tmp_path / "chip", MAKER, image=SIGNER.sign(NEW))
    return tmp_path / "chip"


def start(chip: Path, image: FirmwareImage) -> Device:
    return start_file(chip, SIGNER.sign(image))


def start_file(chip: Path, data: bytes) -> Device:
    (chip.parent / "update.img").write_bytes(data)
    return boot(chip, chip.parent / "update.img")


def policy(*images: FirmwareImage, minimal_svn: int = 0, directory: Path) -> FirmwarePolicy:
    paths = []
    for number, image in enumerate(images):
        paths.append(directory / f"{number}.img")
        paths[-1].write_bytes(SIGNER.sign(image))
    return FirmwarePolicy.of(paths, ROOT, minimal_svn=minimal_svn)


def booted(log: LogBuilder, device: Device) -> LogBuilder:
    """Goes on with the log under another firmware."""
    log.device = device
    return log.boot()


def ids(log: LogFacts, firmware: FirmwarePolicy) -> list[str]:
    return [finding.id for finding in chip_firmware.check(log, firmware)]


def test_trusted_firmware_has_no_finding(chip: Path, tmp_path: Path) -> None:
    log = LogBuilder(boot(chip)).boot()
    log.snapshot([(8, bytes(32))])
    assert ids(facts(log, ROOT), policy(NEW, directory=tmp_path)) == []
    assert ids(facts(log, ROOT), policy(OLD, NEW, minimal_svn=2, directory=tmp_path)) == []


def test_an_update_in_the_middle_of_a_log_has_no_finding(tmp_path: Path) -> None:
    provision(tmp_path / "chip", MAKER, image=SIGNER.sign(OLD))
    log = LogBuilder(boot(tmp_path / "chip")).boot()
    booted(log, start(tmp_path / "chip", NEW))
    both = policy(OLD, NEW, directory=tmp_path)
    assert ids(facts(log, ROOT), both) == []
    assert chip_log.check(facts(log, ROOT)) == []
    # What was witnessed before the minimum was raised stays good; what is new has to keep to it.
    raised = policy(OLD, NEW, minimal_svn=2, directory=tmp_path)
    witnessed = Chip(
        ueid=log.device.ueid, address="localhost:1", witnessed_size=1, witnessed_last=entry_digest(log.entries[0])
    )
    assert ids(facts(log, ROOT, chip=witnessed), raised) == []
    assert ids(facts(log, ROOT), raised) == ["chip.firmware.old"]


def test_old_firmware_is_caught(tmp_path: Path) -> None:
    provision(tmp_path / "chip", MAKER, image=SIGNER.sign(OLD))
    log = LogBuilder(boot(tmp_path / "chip")).boot()
    assert ids(facts(log, ROOT), policy(OLD, NEW, minimal_svn=2, directory=tmp_path)) == ["chip.firmware.old"]


def test_firmware_without_a_reference_value_is_caught(chip: Path, tmp_path: Path) -> None:
    """Signed by the manufacturer, so the chip starts it; but the Verifier was not told of it."""
    log = LogBuilder(start(chip, replace(NEW, payload=b"something else"))).boot()
    (finding,) = chip_firmware.check(facts(log, ROOT), policy(NEW, directory=tmp_path))
    assert finding.id == "chip.firmware.unknown"
    assert finding.evidence == {"measurement": log.device.tcb.measurement.hex()}
    assert ids(facts(log, ROOT), FirmwarePolicy()) == ["chip.firmware.unknown"]


@pytest.mark.parametrize("kind", ["unsigned", "altered", "older"])
def test_a_chip_that_booted_a_bad_image_cannot_hide_it(chip: Path, tmp_path: Path, kind: str) -> None:
    """The chip does not start it; unlocked it does, and its tokens verify, but every one of them tells."""
    trusted = policy(OLD, NEW, minimal_svn=2, directory=tmp_path)
    log = LogBuilder(boot(chip)).boot()
    log.snapshot([(8, bytes(32))])
    good = (chip / "firmware.img").read_bytes()
    payload = NEW.payload
    bad = {
        "unsigned": FirmwareSigner.issue(CertificateAuthority.create("Manufacturer")).sign(NEW),
        "altered": good.replace(payload, payload[:-1] + bytes([payload[-1] ^ 1])),
        "older": SIGNER.sign(OLD),
    }[kind]
    with pytest.raises(ChipError, match=r"chip\.image\."):
        start_file(chip, bad)
    assert ids(facts(log, ROOT), trusted) == []
    unlock(chip)
    booted(log, start_file(chip, bad))
    log.snapshot([(8, bytes(32))])
    assert chip_log.check(facts(log, ROOT)) == []  # As a log it is in order.
    found = chip_firmware.check(facts(log, ROOT), trusted)
    assert [finding.id for finding in found] == ["chip.firmware.debug", *["chip.firmware.unknown"] * (kind != "older")]
    assert found[0].subject.endswith("entry 2")
    # Genuine firmware that is started again afterwards does not bring trust back.
    booted(log, start(chip, NEW))
    assert ids(facts(log, ROOT), trusted).count("chip.firmware.debug") == 2


def test_a_bad_firmware_that_rewrites_the_whole_log_is_caught(chip: Path, tmp_path: Path) -> None:
    """It has no key but its own: the log that it signs again verifies as a log, from the first entry on as its own."""
    log = LogBuilder(boot(chip)).boot()
    log.snapshot([(8, bytes(32))])
    unlock(chip)
    rewritten = LogBuilder(start(chip, replace(NEW, payload=b"evil"))).boot()
    rewritten.snapshot([(8, b"h" * 32)])
    assert chip_log.check(facts(rewritten, ROOT)) == []
    found = chip_firmware.check(facts(rewritten, ROOT), policy(NEW, directory=tmp_path))
    assert [(finding.id, finding.subject.split()[-1]) for finding in found] == [
        ("chip.firmware.debug", "0"),
        ("chip.firmware.unknown", "0"),
    ]


def test_restored_fuses_are_caught(tmp_path: Path) -> None:
    """With old fuses put back, the older image starts; but the log says that a newer one ran before."""
    chip = tmp_path / "chip"
    provision(chip, MAKER, image=SIGNER.sign(OLD))
    fuses = (chip / "fuses.cbor").read_bytes()
    log = LogBuilder(start(chip, NEW)).boot()
    with pytest.raises(ChipError, match=r"chip\.image\.rollback"):
        start(chip, OLD)
    (chip / "fuses.cbor").write_bytes(fuses)
    booted(log, start(chip, OLD))
    assert ids(facts(log, ROOT), policy(OLD, NEW, directory=tmp_path)) == ["chip.firmware.rolled_back"]


def test_a_rom_that_lies_about_the_version_is_caught(chip: Path, tmp_path: Path) -> None:
    """A boot ROM of another make certifies the trusted measurement under a higher version number."""
    honest = boot(chip)
    trusted = policy(NEW, directory=tmp_path)
    device_key, idevid = _made_up_device(honest.chain[1])
    certificate = (
        certificate_builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "key")]),
            idevid.subject,
            honest.key.public_key(),
            authority=False,
        )
        .add_extension(replace(honest.tcb, svn=9).extension(), critical=False)
        .sign(device_key, hashes.SHA384())
    )
    lying = replace(honest, chain=(certificate.public_bytes(Encoding.DER), idevid.public_bytes(Encoding.DER)))
    assert ids(facts(LogBuilder(lying).boot(), ROOT), trusted) == ["chip.firmware.mismatch"]


def _made_up_device(idevid: bytes) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A key that the test knows, under the device's name, certified by its manufacturer."""
    key = ec.generate_private_key(ec.SECP384R1())
    genuine = x509.load_der_x509_certificate(idevid)
    builder = certificate_builder(genuine.subject, genuine.issuer, key.public_key(), authority=True, path_length=0)
    return key, builder.sign(MAKER.key, hashes.SHA384())


def test_reference_values_come_from_genuine_images(tmp_path: Path) -> None:
    trusted = policy(OLD, NEW, minimal_svn=1, directory=tmp_path)
    assert set(trusted.allowed) == {OLD.measurement, NEW.measurement}
    assert sorted(each["version"] for each in trusted.to_json()["allowed"]) == ["1.0", "2.0"]
    foreign = tmp_path / "foreign.img"
    foreign.write_bytes(FirmwareSigner.issue(CertificateAuthority.create("Manufacturer")).sign(NEW))
    with pytest.raises(ChipError, match=r"chip\.image\.signature"):
        FirmwarePolicy.of([foreign], ROOT)
    with pytest.raises(UsageError):
        FirmwarePolicy.of([tmp_path / "none.img"], ROOT)
    with pytest.raises(UsageError):
        policy(OLD, NEW, minimal_svn=3, directory=tmp_path)


# One key, two chips.


def forks(*logs: LogFacts) -> list[tuple[str, list[str]]]:
    return [(finding.id, finding.evidence["chips"]) for finding in chip_fork.check(logs)]


def registered(ueid: bytes) -> Chip:
    return Chip(ueid=ueid, address="localhost:1")


def test_different_chips_have_no_finding(chip: Path, tmp_path: Path) -> None:
    provision(tmp_path / "other", MAKER, image=SIGNER.sign(NEW))
    logs = [LogBuilder(boot(directory)).boot() for directory in (chip, tmp_path / "other")]
    assert forks(*(facts(log, ROOT) for log in logs)) == []


def test_one_log_read_twice_has_no_finding(chip: Path) -> None:
    log = LogBuilder(boot(chip)).boot()
    early = facts(log, ROOT)
    log.snapshot([(8, bytes(32))])
    assert forks(early, facts(log, ROOT)) == []


def test_a_stolen_device_key_used_in_another_chip_is_caught(chip: Path, tmp_path: Path) -> None:
    """Secret, certificate and the log so far are copied into another box, whose chip then counts on by itself."""
    log = LogBuilder(boot(chip)).boot()
    log.event("manifest-draft", b"d" * 32)
    shutil.copytree(chip, tmp_path / "clone")
    clone = LogBuilder(boot(tmp_path / "clone"), entries=list(log.entries), boot_count=1, time_ms=log.time_ms).boot()
    log.boot()
    other = b"\x01" + bytes(16)
    here, there = facts(log, ROOT), facts(clone, ROOT, chip=registered(other))
    assert chip_log.check(here) == chip_log.check(there) == []  # Each by itself is in order.
    ueid = log.device.ueid
    assert forks(here, there) == [("chip.log.fork", [ueid.hex(), other.hex()])]
    (finding,) = chip_fork.check([here, there])
    assert finding.subject == f"chip {ueid.hex()} counter 2"


def test_heads_alone_tell_a_fork(chip: Path, tmp_path: Path) -> None:
    """The clone shows only what both have; but it signs for a shorter log, or for another newest entry."""
    log = LogBuilder(boot(chip)).boot()
    clone = LogBuilder(log.device, entries=list(log.entries), boot_count=1, boot_seed=log.boot_seed)
    log.event("one", bytes(32))
    other = registered(b"\x01" + bytes(16))
    assert [name for name, _ in forks(facts(log, ROOT), facts(clone, ROOT, chip=other))] == ["chip.log.fork"]
    clone.event("two", bytes(32))
    hidden = replace(facts(clone, ROOT, chip=other), entries=[])
    assert [name for name, _ in forks(facts(log, ROOT), hidden)] == ["chip.log.fork"]


def test_a_changed_signature_alone_accuses_nobody(chip: Path) -> None:
    """(r, n - s) is as good an ECDSA signature as (r, s), and needs no key: bytes that differ prove nothing."""
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973
    log = LogBuilder(boot(chip)).boot()
    entry = log.entries[0]
    s = int.from_bytes(entry[-48:])
    changed = entry[:-48] + (order - s).to_bytes(48)
    assert changed != entry
    assert verify(changed, ROOT).token == verify(entry, ROOT).token
    there = LogBuilder(log.device, entries=[changed], boot_count=1, boot_seed=log.boot_seed)
    assert forks(facts(log, ROOT), replace(facts(there, ROOT), head=ChipError("not asked"))) == []


def test_one_attestation_key_under_two_identities_is_caught(chip: Path, tmp_path: Path) -> None:
    """The secret was burned into two chips, or the key left one of them."""
    honest = boot(chip)
    provision(tmp_path / "other", MAKER, image=SIGNER.sign(NEW))
    other = boot(tmp_path / "other")
    device_key, idevid = _made_up_device(other.chain[1])
    certificate = (
        certificate_builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "key")]),
            idevid.subject,
            honest.key.public_key(),
            authority=False,
        )
        .add_extension(other.tcb.extension(), critical=False)
        .sign(device_key, hashes.SHA384())
    )
    twin = replace(
        other, key=honest.key, chain=(certificate.public_bytes(Encoding.DER), idevid.public_bytes(Encoding.DER))
    )
    logs = [facts(LogBuilder(device).boot(), ROOT) for device in (honest, twin)]
    assert forks(*logs) == [("chip.identity.shared", [honest.ueid.hex(), other.ueid.hex()])]


def test_heads_that_were_asked_for_at_the_same_time_have_no_order(chip: Path) -> None:
    """Several chips are read at a time: a log that grew in between is no evidence, one that shrank is."""
    log = LogBuilder(boot(chip)).boot()
    early = facts(log, ROOT, chip=registered(b"\x01" + bytes(16)))
    log.snapshot([(8, bytes(32))])
    late = facts(log, ROOT)
    timed = {"early": (1000, 1010), "meanwhile": (1005, 1015), "after": (1010, 1020)}
    first = replace(early, asked_ms=1000, read_ms=1010)
    found = {
        name: (forks(first, replace(late, asked_ms=a, read_ms=r)), forks(replace(late, asked_ms=a, read_ms=r), first))
        for name, (a, r) in timed.items()
    }
    assert [each for pair in found.values() for each in pair] == [[]] * 6, "the longer one was never read before"
    shrunk = replace(late, asked_ms=980, read_ms=1000)
    for pair in ((first, shrunk), (shrunk, first)):
        assert [name for name, _ in forks(*pair)] == ["chip.log.fork"], "in whichever order the chips were drawn"
