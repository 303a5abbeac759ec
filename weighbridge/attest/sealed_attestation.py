"""What a sealed worker is, said by its launcher: which image it is, which keys are its own, for which order.

As a chip's boot ROM does (DICE), the launcher derives a key from its own secret and the measurement of the image that
it starts, and certifies it: manufacturer's root -> launcher (IDevID) -> key of this image here (Ed25519, DICE TcbInfo).
With that key it signs one statement for each worker. Ed25519 leaves no choice in a signature that could carry bits.

The launcher is believed, and the root of its machine can be it. What a quote of a hardware enclave would replace is
exactly this module: it has the two sides that `weighbridge.attest.quotes` asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from weighbridge.attest.certificates import certificate_builder, check_issued, key_pem, load_der, load_key
from weighbridge.attest.credential_files import read_files, write_files
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.attest.sealed_starts import Start
from weighbridge.attest.tcb import MAX_VENDOR, TCB_INFO_OID, TcbInfo
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import FormatError, IdentityError, UsageError

ATTESTATION_LIMIT = 32 << 10
MODEL = "sealed worker"
_FORM = "2"
"""Of what is measured: the list of an image."""
_DOMAIN = b"weighbridge/sealed-worker/1\x00"
_KEY_INFO = b"weighbridge/sealed-worker-key/1\x00"
_FILES = ("launcher-key.pem", "launcher.der")
_KEY = 32
_NAMES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Attested:
    """What a verified attestation says.

    Attributes:
        launcher: UEID of the launcher (17 to 33 bytes).
        certificate: BLAKE3 of its certificate (DER, 32 bytes): two of one UEID are two devices.
        worker: The worker's public key of the channel, for this job only.
        signer: The worker's key that signs the outcome, for this job only.
        index: Place of this start in the launcher's log.
        head: Head of that log with this start.
        isolation: What the worker said to be confined by, sorted.
    """

    launcher: bytes
    certificate: bytes
    worker: bytes
    signer: bytes
    index: int
    head: bytes
    isolation: tuple[str, ...]


class Launcher:
    """The identity of what measures and starts sealed workers on one machine."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        """Takes the certificate that a manufacturer's root issued, and its key."""
        self._certificate, self._key = certificate, key

    @classmethod
    def issue(cls, manufacturer: CertificateAuthority, ueid: bytes) -> Launcher:
        """Makes a new launcher that the manufacturer vouches for.

        Raises:
            UsageError: The UEID has another length than UEIDs have.
        """
        if not 17 <= len(ueid) <= 33:
            raise UsageError("a UEID has 17 to 33 bytes")
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, MODEL), x509.NameAttribute(NameOID.SERIAL_NUMBER, ueid.hex())]
        )
        issuer = manufacturer.certificate.subject
        builder = certificate_builder(subject, issuer, key.public_key(), authority=True, path_length=0)
        return cls(builder.sign(manufacturer.key, hashes.SHA384()), key)

    def save(self, directory: Path) -> None:
        """Writes `launcher-key.pem` (mode 0600) and `launcher.der`."""
        contents = key_pem(self._key), self._certificate.public_bytes(serialization.Encoding.DER)
        write_files(directory, dict(zip(_FILES, contents, strict=True)))

    @classmethod
    def load(cls, directory: Path) -> Launcher:
        """Reads what `save` wrote.

        Raises:
            IdentityError: A file is missing or is not what its name says.
            UsageError: Others may read the key.
        """
        key, der = read_files(directory, _FILES)
        launcher = cls(load_der(der), load_key(key))
        if launcher._certificate.public_key() != launcher._key.public_key():
            raise IdentityError(f"the key and the certificate of the launcher in {directory} do not belong together")
        return launcher

    def quote(
        self, order: Order, start: Start, *, measurement: bytes, worker: bytes, signer: bytes, isolation: list[str]
    ) -> bytes:
        """Returns the attestation of a worker.

        Args:
            order: Its job.
            start: Its line in the log.
            measurement: Of the image as it was started.
            worker: Its public key of the channel.
            signer: Its key that signs the outcome.
            isolation: What it is confined by.
        """
        key = self._image_key(measurement)
        claims = cbor([order.digest, worker, signer, start.index, start.head, sorted(isolation)])
        chain = [
            each.public_bytes(serialization.Encoding.DER)
            for each in (self._image_certificate(key, measurement), self._certificate)
        ]
        return cbor([*chain, claims, key.sign(_DOMAIN + claims)])

    def _image_key(self, measurement: bytes) -> Ed25519PrivateKey:
        secret = self._key.private_numbers().private_value.to_bytes(48)
        seed = HKDF(hashes.SHA384(), 32, salt=None, info=_KEY_INFO + measurement).derive(secret)
        return Ed25519PrivateKey.from_private_bytes(seed)

    def _image_certificate(self, key: Ed25519PrivateKey, measurement: bytes) -> x509.Certificate:
        (vendor,) = self._certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
        tcb = TcbInfo(
            vendor=str(vendor.value)[:MAX_VENDOR], model=MODEL, version=_FORM, svn=0,
            measurement=measurement, mode="production",
        )  # fmt: skip
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{MODEL} image")])
        builder = certificate_builder(subject, self._certificate.subject, key.public_key(), authority=False)
        return builder.add_extension(tcb.extension(), critical=False).sign(self._key, hashes.SHA384())


