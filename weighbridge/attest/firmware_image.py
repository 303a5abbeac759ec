"""Firmware images: what a manufacturer signs, a boot ROM checks, and a Verifier knows by its measurement.

A file is a CBOR array of a COSE_Sign1 over claims (name, version, security version number, hardware model, size and
SHA-384 of the payload) and the payload. The signing key's certificate travels with it and leads to the manufacturer's
root, so one root says both which chips and which firmware are genuine. docs/formats/firmware-image.md has the bytes.

Reading is strict: a file has exactly one encoding, and nothing in it is used before its signature has been verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from weighbridge.attest.certificates import (
    certificate_builder,
    check_issued,
    key_pem,
    load_certificate,
    load_der,
    load_key,
)
from weighbridge.attest.credential_files import read_files, write_files
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tcb import MAX_TEXT, SVN_END
from weighbridge.attest.tokens import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError, FormatError, IdentityError, UsageError

MAX_IMAGE_BYTES = 64 << 20

_ES384 = -35
_X5CHAIN = 33
_SIGN1_TAG = 18
_PROTECTED = cbor({1: _ES384, 3: "application/vnd.weighbridge.firmware+cbor"})
_COORDINATE = 48  # Bytes of one half of a P-384 signature.
_FILES = ("firmware.pem", "firmware-key.pem")


@dataclass(frozen=True, kw_only=True, slots=True)
class FirmwareImage:
    """A firmware and what its manufacturer says about it.

    Attributes:
        name: What it is, 1 to 32 printable characters.
        version: For people, 1 to 32 printable characters.
        svn: Security version number, 0 to 2^31 - 1; a chip that started one never again starts a lower one.
        hwmodel: Hardware model that it is for, 1 to 32 printable characters.
        payload: The firmware itself.
    """

    name: str
    version: str
    svn: int
    hwmodel: str
    payload: bytes

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is out of its range.
        """
        for what, text in (("name", self.name), ("version", self.version), ("hardware model", self.hwmodel)):
            if not (type(text) is str and 0 < len(text) <= MAX_TEXT and text.isprintable()):
                raise UsageError(f"The {what} of a firmware image must be 1 to {MAX_TEXT} printable characters.")
        if type(self.svn) is not int or not 0 <= self.svn < SVN_END:
            raise UsageError("The security version number of a firmware image must be from 0 to 2^31 - 1.")

    @property
    def claims(self) -> bytes:
        """What is signed: deterministic CBOR, and the SHA-384 of the payload in it."""
        return cbor(
            {
                "name": self.name,
                "version": self.version,
                "svn": self.svn,
                "hwmodel": self.hwmodel,
                "size": len(self.payload),
                "sha384": hashlib.sha384(self.payload).digest(),
            }
        )

    @property
    def measurement(self) -> bytes:
        """SHA-384 of the claims, 48 bytes: the same for every signer, another for any other payload or version."""
        return hashlib.sha384(self.claims).digest()


