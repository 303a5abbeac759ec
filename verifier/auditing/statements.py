"""The statements of an audit: in-toto Statements v1 in DSSE envelopes with one Ed25519 signature.

What they are about (`subject`) is the `manifest.json` of each transcript, by its SHA-256, so that tools which know no
transcripts can verify them against the files that they have. What is said is in the predicate, one kind for each
message of an audit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from weighbridge.attest.dsse import DocumentError, canonical, open_envelope, seal
from weighbridge.attest.manifest import PAYLOAD_TYPE, STATEMENT_TYPE, SigningKey
from weighbridge.core.bounded import decode_json
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import FormatError, WeighbridgeError

Kind = Literal["plan", "enrolment", "commitments", "closing", "openings", "verdict"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_STATEMENT = 32 << 20
"""Most bytes of a statement."""

_PREDICATE = "https://weighbridge.dev/audit-{}/v1"
_HEX = re.compile(r"[0-9a-f]{64}")

Subject = tuple[str, str]
"""Name of a transcript, and hex SHA-256 of its manifest.json."""


class AuditError(WeighbridgeError):
    """A statement of an audit does not verify, or belongs elsewhere; it does not count."""

    code = "audit.statement"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement whose signature was verified.

    Attributes:
        predicate: What it says.
        subjects: What it is about.
        signer: Raw public key of who signed it (32 bytes).
        digest: BLAKE3 digest of what was signed, which names it (32 bytes).
    """

    predicate: dict[str, Any]
    subjects: tuple[Subject, ...]
    signer: bytes
    digest: bytes


def sign(kind: Kind, subjects: Sequence[Subject], predicate: dict[str, Any], key: SigningKey) -> bytes:
    """Returns a signed statement.

    Args:
        kind: What sort of statement it is.
        subjects: What it is about.
        predicate: What it says, as JSON.
        key: Signs it.
    """
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects],
        "predicateType": _PREDICATE.format(kind),
        "predicate": predicate,
    }
    return seal(canonical(statement), PAYLOAD_TYPE, [key])


def read(data: bytes, kind: Kind) -> Statement:
    """Reads a statement and verifies its signature.

    Args:
        data: The envelope.
        kind: What sort of statement it must be.

    Raises:
        AuditError: It is none of this kind, or its signature does not verify.
    """
    if len(data) > MAX_STATEMENT:
        raise AuditError(f"A statement of {len(data)} bytes is larger than {MAX_STATEMENT}; it is not read.")
    try:
        envelope = open_envelope(data, PAYLOAD_TYPE)
        value = decode_json(envelope.payload, unique_keys=True)
    except (DocumentError, FormatError) as error:
        raise AuditError(f"The {kind} of an audit cannot be read: {error.message}") from None
    if len(envelope.signers) != 1:
        raise AuditError(f"The {kind} of an audit has {len(envelope.signers)} signatures; it must have one.")
    match value:
        case {"_type": said, "subject": list(about), "predicateType": str(name), "predicate": dict(predicate), **rest}:
            if said != STATEMENT_TYPE or rest:
                raise AuditError(f"The {kind} of an audit is no in-toto Statement v1; ask for it again.")
        case _:
            raise AuditError(f"The {kind} of an audit is no in-toto Statement v1; ask for it again.")
    if name != _PREDICATE.format(kind):
        raise AuditError(f"This is no {kind} of an audit but another statement; give the right file.")
    return Statement(
        predicate=predicate,
        subjects=tuple(_subject(each) for each in about),
        signer=envelope.signers[0],
        digest=bytes_digest(envelope.payload),
    )


def _subject(raw: Any) -> Subject:
    match raw:
        case {"name": str(name), "digest": {"sha256": str(digest), **others}, **rest}:
            if not rest and not others and _HEX.fullmatch(digest):
                return name, digest
    raise AuditError("A statement of an audit names what it is about in another form; ask for it again.")
