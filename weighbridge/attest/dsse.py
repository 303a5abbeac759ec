"""Signed documents: a DSSE envelope (https://github.com/secure-systems-lab/dsse) with one or more Ed25519 signatures.

Rule sets, reports and score sheets are such documents. An envelope carries the signers' public keys: it tells which
keys signed; whose keys these are, and how many of them are enough, the reader decides (`Trust`).
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from weighbridge.attest.manifest import SigningKey, key_id
from weighbridge.core.errors import WeighbridgeError

MAX_SIGNATURES = 64
_HEX_KEY = re.compile(r"[0-9a-f]{64}")


class DocumentError(WeighbridgeError):
    """A signed document is malformed, or too few of those who are trusted signed it."""

    code = "document.malformed"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A document whose every signature verifies.

    Attributes:
        payload: The signed bytes.
        signers: Raw public key of each signer (32 bytes), in the order of the envelope, each once.
    """

    payload: bytes
    signers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signatures count, and how many are needed.

    Attributes:
        keys: Raw public key of each party (32 bytes) to its name.
        quorum: How many different parties must have signed.
    """

    keys: dict[bytes, str]
    quorum: int

    def __post_init__(self) -> None:
        """Checks that the quorum can be reached.

        Raises:
            DocumentError: It cannot, or no signature would be required.
        """
        if not 1 <= self.quorum <= len(self.keys):
            raise DocumentError(
                f"a quorum of {self.quorum} of {len(self.keys)} parties makes no sense; name at least as many keys",
                code="document.trust",
            )

    @classmethod
    def load(cls, path: str | Path) -> Trust:
        """Reads a TOML file of `quorum = k` and a table `[parties]` of name = "hex public key".

        Raises:
            DocumentError: It is not such a file.
        """
        try:
            raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise DocumentError(f"cannot read {path} ({error}); give a TOML file", code="document.trust") from None
        match raw:
            case {"quorum": int(quorum), "parties": dict(parties), **rest} if not rest and type(quorum) is int:
                pass
            case _:
                raise DocumentError(
                    f'{path} must hold exactly `quorum = k` and a table [parties] of name = "public key in hex"',
                    code="document.trust",
                )
        keys: dict[bytes, str] = {}
        for name, key in parties.items():
            if not isinstance(key, str) or not _HEX_KEY.fullmatch(key):
                raise DocumentError(
                    f"{path}: the key of {name[:80]!r} is not 64 hexadecimal digits", code="document.trust"
                )
            if keys.setdefault(bytes.fromhex(key), name) != name:
                raise DocumentError(
                    f"{path}: one key stands for two parties, so they would count twice; give each its own",
                    code="document.trust",
                )
        return cls(keys, quorum)

    def require(self, envelope: Envelope, what: str) -> tuple[str, ...]:
        """Returns the names of the parties that signed.

        Args:
            envelope: A verified envelope; signers that are no party do not count.
            what: Names the document in the message.

        Raises:
            DocumentError: They are fewer than the quorum (`document.signers`).
        """
        names = tuple(self.keys[key] for key in envelope.signers if key in self.keys)
        if len(names) < self.quorum:
            raise DocumentError(
                f"{what} is signed by {len(names)} of the parties ({', '.join(names) or 'none'}), and {self.quorum} of "
                f"{len(self.keys)} must sign; ask the others to sign it",
                code="document.signers",
            )
        return names


def canonical(value: Any) -> bytes:
    """Returns the one JSON text of a value: UTF-8, sorted keys, no spaces, no infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def seal(payload: bytes, kind: str, keys: Sequence[SigningKey], former: bytes | None = None) -> bytes:
    """Returns an envelope over `payload`.

    Args:
        payload: What is signed.
        kind: Its media type, which is signed too.
        keys: Who signs.
        former: An envelope over the same payload whose signatures are kept.

    Raises:
        DocumentError: `former` does not verify, or is over another payload.
    """
    signatures = {}
    if former is not None:
        if open_envelope(former, kind).payload != payload:
            raise DocumentError("the signatures that are there are over another document; begin a new file")
        signatures = {each["publicKey"]: each for each in json.loads(former)["signatures"]}
    for key in keys:
        public = base64.b64encode(key.public).decode()
        signature = key.sign(_pre_authentication(payload, kind))
        signatures[public] = {
            "keyid": key.keyid,
            "publicKey": public,
            "sig": base64.b64encode(signature).decode(),
        }
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": list(signatures.values()),
    }
    return canonical(envelope)


def open_envelope(data: bytes, kind: str) -> Envelope:
    """Reads an envelope and verifies each of its signatures.

    Args:
        data: The envelope, in canonical JSON.
        kind: The media type that its payload must have.

    Raises:
        DocumentError: It is malformed, of another type (`document.malformed`), or one signature does not verify
            (`document.signature`).
    """
    try:
        envelope = json.loads(data.decode())
        same = canonical(envelope) == data
    except (ValueError, RecursionError):
        raise DocumentError("this is no signed document: it is not JSON; get it again from who made it") from None
    if not same or not isinstance(envelope, dict) or set(envelope) != {"payload", "payloadType", "signatures"}:
        raise DocumentError("this is no signed document in canonical form; get it again from who made it")
    signatures = envelope["signatures"]
    if envelope["payloadType"] != kind:
        raise DocumentError(f"this is a signed document of another kind than {kind}; give the right file")
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= MAX_SIGNATURES:
        raise DocumentError(f"a signed document has 1 to {MAX_SIGNATURES} signatures; get it again from who made it")
    payload = _unbase64(envelope["payload"])
    signers = [_signer(each, _pre_authentication(payload, kind)) for each in signatures]
    if len(set(signers)) != len(signers):
        raise DocumentError("one key signed this document twice; get it again from who made it")
    return Envelope(payload, tuple(signers))


def _signer(raw: Any, message: bytes) -> bytes:
    """Verifies one signature and returns the public key behind it."""
    if not isinstance(raw, dict) or set(raw) != {"keyid", "publicKey", "sig"}:
        raise DocumentError("a signature of this document is malformed; get it again from who made it")
    public, signature = _unbase64(raw["publicKey"]), _unbase64(raw["sig"])
    if raw["keyid"] != key_id(public):
        raise DocumentError("a keyid of this document is not the digest of its key; get it again from who made it")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise DocumentError(
            "a signature of this document does not verify: it was altered after it was signed; do not use it",
            code="document.signature",
        ) from None
    return public


def _pre_authentication(payload: bytes, kind: str) -> bytes:
    """DSSE's PAE: what is signed names its own type and lengths."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def _unbase64(text: Any) -> bytes:
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except ValueError:
        data = None
    if data is None or base64.b64encode(data).decode() != text:
        raise DocumentError("a field of this document is not canonical base64; get it again from who made it")
    return data
