"""Device identity: provisioning, derivation of keys from secret and firmware, and damaged directories."""

import stat
from pathlib import Path

import pytest

from firmware_sim import device
from weighbridge.errors import ChipError, UsageError
from weighbridge.identity import CertificateAuthority, verify_device_chain


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
    assert identity.firmware_digest == booted.firmware_digest == device.measure_firmware()
    assert identity.public_key == booted.key.public_key()
    assert booted.hwmodel == b"H-200"
    assert stat.S_IMODE((tmp_path / "secret.bin").stat().st_mode) == 0o600


def test_keys_follow_from_secret_and_firmware(
    root: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.provision(tmp_path, root)
    first, again = device.boot(tmp_path), device.boot(tmp_path)
    assert first.key.private_numbers() == again.key.private_numbers()
    monkeypatch.setattr(device, "measure_firmware", lambda: bytes(48))
    updated = device.boot(tmp_path)
    assert updated.key.private_numbers() != first.key.private_numbers()
    assert verify_device_chain(updated.chain, root.certificate).firmware_digest == bytes(48)
    assert updated.ueid == first.ueid


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
    with pytest.raises(ChipError) as caught:
        device.boot(tmp_path)
    assert caught.value.reason == "chip.device"
    device.provision(tmp_path, root)
    secret, idevid = (tmp_path / "secret.bin").read_bytes(), (tmp_path / "idevid.der").read_bytes()
    for name, content in (("secret.bin", bytes(32)), ("secret.bin", secret[:31]), ("idevid.der", idevid[:-1])):
        (tmp_path / "secret.bin").write_bytes(secret)
        (tmp_path / "idevid.der").write_bytes(idevid)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ChipError):
            device.boot(tmp_path)
