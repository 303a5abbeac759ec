"""What a manufacturer does: makes devices, and the firmware that they are delivered with.

A chip's directory then holds `secret.bin` (the unique device secret, mode 0600), `idevid.der` (its certificate),
`fuses.cbor` and `firmware.img`. What happens with them at power-on is in `boot`.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

import weighbridge
from firmware_sim.boot import FLASH, IDEVID, SECRET, SECRET_SIZE, Device, boot, identity_key
from firmware_sim.counter import write_durably
from firmware_sim.fuses import Fuses
from weighbridge.attest.certificates import certificate_builder
from weighbridge.attest.firmware_image import FirmwareImage, FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError, UsageError

__all__ = ["Device", "boot", "builtin_image", "provision", "unlock"]

DEFAULT_MODEL = "WB-SIM-1"

SECURITY_VERSION = 1
"""Security version number of the built-in firmware; raised when older ones must not be trusted any more."""


def builtin_image(model: str = DEFAULT_MODEL) -> FirmwareImage:
    """Returns the firmware that this package is, unsigned: its payload is every source file by name, as CBOR."""
    sources = {path.name: path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))}
    return FirmwareImage(
        name="weighbridge firmware",
        version=weighbridge.__version__,
        svn=SECURITY_VERSION,
        hwmodel=model,
        payload=cbor(sources),
    )


def provision(
    directory: Path, manufacturer: CertificateAuthority, *, model: str = DEFAULT_MODEL, image: bytes | None = None
) -> bytes:
    """Makes a new device in `directory`, as its manufacturer would.

    Args:
        directory: Where everything that belongs to the chip shall lie; created if it does not exist.
        manufacturer: Who signs its IDevID, and whose firmware it starts.
        model: Hardware model, 1 to 32 ASCII characters.
        image: Signed firmware image to deliver it with; without one, the built-in firmware, signed for the occasion.

    Returns:
        The device's UEID: type 0x01 (RAND) and 16 random bytes (RFC 9711, section 4.2.1).

    Raises:
        UsageError: There is a device already, or the model cannot be written down.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / SECRET).exists():
        raise UsageError(f"{directory} holds a device already; choose another directory.")
    if not (model.isascii() and model.isprintable() and 0 < len(model) <= 32):
        raise UsageError(f"{model!r} cannot be a model; use 1 to 32 printable ASCII characters.")
    ueid = b"\x01" + secrets.token_bytes(16)
    secret = secrets.token_bytes(SECRET_SIZE)
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, model), x509.NameAttribute(NameOID.SERIAL_NUMBER, ueid.hex())]
    )
    builder = certificate_builder(
        subject, manufacturer.certificate.subject, identity_key(secret).public_key(), authority=True, path_length=0
    )
    certificate = builder.sign(manufacturer.key, hashes.SHA384())
    if image is None:
        image = FirmwareSigner.issue(manufacturer).sign(builtin_image(model))
    write_durably(directory / FLASH, image)
    Fuses(root=manufacturer.certificate).burn(directory)
    (directory / IDEVID).write_bytes(certificate.public_bytes(serialization.Encoding.DER))
    with os.fdopen(os.open(directory / SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    return ueid


def unlock(directory: Path) -> None:
    """Blows the debug fuse of a chip: it starts any firmware from its next boot on, and each of its tokens says so.

    Raises:
        ChipError: The directory holds no device (`chip.device`).
    """
    if not (directory / SECRET).exists():
        raise ChipError(f"{directory} holds no device; provision one first.", code="chip.device")
    Fuses.read(directory).unlocked().burn(directory)
