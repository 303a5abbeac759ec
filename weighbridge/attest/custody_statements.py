"""Custody statements: what parties say about chips on their way from the fab to the scrapyard. COSE_Sign1 (RFC 9052).

One statement is about one event and all the chips that it happened to, such as the chips of one shipment. Who makes it
signs it. Where it moves responsibility, the other side countersigns (RFC 9338): no hand-over rests on one side's word.
docs/formats/custody-events.md has the bytes.

Reading is strict: there is one encoding of a statement, and everything else is a `CustodyError`. Reading checks the
form; whose signatures they have to be is for `verify`, which is given the keys.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, WeighbridgeError

Kind = Literal["made", "tested", "shipped", "sold", "installed", "moved", "resold", "damaged", "lost", "scrapped"]
PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

PROFILE = "urn:x-weighbridge:custody:1"
HAND_OVERS: tuple[Kind, ...] = ("shipped", "sold", "resold")
"""Events after which another party answers for the chip."""

FIELDS: Mapping[Kind, tuple[str, ...]] = {
    "made": ("chip_type",),
    "tested": (),
    "shipped": ("to",),
    "sold": ("to",),
    "installed": ("site",),
    "moved": ("site",),
    "resold": ("to",),
    "damaged": (),
    "lost": (),
    "scrapped": ("to",),
}
"""Which of `to`, `site` and `chip_type` each kind has; the others are empty. Who is named by `to` countersigns."""

MAX_STATEMENT_BYTES = 65_000
"""A log's entry has at most 65,535 bytes, of which the registry needs a few."""
MAX_TEXT = 200
TIME_END = 1 << 40
UEID_SIZES = (17, 33)
KEY_ID_SIZE = 16

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_ES384, _EDDSA, _CBOR_FORMAT = -35, -8, 60
_COUNTERSIGNATURE = 11  # RFC 9338, section 3.1: a full countersignature, version 2.
_SIGN1_TAG = b"\xd2"
_EMPTY_MAP = 0xA0
_COORDINATE = 48  # Bytes of one half of a P-384 signature.
_SIGNATURE_SIZES = {_ES384: 2 * _COORDINATE, _EDDSA: 64}


class CustodyError(WeighbridgeError):
    """A custody statement is malformed, forged, or not one that its signer can make."""

    code = "registry.statement"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What one party says happened to some chips.

    Attributes:
        kind: The event.
        registry: Name of the registry that it is made to, so that no other can be given it.
        by: Name of the party that says so.
        to: Name of the party that countersigns; empty where none does.
        time_s: When it happened, seconds since 1970.
        site: Where the chips are now, for `installed` and `moved`.
        chip_type: What was made, for `made`.
        chips: UEIDs, each once, ascending.
    """

    kind: Kind
    registry: str
    by: str
    to: str = ""
    time_s: int
    site: str = ""
    chip_type: str = ""
    chips: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """A statement as it was read, its signatures not verified.

    Attributes:
        statement: What it says.
        digest: Digest of what is signed (32 bytes): the same for the same statement, whatever its signatures' bytes.
        key: Identifier (16 bytes) of the key that signed.
        counter_key: That of the key that countersigned; None if none did.
        data: The bytes.
    """

    statement: Statement
    digest: bytes
    key: bytes
    counter_key: bytes | None
    data: bytes


def is_name(name: object) -> bool:
    """Whether a party can have this name: lower-case letters, digits and hyphens, at most 63."""
    return type(name) is str and bool(_NAME.fullmatch(name))


def encode_key(key: PublicKey) -> bytes:
    """Returns a public key as SubjectPublicKeyInfo (DER); `decode_key` reads it."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def decode_key(der: bytes) -> PublicKey:
    """Reads a party's public key: encode_key(decode_key(d)) == d for every d that is accepted.

    Raises:
        CustodyError: It is neither a P-384 nor an Ed25519 key, or not in its one encoding.
    """
    try:
        key = serialization.load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    edwards = isinstance(key, ed25519.Ed25519PublicKey)
    p384 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
    if isinstance(key, PublicKey) and (edwards or p384) and encode_key(key) == der:
        return key
    raise CustodyError("A party's key must be an ECDSA key on P-384 or an Ed25519 key; have another made.")


def key_id(key: PublicKey) -> bytes:
    """Returns the identifier of a key in statements: the first 16 bytes of SHA-256 over its SubjectPublicKeyInfo."""
    return hashlib.sha256(encode_key(key)).digest()[:KEY_ID_SIZE]


def sign(statement: Statement, key: PrivateKey) -> bytes:
    """Returns a statement under its maker's signature; `read` reads it back.

    Raises:
        CustodyError: The statement says what its kind cannot say, or is too large: make several of it.
    """
    _check(statement)
    payload, protected = _encode(statement), _protected(key)
    signature = _sign(key, cbor(["Signature1", protected, b"", payload]))
    data = _envelope(protected, payload, signature, None)
    if len(data) + 256 > MAX_STATEMENT_BYTES:  # a countersignature has to fit, too
        raise CustodyError(
            f"The statement would have {len(data)} bytes, and at most {MAX_STATEMENT_BYTES - 256} can be logged; "
            "make one statement for each few thousand chips."
        )
    return data