@dataclass(frozen=True, slots=True)
class LauncherVerifier:
    """Checks attestations by the root that vouches for launchers (`weighbridge.attest.quotes.QuoteVerifier`).

    Attributes:
        root: That root's certificate.
    """

    root: x509.Certificate

    def verify(self, data: bytes, order: Order) -> Attested:
        """See `verify_attestation`."""
        return verify_attestation(data, order, self.root)


def verify_attestation(data: bytes, order: Order, root: x509.Certificate) -> Attested:
    """Checks what a launcher says of a worker: both parties do before either trusts the worker's keys.

    Args:
        data: The attestation.
        order: The job that this party agreed to, with its own nonce.
        root: The manufacturer's root.

    Raises:
        SealedWorkerError: It is malformed, of another launcher, image or order, or was altered (`sealed.attestation`).
    """
    if len(data) > ATTESTATION_LIMIT:
        raise _refused("it is too large")
    try:
        image_der, launcher_der, claims, signature = decode_cbor(data, max_depth=2)
        image, launcher = load_der(image_der), load_der(launcher_der)
        check_issued(launcher, root, authority=True)
        ueid = _named(launcher)
        check_issued(image, launcher, authority=False, key_type=Ed25519PublicKey)
        key = image.public_key()
        assert isinstance(key, Ed25519PublicKey)  # check_issued looked
        key.verify(signature, _DOMAIN + claims)
        extension = image.extensions.get_extension_for_oid(TCB_INFO_OID).value
        assert isinstance(extension, x509.UnrecognizedExtension)
        tcb = TcbInfo.parse(extension.value)
    except (FormatError, IdentityError, InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise _refused("it is malformed, was altered, or is not of a launcher of this manufacturer") from error
    if ueid is None:
        raise _refused("it is of another kind of device than a launcher of sealed workers")
    if tcb.model != MODEL or tcb.measurement != order.measurement or tcb.mode != "production":
        raise _refused("the worker is another image than the order names")
    match decode_cbor(claims, max_depth=2):
        case [bytes(digest), bytes(worker), bytes(signer), int(index), bytes(head), [*names]]:
            pass
        case _:
            raise _refused("its claims are malformed")
    if digest != order.digest:
        raise _refused("it is of another order")
    if len(worker) != _KEY or len(signer) != _KEY or len(names) > _NAMES or not all(type(n) is str for n in names):
        raise _refused("its claims are malformed")
    return Attested(
        launcher=ueid, certificate=bytes_digest(launcher_der), worker=worker, signer=signer, index=index, head=head,
        isolation=tuple(n[:_NAMES] for n in names),
    )  # fmt: skip


def launcher_of(der: bytes, root: x509.Certificate) -> bytes:
    """Returns the UEID of a launcher, by its certificate.

    Args:
        der: The certificate.
        root: The manufacturer's root.

    Raises:
        IdentityError: It is no certificate of a launcher that this manufacturer vouches for.
    """
    certificate = load_der(der)
    check_issued(certificate, root, authority=True)
    try:
        ueid = _named(certificate)
    except ValueError:
        ueid = None
    if ueid is None:
        raise IdentityError("the certificate is of no launcher of sealed workers; give a machine's launcher.der")
    return ueid


def _named(launcher: x509.Certificate) -> bytes | None:
    """Returns the UEID of a launcher; None for another device.

    Raises:
        ValueError: The certificate names none.
    """
    (serial,) = launcher.subject.get_attributes_for_oid(NameOID.SERIAL_NUMBER)
    (model,) = launcher.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    ueid = bytes.fromhex(str(serial.value))
    # The root may have issued chips too, whose keys their owners' machines hold.
    return ueid if model.value == MODEL else None


def _refused(why: str) -> SealedWorkerError:
    return SealedWorkerError(f"this attestation is refused: {why}; send the worker nothing", code="sealed.attestation")
