"""The boot ROM: from a unique secret and a measured firmware to the key that signs tokens, as DICE has it.

    unique device secret (UDS)  ->  IDevID key                              the device, whatever it runs
    UDS, measurement, mode      ->  compound device identifier (CDI)        the device with this firmware
    CDI                         ->  attestation key, certified by the IDevID key with DICE TcbInfo

Only the ROM reads the secret; the firmware gets the attestation key and its certificate. So another firmware has
another key, and its certificate says which. A chip starts only images that its manufacturer signed for its model and
that are not older than any it has started before. One that was unlocked for debugging starts anything, and every token
says so.

The payload is measured, not executed: the simulated chip always runs the code of this package.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from firmware_sim.counter import write_durably
from firmware_sim.fuses import Fuses
from weighbridge.attest.certificates import certificate_builder
from weighbridge.attest.firmware_image import FirmwareImage, read_image
from weighbridge.attest.tcb import MAX_TEXT, MAX_VENDOR, Mode, TcbInfo
from weighbridge.core import secret_files
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError

SECRET_SIZE = 32
SECRET, IDEVID, FLASH = "secret.bin", "idevid.der", "firmware.img"
"""Files of a chip's directory: the unique device secret, the IDevID certificate, and the image that it starts."""

UNVERIFIED = "unverified"
"""Version of an unsigned firmware: what it says about itself is worth nothing."""