def countersign(data: bytes, key: PrivateKey) -> bytes:
    """Adds the other party's signature to a statement; one that is there already is replaced.

    Raises:
        CustodyError: It is no statement, or of a kind that one party makes alone.
    """
    signed = read(data)
    if not signed.statement.to:
        raise CustodyError(f"{signed.statement.kind!r} is said by one party alone; there is nothing to countersign.")
    protected, payload, signature, _ = _open(data)
    counter = _protected(key)
    return _envelope(protected, payload, signature, (counter, _sign(key, _countersigned(data, counter))))


def read(data: bytes) -> Signed:
    """Reads a statement: what `sign` or `countersign` would return for it is `data`, byte for byte, given the keys.

    Raises:
        CustodyError: It is none.
    """
    protected, payload, _, counter = _open(data)
    statement = _decode(payload)
    if counter is not None and not statement.to:
        raise CustodyError(f"{statement.kind!r} is said by one party alone, and this has a countersignature.")
    return Signed(
        statement=statement,
        digest=record_digest("custody-statement/1", payload),
        key=_header(protected)[1],
        counter_key=None if counter is None else _header(counter[0])[1],
        data=data,
    )


def verify(signed: Signed, by: PublicKey, to: PublicKey | None) -> None:
    """Checks both signatures on a statement.

    Args:
        signed: As `read` returned it.
        by: Key of the party that makes it.
        to: Key of the party that it names; None if it names none.

    Raises:
        CustodyError: A signature is not its key's (`registry.signature`), or one is missing
            (`registry.handover.onesided`).
    """
    protected, payload, signature, counter = _open(signed.data)
    _verify(by, protected, signature, cbor(["Signature1", protected, b"", payload]), signed.statement.by)
    if not signed.statement.to:
        return
    if counter is None:
        raise CustodyError(
            f"Only {signed.statement.by} signed that chips were {signed.statement.kind}; {signed.statement.to} "
            "has to countersign it.",
            code="registry.handover.onesided",
        )
    if to is None:
        raise CustodyError(f"The key of {signed.statement.to} is not known; declare the party first.")
    _verify(to, counter[0], counter[1], _countersigned(signed.data, counter[0]), signed.statement.to)


def _check(statement: Statement) -> None:
    """Checks that a statement says what its kind says, and no more; it may have been filled from outside."""
    kind: object = statement.kind
    if type(kind) is not str or kind not in FIELDS:
        raise CustodyError(f"There is no event {kind!r}; use one of {', '.join(get_args(Kind))}.")
    needed = FIELDS[statement.kind]
    for field in ("to", "site", "chip_type"):
        value: object = getattr(statement, field)
        if type(value) is not str or len(value) > MAX_TEXT or not value.isprintable():
            raise CustodyError(f"{field} must be at most {MAX_TEXT} printable characters on one line.")
        if bool(value) != (field in needed):
            raise CustodyError(f"An event {statement.kind!r} has {'a' if field in needed else 'no'} {field}.")
    for field in ("by", "to") if statement.to else ("by",):
        if not is_name(getattr(statement, field)):
            raise CustodyError(f"{field} must name a party: lower-case letters, digits and hyphens, at most 63.")
    if statement.by == statement.to:
        raise CustodyError("A party cannot hand over to itself; name the other one.")
    registry: object = statement.registry
    if type(registry) is not str or not 0 < len(registry) <= MAX_TEXT or not registry.isprintable():
        raise CustodyError("The statement does not name the registry that it is made to.")
    time_s: object = statement.time_s
    if type(time_s) is not int or not 0 < time_s < TIME_END:
        raise CustodyError("The time must be in seconds since 1970.")
    least, most = UEID_SIZES
    chips = statement.chips
    if not chips or not all(type(ueid) is bytes and least <= len(ueid) <= most for ueid in chips):
        raise CustodyError(f"A statement is about at least one chip; a UEID has {least} to {most} bytes.")
    if any(one >= other for one, other in pairwise(chips)):
        raise CustodyError("The chips of a statement must be sorted, each once.")


def _encode(statement: Statement) -> bytes:
    return cbor(
        {
            "profile": PROFILE,
            "registry": statement.registry,
            "kind": statement.kind,
            "time": statement.time_s,
            "by": statement.by,
            "to": statement.to,
            "site": statement.site,
            "type": statement.chip_type,
            "chips": list(statement.chips),
        }
    )


