"""DICE TcbInfo: what an attestation certificate says about the firmware that its key belongs to.

The extension is DiceTcbInfo of the TCG's DICE Attestation Architecture, section 6.1.1 (OID 2.23.133.5.4.1). Only the
fields that are used here are accepted: vendor, model, version, svn, one SHA-384 in fwids, and the operational flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cryptography import x509
from cryptography.hazmat import asn1

from weighbridge.core.errors import IdentityError

TCB_INFO_OID = x509.ObjectIdentifier("2.23.133.5.4.1")
MEASUREMENT_SIZE = 48
MAX_TEXT = 32
"""Characters of a version or a model."""
MAX_VENDOR = 64
SVN_END = 1 << 31

Mode = Literal["production", "debug"]
"""`production`: the boot ROM starts only signed images that are not too old. `debug`: it starts anything."""

_SHA384_OID = x509.ObjectIdentifier("2.16.840.1.101.3.4.2.2")
# OperationalFlags is a named bit list (bit 1 notSecure, bit 3 debug), so DER drops its trailing zeros.
_FLAGS: dict[Mode, asn1.BitString] = {"production": asn1.BitString(b"", 0), "debug": asn1.BitString(b"\x50", 4)}


@asn1.sequence
class _Fwid:
    hash_alg: x509.ObjectIdentifier
    digest: bytes


@asn1.sequence
class _DiceTcbInfo:
    vendor: Annotated[str, asn1.Implicit(0)]
    model: Annotated[str, asn1.Implicit(1)]
    version: Annotated[str, asn1.Implicit(2)]
    svn: Annotated[int, asn1.Implicit(3)]
    fwids: Annotated[list[_Fwid], asn1.Implicit(6)]
    flags: Annotated[asn1.BitString, asn1.Implicit(7)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TcbInfo:
    """A measured firmware and the mode in which it was started.

    Attributes:
        vendor: Who made the chip, 1 to 64 printable characters.
        model: Its hardware model, 1 to 32 printable characters.
        version: Version of the firmware, 1 to 32 printable characters.
        svn: Security version number, 0 to 2^31 - 1: grows when older firmware must not be trusted any more.
        measurement: SHA-384 that stands for the firmware, 48 bytes; see docs/formats/firmware-image.md.
        mode: Whether the boot ROM checked the firmware before it started it.
    """

    vendor: str
    model: str
    version: str
    svn: int
    measurement: bytes
    mode: Mode

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            IdentityError: A field is out of its range.
        """
        for name, text, most in (
            ("vendor", self.vendor, MAX_VENDOR),
            ("model", self.model, MAX_TEXT),
            ("version", self.version, MAX_TEXT),
        ):
            if not (0 < len(text) <= most and text.isprintable()):
                raise IdentityError(f"The {name} of a firmware must be 1 to {most} printable characters on one line.")
        if not 0 <= self.svn < SVN_END:
            raise IdentityError("The security version number of a firmware must be from 0 to 2^31 - 1.")
        if len(self.measurement) != MEASUREMENT_SIZE:
            raise IdentityError(f"The measurement of a firmware must be a SHA-384, {MEASUREMENT_SIZE} bytes.")

    def extension(self) -> x509.UnrecognizedExtension:
        """Returns the extension for a certificate; `parse` reads its value back."""
        info = _DiceTcbInfo(
            vendor=self.vendor,
            model=self.model,
            version=self.version,
            svn=self.svn,
            fwids=[_Fwid(hash_alg=_SHA384_OID, digest=self.measurement)],
            flags=_FLAGS[self.mode],
        )
        return x509.UnrecognizedExtension(TCB_INFO_OID, asn1.encode_der(info))

    @classmethod
    def parse(cls, der: bytes) -> TcbInfo:
        """Reads the value of the extension: TcbInfo.parse(t.extension().value) == t.

        Raises:
            IdentityError: It is not DER, has other fields, or a field is out of its range.
        """
        try:
            info = asn1.decode_der(_DiceTcbInfo, der)
        except (ValueError, OverflowError) as error:
            raise IdentityError("The attestation certificate's firmware statement is malformed.") from error
        if len(info.fwids) != 1 or info.fwids[0].hash_alg != _SHA384_OID:
            raise IdentityError("The attestation certificate must state exactly one SHA-384 of a firmware.")
        for mode, flags in _FLAGS.items():
            if info.flags == flags:
                return cls(
                    vendor=info.vendor,
                    model=info.model,
                    version=info.version,
                    svn=info.svn,
                    measurement=info.fwids[0].digest,
                    mode=mode,
                )
        raise IdentityError("The attestation certificate's operational flags are neither production nor debug.")
