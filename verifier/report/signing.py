"""Reports as signed documents: the JSON of a report in a DSSE envelope with the Verifier's key.

The key lies beside the registry; its public half is what readers of reports need.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weighbridge.attest.dsse import DocumentError, canonical, open_envelope, seal
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.core import secret_files
from weighbridge.core.errors import UsageError

MEDIA_TYPE = "application/vnd.weighbridge.report.v4+json"
EARLIER_MEDIA_TYPES = tuple(f"application/vnd.weighbridge.report.v{version}+json" for version in (2, 3))
"""Reports of these types are read (`verifier.report.earlier_reports`), and no longer made."""
KEY = ".report-key"
"""What the file with the key is called behind the registry's name; `.pub` beside it holds the public key in hex."""


@dataclass(frozen=True, slots=True)
class SignedReport:
    """A report whose signature verifies.

    Attributes:
        report: Its content.
        signers: Raw public keys of those who signed it.
    """

    report: dict[str, Any]
    signers: tuple[bytes, ...]


def load_key(path: Path) -> SigningKey:
    """Loads the key that signs reports, or makes it, and writes the public key beside it.

    Raises:
        UsageError: It cannot be read or written, or others may read it.
    """
    key = load_or_create_key(path)
    public = path.with_name(path.name + ".pub")
    try:
        secret_files.publish(public, key.public.hex() + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {public} ({error.strerror}); make room or change permissions") from None
    return key


def sign(report: dict[str, Any], key: SigningKey) -> bytes:
    """Returns the signed document; the same report and key always give the same bytes.

    Raises:
        DocumentError: The report holds a number that JSON cannot (an internal fault).
    """
    try:
        payload = canonical(report)
    except ValueError:
        raise DocumentError("the report holds an infinite number; this is a fault of the Verifier") from None
    return seal(payload, MEDIA_TYPE, [key])


def open_report(data: bytes) -> SignedReport:
    """Reads a signed report.

    Raises:
        DocumentError: It is malformed, altered, or no report.
    """
    # In canonical JSON the type stands there so.
    earlier = (name for name in EARLIER_MEDIA_TYPES if f'"payloadType":"{name}"'.encode() in data)
    envelope = open_envelope(data, next(earlier, MEDIA_TYPE))
    try:
        report = json.loads(envelope.payload)
        same = canonical(report) == envelope.payload
    except (ValueError, RecursionError):
        same = False
    if not same or not isinstance(report, dict):
        raise DocumentError("what was signed is not the canonical JSON of a report; get it again from the Verifier")
    return SignedReport(report, envelope.signers)
