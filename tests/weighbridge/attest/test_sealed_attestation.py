"""An attestation holds for one worker, one image, one order and launchers of one manufacturer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.sealed_orders import sealed_order

from firmware_sim import device
from weighbridge.attest.certificates import load_der
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.sealed_attestation import Attested, Launcher, verify_attestation
from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.attest.sealed_starts import Start
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import IdentityError, UsageError

MAKER = CertificateAuthority.create("Maker")
LAUNCHER = Launcher.issue(MAKER, b"\x07" * 17)
START = Start(
    index=4, time=1, order="", verifier_nonce="", prover_nonce="", measurement="", previous="00" * 32
)  # fmt: skip
WORKER, SIGNER = os.urandom(32), os.urandom(32)


def attested(order: Order, launcher: Launcher = LAUNCHER, measurement: bytes | None = None) -> bytes:
    return launcher.quote(
        order, START, measurement=measurement or order.measurement, worker=WORKER, signer=SIGNER,
        isolation=["pid-namespace", "memory"],
    )  # fmt: skip


def refused(data: bytes, order: Order) -> None:
    with pytest.raises(SealedWorkerError) as caught:
        verify_attestation(data, order, MAKER.certificate)
    assert caught.value.reason == "sealed.attestation"


def test_an_attestation_says_whose_the_keys_are(tmp_path: Path) -> None:
    order = sealed_order()
    LAUNCHER.save(tmp_path)
    certificate = bytes_digest((tmp_path / "launcher.der").read_bytes())
    expected = Attested(
        launcher=b"\x07" * 17, certificate=certificate, worker=WORKER, signer=SIGNER, index=4, head=START.head,
        isolation=("memory", "pid-namespace"),
    )  # fmt: skip
    assert verify_attestation(attested(order), order, MAKER.certificate) == expected
    again = attested(order, Launcher.load(tmp_path))
    assert verify_attestation(again, order, MAKER.certificate) == expected
    assert (tmp_path / "launcher-key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.finding("sealed.attestation")
def test_one_of_another_order_is_refused() -> None:
    """Above all one that a party asked for with an old nonce, or with another key for the outcome or the inputs."""
    order = sealed_order()
    old = attested(order)
    for field in ("verifier_nonce", "prover_nonce", "commitment", "prover", "aggregator"):
        refused(old, replace(order, **{field: os.urandom(32)}))
    refused(old, replace(order, steps=None))


def test_a_chip_of_the_same_maker_vouches_for_no_worker(tmp_path: Path) -> None:
    """Its owner's machine has the key of a simulated chip. With it a Prover would make up a worker, and have the
    Verifier's secret encrypted to itself."""
    device.provision(tmp_path, MAKER)
    chip = load_der((tmp_path / device.IDEVID).read_bytes())
    key = device.identity_key((tmp_path / device.SECRET).read_bytes())
    order = sealed_order()
    refused(attested(order, Launcher(chip, key)), order)


def test_another_image_is_refused() -> None:
    order = sealed_order()
    refused(attested(order, measurement=os.urandom(48)), order)
    other = replace(order, measurement=os.urandom(48))
    refused(attested(other), order)


def test_each_image_has_its_own_key() -> None:
    """So one image's key says nothing for another, whatever certificate goes with it."""
    order = sealed_order()
    other = replace(order, measurement=os.urandom(48))
    mine, theirs = cbor2.loads(attested(order)), cbor2.loads(attested(other))
    refused(cbor([mine[0], *theirs[1:]]), order)
    refused(cbor([theirs[0], *mine[1:]]), order)


def test_other_launchers_are_refused() -> None:
    order = sealed_order()
    refused(attested(order, Launcher.issue(CertificateAuthority.create("Maker"), b"\x07" * 17)), order)


def test_no_party_makes_one_up() -> None:
    order = sealed_order()
    image, launcher, claims, _ = cbor2.loads(attested(order))
    forged = Ed25519PrivateKey.generate().sign(b"weighbridge/sealed-worker/1\x00" + claims)
    refused(cbor([image, launcher, claims, forged]), order)
    refused(cbor([launcher, image, claims, forged]), order)


def test_an_altered_one_is_refused() -> None:
    order = sealed_order()
    data = attested(order)
    for at in range(0, len(data), 7):
        refused(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], order)
    for each in (b"", data[:-1], data + b"\x00", bytes(1 << 20), cbor([1, 2, 3, 4]), cbor([b"", b"", b"", b""])):
        refused(each, order)


def test_claims_of_another_form_are_refused() -> None:
    order = sealed_order()
    image, launcher, claims, _ = cbor2.loads(attested(order))
    key = LAUNCHER._image_key(order.measurement)
    digest, worker, signer, index, head, names = cbor2.loads(claims)
    others = [
        [digest, worker[:31], signer, index, head, names], [digest, worker, signer, index, head, [1]],
        [digest, worker, signer, "4", head, names], [digest, worker, signer, index, head], 7,
        [digest, worker, signer, index, head, ["x"] * 65],
    ]  # fmt: skip
    for each in others:
        encoded = cbor(each)
        refused(cbor([image, launcher, encoded, key.sign(b"weighbridge/sealed-worker/1\x00" + encoded)]), order)


def test_identities_are_not_mixed_up(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Launcher.issue(MAKER, bytes(16))
    LAUNCHER.save(tmp_path / "a")
    Launcher.issue(MAKER, bytes(17)).save(tmp_path / "b")
    (tmp_path / "a" / "launcher.der").write_bytes((tmp_path / "b" / "launcher.der").read_bytes())
    with pytest.raises(IdentityError):
        Launcher.load(tmp_path / "a")
    with pytest.raises(IdentityError):
        Launcher.load(tmp_path / "none")