def _decode(payload: bytes) -> Statement:
    raw = _cbor(payload)
    names = {"profile", "registry", "kind", "time", "by", "to", "site", "type", "chips"}
    if type(raw) is not dict or set(raw) != names or raw["profile"] != PROFILE or type(raw["chips"]) is not list:
        raise CustodyError(f"The content is no statement of the profile {PROFILE}.")
    statement = Statement(
        kind=raw["kind"],
        registry=raw["registry"],
        by=raw["by"],
        to=raw["to"],
        time_s=raw["time"],
        site=raw["site"],
        chip_type=raw["type"],
        chips=tuple(raw["chips"]),
    )
    _check(statement)
    return statement


def _protected(key: PrivateKey) -> bytes:
    algorithm = _EDDSA if isinstance(key, ed25519.Ed25519PrivateKey) else _ES384
    return cbor({1: algorithm, 3: _CBOR_FORMAT, 4: key_id(key.public_key())})


def _header(protected: bytes) -> tuple[int, bytes]:
    """Returns (algorithm, key identifier) of a protected header that `_protected` could have made."""
    key = protected[-KEY_ID_SIZE:]
    for algorithm in _SIGNATURE_SIZES:
        if protected == cbor({1: algorithm, 3: _CBOR_FORMAT, 4: key}) and len(key) == KEY_ID_SIZE:
            return algorithm, key
    raise CustodyError("The header is not that of a statement: ES384 or EdDSA, content CBOR, and which key.")


def _envelope(protected: bytes, payload: bytes, signature: bytes, counter: tuple[bytes, bytes] | None) -> bytes:
    unprotected = {} if counter is None else {_COUNTERSIGNATURE: [counter[0], {}, counter[1]]}
    return _SIGN1_TAG + cbor([protected, unprotected, payload, signature])


def _open(data: bytes) -> tuple[bytes, bytes, bytes, tuple[bytes, bytes] | None]:
    """Returns (protected, payload, signature, countersignature); accepts only what `_envelope` makes."""
    if len(data) > MAX_STATEMENT_BYTES:
        raise CustodyError(f"The statement has {len(data)} bytes; at most {MAX_STATEMENT_BYTES} are accepted.")
    if data[:1] != _SIGN1_TAG:
        raise CustodyError("This is no custody statement: a tagged COSE_Sign1 is needed.")
    counter = None
    try:
        # Read by hand: `decode_cbor` takes no maps with numbers for keys. What differs from `_envelope` is refused.
        protected, at = _bytes_at(data, 2)
        if data[at] != _EMPTY_MAP:
            counter_protected, at = _bytes_at(data, at + 3)
            counter_signature, at = _bytes_at(data, at + 1)
            counter = (counter_protected, counter_signature)
        else:
            at += 1
        payload, at = _bytes_at(data, at)
        signature, at = _bytes_at(data, at)
    except IndexError as error:
        raise CustodyError("This is no custody statement: its COSE_Sign1 has another form.") from error
    for header, made in ((protected, signature), counter or (protected, signature)):
        if len(made) != _SIGNATURE_SIZES[_header(header)[0]]:
            raise CustodyError("A signature on the statement has another length than its algorithm's.")
    if _envelope(protected, payload, signature, counter) != data:
        raise CustodyError("This is no custody statement: its COSE_Sign1 has another form.")
    return protected, payload, signature, counter


def _bytes_at(data: bytes, at: int) -> tuple[bytes, int]:
    """Reads the byte string of CBOR at a place: (it, the place behind it); IndexError if there is none."""
    kind, size = data[at] >> 5, data[at] & 31
    at += 1
    if size >= 24:
        width = 1 << (size - 24)
        size, at = int.from_bytes(data[at : at + width]), at + width
    if kind != 2 or at + size > len(data):
        raise IndexError("no byte string")
    return data[at : at + size], at + size


def _countersigned(data: bytes, counter_protected: bytes) -> bytes:
    """Returns the Countersign_structure of RFC 9338, section 3.3, which covers the statement and its signature."""
    protected, payload, signature, _ = _open(data)
    return cbor(["CounterSignatureV2", protected, counter_protected, b"", payload, [signature]])


def _sign(key: PrivateKey, message: bytes) -> bytes:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(message)
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(_COORDINATE) + s.to_bytes(_COORDINATE)


def _verify(key: PublicKey, protected: bytes, signature: bytes, message: bytes, name: str) -> None:
    edwards = isinstance(key, ed25519.Ed25519PublicKey)
    try:
        if _header(protected) != (_EDDSA if edwards else _ES384, key_id(key)):
            raise InvalidSignature
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
        else:
            r, s = int.from_bytes(signature[:_COORDINATE]), int.from_bytes(signature[_COORDINATE:])
            key.verify(encode_dss_signature(r, s), message, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise CustodyError(
            f"The signature is not by the key that {name} has declared: the statement was altered or forged, "
            "or the key has changed.",
            code="registry.signature",
        ) from None


def _cbor(data: bytes) -> Any:
    try:
        return decode_cbor(data)
    except FormatError as error:
        raise CustodyError(f"This is no custody statement: {error.message}.") from error
