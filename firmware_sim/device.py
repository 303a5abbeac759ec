"""A chip's hardware identity: what the manufacturer burns in, and the keys that follow from it at every boot.

The manufacturer gives a device a UEID, a unique secret and an IDevID certificate. At boot the device measures its
firmware and derives its attestation key from secret and measurement, as DICE does: another firmware has another key,
and only the device itself can certify it. A chip directory holds `secret.bin` (mode 0600) and `idevid.der`.

Signed firmware images and anti-rollback are not simulated yet: the measurement is of these source files.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

import weighbridge
from weighbridge.errors import ChipError, UsageError
from weighbridge.identity import CertificateAuthority, certificate_builder, tcb_info

SECRET_SIZE = 32
DEFAULT_MODEL = "WB-SIM-1"

# Order of the group of P-384 (FIPS 186-5): scalars are derived with 64 bits to spare, so that their bias is negligible.
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973
_SEED_SIZE = 56


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A booted device.

    Attributes:
        ueid: EAT UEID, 17 bytes.
        hwmodel: Model, as in the IDevID.
        key: Attestation key.
        chain: DER of the attestation certificate and of the IDevID.
        firmware_version: Version of the firmware.
        firmware_digest: SHA-384 of the firmware.
    """

    ueid: bytes
    hwmodel: bytes
    key: ec.EllipticCurvePrivateKey
    chain: tuple[bytes, bytes]
    firmware_version: str
    firmware_digest: bytes


def provision(directory: Path, manufacturer: CertificateAuthority, *, model: str = DEFAULT_MODEL) -> bytes:
    """Makes a new device in `directory`, as its manufacturer would.

    Args:
        directory: Where the device's secret and certificate shall lie; created if it does not exist.
        manufacturer: Who signs its IDevID.
        model: Hardware model, 1 to 32 ASCII characters.

    Returns:
        The device's UEID: type 0x01 (RAND) and 16 random bytes (RFC 9711, section 4.2.1).

    Raises:
        UsageError: There is a device already, or the model cannot be written down.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / "secret.bin").exists():
        raise UsageError(f"{directory} holds a device already; choose another directory.")
    if not (model.isascii() and model.isprintable() and 0 < len(model) <= 32):
        raise UsageError(f"{model!r} cannot be a model; use 1 to 32 printable ASCII characters.")
    ueid = b"\x01" + secrets.token_bytes(16)
    secret = secrets.token_bytes(SECRET_SIZE)
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, model), x509.NameAttribute(NameOID.SERIAL_NUMBER, ueid.hex())]
    )
    public_key = _derive(secret, b"idevid").public_key()
    builder = certificate_builder(subject, manufacturer.certificate.subject, public_key, authority=True, path_length=0)
    certificate = builder.sign(manufacturer.key, hashes.SHA384())
    (directory / "idevid.der").write_bytes(certificate.public_bytes(serialization.Encoding.DER))
    with os.fdopen(os.open(directory / "secret.bin", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    return ueid


def boot(directory: Path) -> Device:
    """Measures the firmware and derives the device's keys, as the hardware does at power-on.

    Raises:
        ChipError: The directory holds no device, or a damaged one.
    """
    try:
        secret = (directory / "secret.bin").read_bytes()
        idevid_der = (directory / "idevid.der").read_bytes()
        idevid = x509.load_der_x509_certificate(idevid_der)
        (model,) = idevid.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        (serial,) = idevid.subject.get_attributes_for_oid(NameOID.SERIAL_NUMBER)
        ueid = bytes.fromhex(str(serial.value))
    except (OSError, ValueError) as error:
        raise ChipError(f"{directory} holds no readable device; provision one first.", code="chip.device") from error
    device_key = _derive(secret, b"idevid")
    if len(secret) != SECRET_SIZE or device_key.public_key() != idevid.public_key():
        raise ChipError("The device's secret and certificate do not belong together.", code="chip.device")
    digest, version = measure_firmware(), weighbridge.__version__
    key = _derive(secret, b"attestation key" + digest)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"attestation key of {ueid.hex()}")])
    certificate = (
        certificate_builder(subject, idevid.subject, key.public_key(), authority=False)
        .add_extension(tcb_info(digest, version), critical=False)
        .sign(device_key, hashes.SHA384())
    )
    return Device(
        ueid=ueid,
        hwmodel=str(model.value).encode(),
        key=key,
        chain=(certificate.public_bytes(serialization.Encoding.DER), idevid_der),
        firmware_version=version,
        firmware_digest=digest,
    )


def measure_firmware() -> bytes:
    """Returns the SHA-384 over name, size and content of every source file of this package, in order of name."""
    digest = hashlib.sha384()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.digest()


def _derive(secret: bytes, label: bytes) -> ec.EllipticCurvePrivateKey:
    """Derives a P-384 key from the unique device secret (HKDF, RFC 5869; FIPS 186-5, A.2.1)."""
    seed = HKDF(algorithm=hashes.SHA384(), length=_SEED_SIZE, salt=b"weighbridge device/1", info=label).derive(secret)
    return ec.derive_private_key(int.from_bytes(seed) % (_ORDER - 1) + 1, ec.SECP384R1())
