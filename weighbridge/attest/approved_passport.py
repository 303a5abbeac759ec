"""Approved passports: a passport's facts, signed by k of n parties in one DSSE envelope.

What is signed is the canonical CBOR of the facts, so its digest is the passport's. Whose signatures count is for the
reader to say (`weighbridge.attest.dsse.Trust`), as with rule sets. Format: docs/passports.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weighbridge.attest.dsse import DocumentError, Trust, open_envelope, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError

MEDIA_TYPE = "application/vnd.weighbridge.passport.v1+cbor"
DOMAIN = "passport/1"
MAX_FILE = 32 << 20
_MAX_ITEMS = 1 << 20


@dataclass(frozen=True, slots=True)
class Approved:
    """A passport that enough parties signed.

    Attributes:
        digest: Hex digest of its facts.
        facts: The facts.
        signers: Names of the parties.
    """

    digest: str
    facts: dict[str, Any]
    signers: tuple[str, ...]


def passport_digest(facts: dict[str, Any]) -> str:
    """Returns the hex digest by which programs are approved: that of the canonical CBOR of their facts."""
    return record_digest(DOMAIN, facts).hex()


def sign(facts: dict[str, Any], keys: Sequence[SigningKey], former: bytes | None = None) -> bytes:
    """Returns an envelope over a passport's facts.

    Args:
        facts: The facts, as `weighbridge.program.passport` has them.
        keys: Who signs.
        former: A signed passport of the same programs, whose signatures are kept.

    Raises:
        DocumentError: `former` does not verify, or is that of other programs.
    """
    return seal(cbor(facts), MEDIA_TYPE, keys, former)


def read(data: bytes) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Reads a signed passport; returns its facts, and the key of each signer.

    Raises:
        DocumentError: It is malformed, or a signature does not verify.
    """
    if len(data) > MAX_FILE:
        raise DocumentError(f"a signed passport has at most {MAX_FILE} bytes; get it again from who made it")
    envelope = open_envelope(data, MEDIA_TYPE)
    return parse(envelope.payload), envelope.signers


def parse(payload: bytes) -> dict[str, Any]:
    """Reads the facts that are signed.

    Raises:
        DocumentError: They are no facts of a passport.
    """
    try:
        facts = decode_cbor(payload, max_items=_MAX_ITEMS)
    except FormatError:
        facts = None
    if not isinstance(facts, dict) or type(facts.get("format")) is not int or not all(type(k) is str for k in facts):
        raise DocumentError("the signed document is no passport; get it again from who made it")
    return facts


def verify(data: bytes, trust: Trust) -> Approved:
    """Reads a signed passport that enough parties signed.

    Raises:
        DocumentError: It is malformed, a signature does not verify, or too few parties signed (`document.signers`).
    """
    facts, _ = read(data)
    signers = trust.require(open_envelope(data, MEDIA_TYPE), "the passport")
    return Approved(passport_digest(facts), facts, signers)
