"""The manifest of a transcript: every file by digest under one Merkle root, signed.

A DSSE envelope (https://github.com/secure-systems-lab/dsse) over an in-toto Statement v1, signed with Ed25519 (RFC
8032). The envelope carries the public key: it tells that one key made the whole transcript; whose key that is, the
reader decides.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from weighbridge.core import merkle, secret_files
from weighbridge.core.bounded import MAX_ITEMS, decode_json
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import FormatError, TranscriptError, UsageError

__all__ = ["Manifest", "SigningKey", "load_or_create_key"]

FORMAT = 1
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://weighbridge.dev/transcript/v1"
ROOT_NAME = "rfc6962-sha256-weighbridge-files-1"
"""Name of the subject's digest: RFC 6962 SHA-256 tree over canonical-CBOR leaves [path, bytes, BLAKE3 digest]."""

_HEX = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,3}")
_MAX_NAME = 200


class SigningKey:
    """An Ed25519 key that signs manifests.

    Attributes:
        public: The raw public key, 32 bytes.
        keyid: Hex BLAKE3 digest of the public key.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.keyid = key_id(self.public)

    @classmethod
    def generate(cls) -> SigningKey:
        """Returns a fresh random key that is stored nowhere."""
        return cls(Ed25519PrivateKey.generate())

    def sign(self, message: bytes) -> bytes:
        """Returns the 64-byte signature of `message`."""
        return self._key.sign(message)


def key_id(public: bytes) -> str:
    """Returns the identifier of a raw public key: its BLAKE3 digest in hex."""
    return bytes_digest(public).hex()


def load_or_create_key(path: str | Path) -> SigningKey:
    """Loads a signing key, or creates it (unencrypted PKCS #8 PEM that only its owner may read).

    Raises:
        UsageError: The file is not an Ed25519 key, or others may read it.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _load_key(path)
    except OSError as error:
        raise UsageError(f"cannot create the key file {path} ({error.strerror}); choose another place") from None
    key = Ed25519PrivateKey.generate()
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.flush()
        os.fsync(file.fileno())
    return SigningKey(key)


def _load_key(path: Path) -> SigningKey:
    try:
        secret_files.require_private(path)
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} is not a readable private key ({error}); give another file") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} holds another kind of key; give an Ed25519 key")
    return SigningKey(key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicate:
    """What a manifest states.

    Attributes:
        name: Name of the transcript.
        created: UTC time of signing, `YYYY-MM-DDTHH:MM:SSZ`; the Prover's claim.
        draft: Hex BLAKE3 digest of `draft.cbor`.
        head: Hex running head after the last step.
        steps: Number of steps, counting step 0.
        checkpoints: Steps that have a checkpoint, ascending.
        files: (path, bytes, hex BLAKE3 digest) of every file but the manifest, ascending by path.
        rounded: Elements rounded in all steps.
        logged: Entries in all rounding logs.
        complete: Whether recording ended as planned.
    """

    name: str
    created: str
    draft: str
    head: str
    steps: int
    checkpoints: tuple[int, ...]
    files: tuple[tuple[str, int, str], ...]
    rounded: int
    logged: int
    complete: bool

    def root(self) -> str:
        """Returns the hex RFC 6962 root over the files."""
        return merkle.root([merkle.leaf_hash(file_leaf(*file)) for file in self.files]).hex()


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest(Predicate):
    """A manifest whose signature was verified.

    Attributes:
        public: Raw public key of the signer, 32 bytes.
        keyid: Hex BLAKE3 digest of the public key.
        digest: Hex BLAKE3 digest of the manifest's bytes: the transcript's identifier.
    """

    public: bytes
    keyid: str
    digest: str


def file_leaf(path: str, size: int, digest: str) -> bytes:
    """Returns the Merkle leaf of one file: canonical CBOR of [path, bytes, 32-byte digest]."""
    return cbor([path, size, bytes.fromhex(digest)])


def timestamp() -> str:
    """Returns the present UTC time as manifests write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def valid_name(name: Any) -> bool:
    """Tells whether a transcript may have this name."""
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()


def sign_manifest(predicate: Predicate, key: SigningKey) -> bytes:
    """Returns the bytes of `manifest.json`.

    Raises:
        TranscriptError: The predicate breaks a rule of the format.
    """
    body = {"format": FORMAT, "root": predicate.root(), **asdict(predicate)}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": predicate.name, "digest": {ROOT_NAME: predicate.root()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": body,
    }
    payload = _canonical(statement)
    _read_statement(payload)
    return _canonical(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {
                    "keyid": key.keyid,
                    "publicKey": base64.b64encode(key.public).decode(),
                    "sig": base64.b64encode(key.sign(_pre_authentication(payload))).decode(),
                }
            ],
        }
    )


def open_manifest(data: bytes) -> Manifest:
    """Reads and verifies `manifest.json`.

    Raises:
        TranscriptError: The bytes are not the canonical form, a field breaks the format, or the root is not that of the
            files (`transcript.manifest.malformed`); the signature does not verify (`transcript.manifest.signature`).
    """
    envelope = _parse(data, "envelope")
    signatures = _fields(envelope, {"payload": str, "payloadType": str, "signatures": list})["signatures"]
    if len(signatures) != 1 or envelope["payloadType"] != PAYLOAD_TYPE:
        raise _malformed("it must hold one signature over an in-toto statement")
    signature = _fields(signatures[0], {"keyid": str, "publicKey": str, "sig": str})
    payload, public = _unbase64(envelope["payload"]), _unbase64(signature["publicKey"])
    if signature["keyid"] != key_id(public):
        raise _malformed("its keyid is not the digest of its public key")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(_unbase64(signature["sig"]), _pre_authentication(payload))
    except (InvalidSignature, ValueError):
        raise TranscriptError(
            "the signature of manifest.json does not verify; fetch the transcript again from its Prover",
            code="transcript.manifest.signature",
        ) from None
    predicate = _read_statement(payload)
    return Manifest(**asdict(predicate), public=public, keyid=signature["keyid"], digest=bytes_digest(data).hex())


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _pre_authentication(payload: bytes) -> bytes:
    """DSSE's PAE: what is signed names its own type and lengths."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _malformed(why: str) -> TranscriptError:
    return TranscriptError(
        f"manifest.json is malformed: {why}; fetch the transcript again", code="transcript.manifest.malformed"
    )


def _parse(data: bytes, what: str) -> Any:
    try:
        value = decode_json(data)
        same = _canonical(value) == data
    except (FormatError, ValueError, RecursionError):
        raise _malformed(f"its {what} is not JSON, or has more than {MAX_ITEMS} items") from None
    if not same:
        raise _malformed(f"its {what} is not in canonical form")
    return value


def _unbase64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise _malformed("a field is not base64") from None
    if base64.b64encode(data).decode() != text:
        raise _malformed("a field is not canonical base64")
    return data


def _fields(value: Any, kinds: dict[str, type]) -> dict[str, Any]:
    """Returns `value` if it is an object with exactly these fields of exactly these types."""
    if not isinstance(value, dict) or set(value) != set(kinds):
        raise _malformed(f"an object does not have exactly the fields {', '.join(sorted(kinds))}")
    for name, kind in kinds.items():
        if type(value[name]) is not kind:
            raise _malformed(f"field {name!r} is not of type {kind.__name__}")
    return value


def _read_statement(payload: bytes) -> Predicate:
    """Parses a statement and checks every rule of the format."""
    statement = _fields(
        _parse(payload, "payload"), {"_type": str, "subject": list, "predicateType": str, "predicate": dict}
    )
    if statement["_type"] != STATEMENT_TYPE or statement["predicateType"] != PREDICATE_TYPE:
        raise _malformed("it is a statement of another kind")
    kinds: dict[str, type] = {
        **dict.fromkeys(("name", "created", "draft", "head", "root"), str),
        **dict.fromkeys(("format", "steps", "rounded", "logged"), int),
        **dict.fromkeys(("checkpoints", "files"), list),
        "complete": bool,
    }
    body = dict(_fields(statement["predicate"], kinds))
    if body.pop("format") != FORMAT:
        raise _malformed(f"this version reads format {FORMAT} only")
    root = body.pop("root")
    checkpoints, files = body["checkpoints"], body["files"]
    _check_text(body)
    _check_numbers([body["steps"], body["rounded"], body["logged"], *checkpoints])
    if any(step > body["steps"] for step in checkpoints) or not _ascending(checkpoints):
        raise _malformed("its checkpoints are not ascending steps of the transcript")
    for file in files:
        _check_file(file)
    if not _ascending([file[0] for file in files]):
        raise _malformed("its files are not in ascending order of path")
    body["checkpoints"] = tuple(checkpoints)
    body["files"] = tuple((path, size, digest) for path, size, digest in files)
    predicate = Predicate(**body)
    if predicate.root() != root or statement["subject"] != [{"name": predicate.name, "digest": {ROOT_NAME: root}}]:
        raise _malformed("its root is not that of the files it lists")
    return predicate


def _ascending(values: Sequence[Any]) -> bool:
    return all(first < second for first, second in itertools.pairwise(values))


def _check_text(body: dict[str, Any]) -> None:
    if not valid_name(body["name"]):
        raise _malformed(f"its name is not 1 to {_MAX_NAME} printable characters")
    if not _HEX.fullmatch(body["draft"]) or not _HEX.fullmatch(body["head"]):
        raise _malformed("a digest is not 64 hexadecimal digits")
    try:
        moment = datetime.strptime(body["created"], "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        moment = None
    if moment is None or moment.strftime("%Y-%m-%dT%H:%M:%SZ") != body["created"]:
        raise _malformed("its time is not of the form 2026-01-31T23:59:59Z")


def _check_numbers(numbers: Sequence[Any]) -> None:
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise _malformed("a number is negative, too large or not a whole number")


def _check_file(file: Any) -> None:
    match file:
        case [str(path), size, str(digest)] if _PATH.fullmatch(path) and _HEX.fullmatch(digest):
            _check_numbers([size])
        case _:
            raise _malformed("an entry of its files is not a plain relative path, a size and a digest")