# Order of the group of P-384 (FIPS 186-5): scalars are derived with 64 bits to spare, so that their bias is negligible.
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973
_SEED_SIZE = 56


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A booted device: what its firmware is given.

    Attributes:
        ueid: EAT UEID, 17 to 33 bytes.
        hwmodel: Model, as in the IDevID.
        key: Attestation key.
        chain: DER of the attestation certificate and of the IDevID.
        tcb: The firmware that was started and how, as in the attestation certificate.
    """

    ueid: bytes
    hwmodel: bytes
    key: ec.EllipticCurvePrivateKey
    chain: tuple[bytes, bytes]
    tcb: TcbInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Nameplate:
    """What a device's IDevID certificate says about it.

    Attributes:
        ueid: EAT UEID, 17 to 33 bytes.
        model: Hardware model.
        vendor: Name of its manufacturer.
        certificate: The IDevID.
    """

    ueid: bytes
    model: str
    vendor: str
    certificate: x509.Certificate

    @classmethod
    def read(cls, directory: Path) -> Nameplate:
        """Reads the IDevID in a chip's directory.

        Raises:
            ChipError: There is none, or a damaged one (`chip.device`).
        """
        try:
            certificate = x509.load_der_x509_certificate((directory / IDEVID).read_bytes())
            (model,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            (serial,) = certificate.subject.get_attributes_for_oid(NameOID.SERIAL_NUMBER)
            (vendor,) = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
            ueid = bytes.fromhex(str(serial.value))
        except (OSError, ValueError) as error:
            raise ChipError(
                f"{directory} holds no readable device; provision one first.", code="chip.device"
            ) from error
        texts = str(model.value)[:MAX_TEXT], str(vendor.value)[:MAX_VENDOR]
        return cls(ueid=ueid, model=texts[0], vendor=texts[1], certificate=certificate)


def accept(data: bytes, fuses: Fuses, model: str) -> FirmwareImage:
    """Returns the image if a chip with these fuses starts it.

    Args:
        data: The image's file.
        fuses: The chip's fuses.
        model: Its hardware model.

    Raises:
        ChipError: The image is not signed by the manufacturer, altered, for another model or older than one that was
            started before (`chip.image.*`).
    """
    image = read_image(data, fuses.root)
    if image.hwmodel != model:
        raise ChipError(
            f"The firmware image is for the model {image.hwmodel}, not {model}; get the right one.",
            code="chip.image.model",
        )
    if image.svn < fuses.minimal_svn:
        raise ChipError(
            f"The firmware image has the security version number {image.svn}, and this chip has started "
            f"{fuses.minimal_svn}: it does not go back; get a newer image.",
            code="chip.image.rollback",
        )
    return image


class BootRom:
    """What runs first on a chip, and cannot be changed."""

    def __init__(self, directory: Path) -> None:
        """Reads what was burned into a chip.

        Raises:
            ChipError: The directory holds no device, or a damaged one (`chip.device`).
        """
        self._directory = directory
        self.fuses, self.plate = Fuses.read(directory), Nameplate.read(directory)
        try:
            secret_files.require_private(directory / SECRET)
            self._secret = (directory / SECRET).read_bytes()
        except OSError as error:
            raise ChipError(f"{directory} holds no device; provision one first.", code="chip.device") from error
        self._key = identity_key(self._secret)
        if len(self._secret) != SECRET_SIZE or self._key.public_key() != self.plate.certificate.public_key():
            raise ChipError("The device's secret and certificate do not belong together.", code="chip.device")

    def start(self, data: bytes) -> Device:
        """Checks and measures an image, and returns the device as it is under it.

        A signed image becomes the one that the chip starts from now on, and its SVN the lowest that does. Under a debug
        fuse neither is checked nor changed.

        Args:
            data: The image's file.

        Raises:
            ChipError: The image is not signed by the manufacturer, altered, for another model or older than one that
                was started before (`chip.image.*`). The chip stays as it was.
        """
        mode = self.fuses.mode
        if mode == "production":
            image = accept(data, self.fuses, self.plate.model)
            # The image before the fuse: a power cut in between must not leave a chip without an image that starts.
            if not _holds(self._directory / FLASH, data):
                write_durably(self._directory / FLASH, data)
            if image.svn > self.fuses.minimal_svn:
                self.fuses = self.fuses.raised(image.svn)
                self.fuses.burn(self._directory)
            return self._device(image.measurement, image.version, image.svn, mode)
        try:
            image = read_image(data, self.fuses.root)
        except ChipError:
            return self._device(hashlib.sha384(data).digest(), UNVERIFIED, 0, mode)
        return self._device(image.measurement, image.version, image.svn, mode)

    def _device(self, measurement: bytes, version: str, svn: int, mode: Mode) -> Device:
        plate = self.plate
        tcb = TcbInfo(
            vendor=plate.vendor, model=plate.model, version=version, svn=svn, measurement=measurement, mode=mode
        )
        key = _scalar(_compound_identifier(self._secret, measurement, mode), b"attestation key")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"attestation key of {plate.ueid.hex()}")])
        certificate = (
            certificate_builder(subject, plate.certificate.subject, key.public_key(), authority=False)
            .add_extension(tcb.extension(), critical=False)
            .sign(self._key, hashes.SHA384())
        )
        der = serialization.Encoding.DER
        return Device(
            ueid=plate.ueid,
            hwmodel=plate.model.encode(),
            key=key,
            chain=(certificate.public_bytes(der), plate.certificate.public_bytes(der)),
            tcb=tcb,
        )


def boot(directory: Path, image: Path | None = None) -> Device:
    """Starts the chip in `directory`, as the hardware does at power-on.

    Args:
        directory: The chip's directory, as `provision` made it.
        image: An image to start, and to keep if it starts; without one the chip starts the image that it has.

    Raises:
        ChipError: There is no intact device (`chip.device`), or it does not start the image (`chip.image.*`).
    """
    rom = BootRom(directory)
    path = image or directory / FLASH
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ChipError(
            f"The chip has no firmware to start: {path} is unreadable ({error.strerror}).", code="chip.image.missing"
        ) from error
    return rom.start(data)


def _holds(path: Path, data: bytes) -> bool:
    return path.exists() and path.read_bytes() == data


def identity_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    """Returns the IDevID key of a unique device secret: for the ROM, and once for the manufacturer who certifies it."""
    return _scalar(secret, b"idevid")


def _compound_identifier(secret: bytes, measurement: bytes, mode: Mode) -> bytes:
    return hmac.digest(secret, cbor(["weighbridge cdi/1", measurement, mode]), "sha384")


def _scalar(secret: bytes, label: bytes) -> ec.EllipticCurvePrivateKey:
    """Derives a P-384 key from a secret (HKDF, RFC 5869; FIPS 186-5, A.2.1)."""
    seed = HKDF(algorithm=hashes.SHA384(), length=_SEED_SIZE, salt=b"weighbridge device/1", info=label).derive(secret)
    return ec.derive_private_key(int.from_bytes(seed) % (_ORDER - 1) + 1, ec.SECP384R1())
