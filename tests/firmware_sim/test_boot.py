"""The boot ROM: which images start, what follows from them, and what a chip that starts others cannot hide."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_sim import device
from firmware_sim.boot import Device, boot
from firmware_sim.fuses import Fuses
from weighbridge.attest.firmware_image import FirmwareImage, FirmwareSigner, read_image
from weighbridge.attest.identity import CertificateAuthority, verify_device_chain
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError

ROOT = CertificateAuthority.create("Manufacturer")
SIGNER = FirmwareSigner.issue(ROOT)


def image(version: str = "2", svn: int = 2, **changes: object) -> FirmwareImage:
    return replace(
        FirmwareImage(
            name="firmware", version=version, svn=svn, hwmodel="WB-SIM-1", payload=b"code " + version.encode()
        ),
        **changes,
    )


@pytest.fixture
def chip(tmp_path: Path) -> Path:
    """A chip that comes with version 2, SVN 2."""
    device.provision(tmp_path / "chip", ROOT, image=SIGNER.sign(image()))
    return tmp_path / "chip"


def start(chip: Path, data: bytes) -> Device:
    path = chip.parent / "update.img"
    path.write_bytes(data)
    return boot(chip, path)


def scalar(booted: Device) -> int:
    return booted.key.private_numbers().private_value


def test_keys_follow_from_secret_and_firmware(chip: Path) -> None:
    first, again = boot(chip), boot(chip)
    assert scalar(first) == scalar(again)
    assert first.tcb.measurement == image().measurement
    updated = start(chip, SIGNER.sign(image("3", 3)))
    assert scalar(updated) != scalar(first)
    assert updated.ueid == first.ueid
    assert updated.chain[1] == first.chain[1]
    tcb = verify_device_chain(updated.chain, ROOT.certificate).tcb
    assert (tcb.version, tcb.svn, tcb.measurement) == ("3", 3, image("3", 3).measurement)


def test_any_difference_in_what_was_signed_is_another_key(chip: Path) -> None:
    changes: list[dict[str, object]] = [{}, {"name": "x"}, {"version": "x"}, {"svn": 9}, {"payload": b"x"}]
    keys = {scalar(start(chip, SIGNER.sign(replace(image(), **change)))) for change in changes[:3] + changes[4:]}
    keys.add(scalar(start(chip, SIGNER.sign(image(svn=9)))))
    assert len(keys) == len(changes)


def test_who_signed_does_not_matter(chip: Path) -> None:
    assert scalar(start(chip, FirmwareSigner.issue(ROOT).sign(image()))) == scalar(boot(chip))


def test_a_chip_keeps_the_image_that_started(chip: Path) -> None:
    start(chip, SIGNER.sign(image("3", 2)))
    assert boot(chip).tcb.version == "3"
    assert read_image((chip / "firmware.img").read_bytes(), ROOT.certificate).version == "3"


def _unsigned(data: bytes) -> bytes:
    sign1, payload = cbor2.loads(data)
    protected, unprotected, claims, _ = sign1.value
    return cbor([cbor2.CBORTag(18, [protected, unprotected, claims, bytes(96)]), payload])


def _altered(data: bytes) -> bytes:
    sign1, payload = cbor2.loads(data)
    return cbor([sign1, payload + b" and more"])


def _foreign(_: bytes) -> bytes:
    return FirmwareSigner.issue(CertificateAuthority.create("Manufacturer")).sign(image("3", 3))


ATTACKS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "bare code": (lambda _: b"just code", "chip.image.malformed"),
    "unsigned": (_unsigned, "chip.image.signature"),
    "signed by another manufacturer": (_foreign, "chip.image.signature"),
    "altered": (_altered, "chip.image.altered"),
    "older": (lambda _: SIGNER.sign(image("1", 1)), "chip.image.rollback"),
    "for another model": (lambda _: SIGNER.sign(image(hwmodel="WB-SIM-2")), "chip.image.model"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_bad_images_do_not_start_and_change_nothing(chip: Path, name: str) -> None:
    make, reason = ATTACKS[name]
    good = boot(chip)
    bad = make((chip / "firmware.img").read_bytes())
    before = {path.name: path.read_bytes() for path in chip.iterdir()}
    with pytest.raises(ChipError) as caught:
        start(chip, bad)
    assert caught.value.reason == reason
    assert {path.name: path.read_bytes() for path in chip.iterdir()} == before
    assert scalar(boot(chip)) == scalar(good)
    (chip / "firmware.img").write_bytes(bad)  # Write access to the flash gains nothing either.
    with pytest.raises(ChipError) as caught:
        boot(chip)
    assert caught.value.reason == reason


@pytest.mark.parametrize("name", ATTACKS)
def test_a_chip_that_starts_them_all_the_same_cannot_hide_it(chip: Path, name: str) -> None:
    """Unlocked, the chip starts anything; but its key is another, and what certifies it says why."""
    make, _ = ATTACKS[name]
    good = boot(chip)
    bad = make((chip / "firmware.img").read_bytes())
    device.unlock(chip)
    forced = start(chip, bad)
    found = verify_device_chain(forced.chain, ROOT.certificate)
    assert (found.ueid, found.tcb.mode) == (good.ueid, "debug")
    assert found.public_key == forced.key.public_key()
    assert scalar(forced) != scalar(good)
    assert found.tcb.measurement != good.tcb.measurement
    # Back on genuine firmware it is still an unlocked chip, with a third key.
    genuine = boot(chip)
    assert genuine.tcb == replace(good.tcb, mode="debug")
    assert len({scalar(good), scalar(forced), scalar(genuine)}) == 3


def test_what_nobody_signed_cannot_name_its_version(chip: Path) -> None:
    device.unlock(chip)
    tcb = start(chip, _altered((chip / "firmware.img").read_bytes())).tcb
    assert (tcb.version, tcb.svn) == ("unverified", 0)


def test_a_debug_boot_blows_no_fuse(chip: Path) -> None:
    boot(chip)
    device.unlock(chip)
    start(chip, SIGNER.sign(image("7", 7)))
    fuses = Fuses.read(chip)
    assert (fuses.minimal_svn, fuses.mode) == (2, "debug")


def test_the_minimal_svn_only_rises(chip: Path) -> None:
    assert Fuses.read(chip).minimal_svn == 0
    for svn, least in ((2, 2), (5, 5), (5, 5), (9, 9)):
        start(chip, SIGNER.sign(image(str(svn), svn)))
        assert Fuses.read(chip).minimal_svn == least
    for svn in range(9):
        with pytest.raises(ChipError, match=r"chip\.image\.rollback"):
            start(chip, SIGNER.sign(image(str(svn), svn)))


def test_a_power_cut_between_image_and_fuse_leaves_a_chip_that_starts(
    chip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Fuses, "burn", lambda *_: (_ for _ in ()).throw(OSError("no power")))
        with pytest.raises(OSError, match="power"):
            start(chip, SIGNER.sign(image("3", 3)))
    assert Fuses.read(chip).minimal_svn == 0
    assert boot(chip).tcb.version == "3"
    assert Fuses.read(chip).minimal_svn == 3


def test_without_firmware_a_chip_says_so(chip: Path) -> None:
    (chip / "firmware.img").unlink()
    with pytest.raises(ChipError) as caught:
        boot(chip)
    assert caught.value.reason == "chip.image.missing"


@given(st.integers(0, (1 << 31) - 1), st.sampled_from(["production", "debug"]))
def test_fuses_round_trip(svn: int, mode: str) -> None:
    """Fuses.decode(f.encode()) == f."""
    fuses = Fuses(root=ROOT.certificate, minimal_svn=svn, mode=mode)  # type: ignore[arg-type]
    assert Fuses.decode(fuses.encode()) == fuses


@given(st.binary(max_size=200), st.integers(0, 1 << 14))
def test_hostile_fuses_raise_only_our_errors(data: bytes, place: int) -> None:
    with suppress(ChipError):
        Fuses.decode(data)
    good = Fuses(root=ROOT.certificate).encode()
    flipped = bytearray(good)
    flipped[place // 8 % len(good)] ^= 1 << place % 8
    with suppress(ChipError):
        assert Fuses.decode(bytes(flipped)).encode() == bytes(flipped)