class FirmwareSigner:
    """The manufacturer's key for firmware, with a certificate of the manufacturer's root for code signing."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        """Takes a key and its certificate; use `issue` or `load` to get one."""
        self.certificate = certificate
        self.key = key

    @classmethod
    def issue(cls, manufacturer: CertificateAuthority) -> FirmwareSigner:
        """Makes a new key that `manufacturer` allows to sign firmware, and nothing else."""
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "firmware signing")])
        builder = certificate_builder(subject, manufacturer.certificate.subject, key.public_key(), authority=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        return cls(builder.add_extension(usage, critical=False).sign(manufacturer.key, hashes.SHA384()), key)

    def save(self, directory: Path) -> None:
        """Writes `firmware.pem` and `firmware-key.pem` (mode 0600)."""
        certificate = self.certificate.public_bytes(serialization.Encoding.PEM)
        write_files(directory, dict(zip(_FILES, (certificate, key_pem(self.key)), strict=True)))

    @classmethod
    def load(cls, directory: Path) -> FirmwareSigner:
        """Reads what `save` wrote.

        Raises:
            IdentityError: A file is missing or is not what its name says.
        """
        certificate, key = read_files(directory, _FILES)
        return cls(load_certificate(certificate), load_key(key))

    @classmethod
    def of(cls, directory: Path) -> FirmwareSigner:
        """Returns the signer in a manufacturer's directory, made and saved there if there is none yet.

        Raises:
            IdentityError: The directory holds no readable authority, or an unreadable signer.
        """
        if not (directory / _FILES[1]).exists():
            cls.issue(CertificateAuthority.load(directory)).save(directory)
        return cls.load(directory)

    def sign(self, image: FirmwareImage) -> bytes:
        """Returns the image as a file; `read_image` reads it back."""
        r, s = decode_dss_signature(self.key.sign(_to_be_signed(image.claims), ec.ECDSA(hashes.SHA384())))
        signature = r.to_bytes(_COORDINATE) + s.to_bytes(_COORDINATE)
        certificate = self.certificate.public_bytes(serialization.Encoding.DER)
        return _file(certificate, image.claims, signature, image.payload)


def read_image(data: bytes, root: x509.Certificate) -> FirmwareImage:
    """Reads and verifies a firmware image; inverse of `FirmwareSigner.sign`.

    Args:
        data: The whole file.
        root: The manufacturer's root certificate.

    Raises:
        ChipError: It is no image or not its one encoding (`chip.image.malformed`), not signed by a firmware key of this
            manufacturer (`chip.image.signature`), or has another payload than was signed (`chip.image.altered`).
    """
    certificate, claims, signature, payload = _parts(data)
    _verify(certificate, claims, signature, root)
    return _image(claims, payload)


def _parts(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Returns (certificate, claims, signature, payload); accepts only what `_file` makes."""
    try:
        sign1, payload = decode_cbor(data, max_bytes=MAX_IMAGE_BYTES)
        _, unprotected, claims, signature = sign1.value
        if not isinstance(unprotected, Mapping):
            raise TypeError("no header")
        certificate = unprotected[_X5CHAIN]
        if not all(type(part) is bytes for part in (certificate, claims, signature, payload)):
            raise TypeError("parts that are not bytes")
        if len(signature) != 2 * _COORDINATE or _file(certificate, claims, signature, payload) != data:
            raise ValueError("another form")
    except (FormatError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _malformed("a COSE_Sign1 under ES384 with its certificate, and a payload, are needed") from error
    return certificate, claims, signature, payload


def _verify(certificate: bytes, claims: bytes, signature: bytes, root: x509.Certificate) -> None:
    r, s = int.from_bytes(signature[:_COORDINATE]), int.from_bytes(signature[_COORDINATE:])
    try:
        signer = load_der(certificate)
        check_issued(signer, root, authority=False)
        usage = signer.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if list(usage) != [ExtendedKeyUsageOID.CODE_SIGNING]:
            raise IdentityError("The certificate is not for signing firmware.")
        key = signer.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)  # check_issued looked.
        key.verify(encode_dss_signature(r, s), _to_be_signed(claims), ec.ECDSA(hashes.SHA384()))
    except (IdentityError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise ChipError(
            "The firmware image is not signed with a firmware key of this chip's manufacturer; get a genuine one.",
            code="chip.image.signature",
        ) from error


def _image(claims: bytes, payload: bytes) -> FirmwareImage:
    try:
        said = decode_cbor(claims, max_bytes=4096)
        image = FirmwareImage(
            name=said["name"], version=said["version"], svn=said["svn"], hwmodel=said["hwmodel"], payload=payload
        )
        altered = (said["size"], said["sha384"]) != (len(payload), hashlib.sha384(payload).digest())
    except (FormatError, UsageError, KeyError, TypeError) as error:
        raise _malformed("its claims are not those of a firmware") from error
    if altered:
        raise ChipError(
            "The firmware's payload is not the one that was signed: the image was altered; get a genuine one.",
            code="chip.image.altered",
        )
    if image.claims != claims:
        raise _malformed("it has claims that are not known here")
    return image


def _malformed(why: str) -> ChipError:
    return ChipError(f"This is no signed firmware image: {why}.", code="chip.image.malformed")


def _to_be_signed(claims: bytes) -> bytes:
    """Returns the Sig_structure of RFC 9052, section 4.4."""
    return cbor(["Signature1", _PROTECTED, b"", claims])


def _file(certificate: bytes, claims: bytes, signature: bytes, payload: bytes) -> bytes:
    sign1: list[Any] = [_PROTECTED, {_X5CHAIN: certificate}, claims, signature]
    return cbor([cbor2.CBORTag(_SIGN1_TAG, sign1), payload])
