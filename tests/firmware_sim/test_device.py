"""Provisioning: what a manufacturer makes, and damaged directories."""

import stat
from pathlib import Path

import cbor2
import pytest

from firmware_sim import device
from firmware_sim.fuses import Fuses
from weighbridge.attest.firmware_image import read_image
from weighbridge.attest.identity import CertificateAuthority, verify_device_chain
from weighbridge.core.errors import ChipError, UsageError


@pytest.fixture(scope="module")
def root() -> CertificateAuthority:
    return CertificateAuthority.create("Manufacturer")


def test_a_booted_device_proves_who_it_is(root: CertificateAuthority, tmp_path: Path) -> None:
    ueid = device.provision(tmp_path, root, model="H-200")
    booted = device.boot(tmp_path)
    identity = verify_device_chain(booted.chain, root.certificate)
    assert identity.ueid == booted.ueid == ueid
    assert len(ueid) == 17
    assert ueid[0] == 1
    assert identity.tcb == booted.tcb
    assert (identity.tcb.vendor, identity.tcb.model) == ("Manufacturer", "H-200")
    assert identity.public_key == booted.key.public_key()
    assert booted.hwmodel == b"H-200"
    assert stat.S_IMODE((tmp_path / "secret.bin").stat().st_mode) == 0o600


def test_a_device_comes_with_firmware_of_its_manufacturer(root: CertificateAuthority, tmp_path: Path) -> None:
    device.provision(tmp_path, root)
    image = read_image((tmp_path / "firmware.img").read_bytes(), root.certificate)
    assert image == device.builtin_image()
    assert cbor2.loads(image.payload)["boot.py"] == Path(device.__file__).with_name("boot.py").read_bytes()
    assert device.boot(tmp_path).tcb.measurement == image.measurement


def test_two_devices_differ(root: CertificateAuthority, tmp_path: Path) -> None:
    ueids = {device.provision(tmp_path / name, root) for name in "ab"}
    keys = {device.boot(tmp_path / name).key.private_numbers().private_value for name in "ab"}
    assert len(ueids) == len(keys) == 2


def test_a_device_is_made_once(root: CertificateAuthority, tmp_path: Path) -> None:
    device.provision(tmp_path, root)
    with pytest.raises(UsageError):
        device.provision(tmp_path, root)
    for model in ("", "x" * 33, "a\nb", "é"):
        with pytest.raises(UsageError):
            device.provision(tmp_path / "other", root, model=model)


def test_damaged_devices_do_not_boot(root: CertificateAuthority, tmp_path: Path) -> None:
    for attempt in (device.boot, device.unlock):
        with pytest.raises(ChipError) as caught:
            attempt(tmp_path)
        assert caught.value.reason == "chip.device"
    device.provision(tmp_path, root)
    names = ("secret.bin", "idevid.der", "fuses.cbor")
    good = {name: (tmp_path / name).read_bytes() for name in names}
    other = Fuses(root=root.certificate, minimal_svn=-1).encode()
    damages = [
        *(("secret.bin", content) for content in (bytes(32), good["secret.bin"][:31])),
        *(("idevid.der", content) for content in (good["idevid.der"][:-1], b"")),
        *(("fuses.cbor", content) for content in (good["fuses.cbor"][:-1], b"", b"\xf6", other)),
    ]
    for name, content in damages:
        for each, intact in good.items():
            (tmp_path / each).write_bytes(content if each == name else intact)
        with pytest.raises(ChipError) as caught:
            device.boot(tmp_path)
        assert caught.value.reason == "chip.device"
    for each, intact in good.items():
        (tmp_path / each).write_bytes(intact)
    device.boot(tmp_path)
    for name in names:
        (tmp_path / name).unlink()
        with pytest.raises(ChipError):
            device.boot(tmp_path)
        (tmp_path / name).write_bytes(good[name])
