"""Tokens: what a chip signs. EAT claims (RFC 9711) in a tagged COSE_Sign1 (RFC 9052) under ES384.

A chip's log is a list of tokens of the kinds boot, event and snapshot. Each names its place (`index`, the monotonic
counter) and the digest of the entry before it, so that the newest entry fixes all others. A token of kind head is no
entry: it signs the log's size and newest entry over a Verifier's nonce. docs/formats/snapshot-token.md has the bytes.

Reading is strict. There is exactly one encoding of a token's claims (`weighbridge.attest.token_claims`) and one form of
its envelope; whatever differs is a `TokenError`. Nothing is interpreted before its signature has been verified, except
the certificate chain that says whose signature it has to be.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import cbor2
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from weighbridge.attest.identity import DeviceIdentity, verify_device_chain
from weighbridge.attest.token_claims import (
    HIDING,
    MAX_TOKEN_BYTES,
    OEMID,
    OWN_EVENTS,
    PROFILE,
    HiddenBody,
    Kind,
    Token,
    Value,
    claims_position,
    counters,
    decode_cbor,
    decode_claims,
    decoded,
    encode_claims,
    event_name,
    is_confidential,
    is_own,
    shown,
)
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest, cbor
from weighbridge.core.errors import TokenError

__all__ = [
    "GENESIS", "HIDING", "MAX_TOKEN_BYTES", "OEMID", "OWN_EVENTS", "PROFILE", "HiddenBody", "Kind", "Token", "Value",
    "Verified", "claims_position", "counters", "decode_cbor", "decode_claims", "encode_claims", "entry_digest",
    "event_name", "is_confidential", "is_own", "read_own", "shown", "sign", "verify", "verify_log",
]  # fmt: skip

GENESIS = bytes(DIGEST_SIZE)
"""`previous` of a log's first entry."""

_ES384 = -35
_EAT_CWT = 263  # CoAP content format of application/eat+cwt.
_CWT_TAG, _SIGN1_TAG = 61, 18
_X5CHAIN = 33
_PROTECTED = cbor({1: _ES384, 3: _EAT_CWT})
_COORDINATE = 48  # Bytes of one half of a P-384 signature.


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """A token whose signature and certificate chain verify.

    Attributes:
        token: Its claims.
        identity: The device that signed it; agrees with the claims.
    """

    token: Token
    identity: DeviceIdentity


def entry_digest(data: bytes) -> bytes:
    """Returns the digest of a log entry, to which the next entry's `previous` refers: BLAKE3-256 of its bytes."""
    return bytes_digest(data)


def sign(token: Token, key: ec.EllipticCurvePrivateKey, chain: Sequence[bytes]) -> bytes:
    """Returns the token as its chip puts it on the wire; `verify` reads it back.

    Args:
        token: The claims.
        key: The chip's attestation key.
        chain: DER of the attestation certificate and of the IDevID.

    Raises:
        TokenError: A claim is outside its range, or the token would be too large.
    """
    payload = encode_claims(token)
    r, s = decode_dss_signature(key.sign(_to_be_signed(payload), ec.ECDSA(hashes.SHA384())))
    signature = r.to_bytes(_COORDINATE) + s.to_bytes(_COORDINATE)
    data = _envelope(list(chain), payload, signature)
    if len(data) > MAX_TOKEN_BYTES:
        raise TokenError(f"The token would have {len(data)} bytes; at most {MAX_TOKEN_BYTES} are allowed.")
    return data


def verify(data: bytes, root: x509.Certificate) -> Verified:
    """Checks a token's form, certificate chain, signature and claims.

    It does not judge freshness: compare the nonce of a head with the one you sent, and see `verify_log` for entries.

    Args:
        data: The token.
        root: The manufacturer's root certificate.

    Raises:
        TokenError: The token is malformed, altered or contradicts its certificates.
        IdentityError: Its certificate chain does not lead to `root`.
    """
    chain, payload, signature = _open_envelope(data)
    identity = _identity(chain, root)
    r, s = int.from_bytes(signature[:_COORDINATE]), int.from_bytes(signature[_COORDINATE:])
    try:
        identity.public_key.verify(encode_dss_signature(r, s), _to_be_signed(payload), ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise TokenError("The token's signature is not its chip's: the token was altered or forged.") from None
    token = decode_claims(payload)
    tcb = identity.tcb
    claimed = (token.ueid, token.hwmodel, token.firmware_version, token.debug)
    if claimed != (identity.ueid, tcb.model.encode(), tcb.version, tcb.mode == "debug"):
        raise TokenError("The token names another chip or firmware than its certificates: it was not made by this one.")
    return Verified(token=token, identity=identity)


def read_own(data: bytes) -> Token:
    """Reads a token without checking who signed it: for a chip that looks at its own log.

    Raises:
        TokenError: The token is malformed.
    """
    _, payload, _ = _open_envelope(data)
    return decode_claims(payload)


def verify_log(entries: Iterable[bytes], root: x509.Certificate) -> Iterator[Verified]:
    """Verifies log entries from the first on, each with its signature and its index after the one before.

    Args:
        entries: Tokens in log order.
        root: The manufacturer's root certificate.

    Yields:
        Each entry, once it and everything before it is known to be good.

    Raises:
        TokenError: An entry does not verify (`chip.token`), has an old counter (`chip.log.counter`), or does not
            continue the entry before it (`chip.log.chain`).
        IdentityError: An entry's certificate chain does not lead to `root`.
    """
    previous, ueid = GENESIS, None
    for index, data in enumerate(entries):
        verified = verify(data, root)
        token = verified.token
        if token.kind == "head" or token.index != index:
            raise TokenError(
                f"Entry {index} of the log carries the counter {token.index}: entries were dropped, doubled or moved.",
                code="chip.log.counter",
                index=index,
            )
        if token.previous != previous or token.ueid != (ueid or token.ueid):
            raise TokenError(
                f"Entry {index} does not continue the entry before it: the log was altered or forked.",
                code="chip.log.chain",
                index=index,
            )
        previous, ueid = entry_digest(data), token.ueid
        yield verified


@functools.lru_cache(maxsize=256)
def _identity(chain: tuple[bytes, ...], root: x509.Certificate) -> DeviceIdentity:
    """A log repeats one chain in every entry; its two signatures need checking once."""
    return verify_device_chain(chain, root)


def _to_be_signed(payload: bytes) -> bytes:
    """Returns the Sig_structure of RFC 9052, section 4.4."""
    return cbor(["Signature1", _PROTECTED, b"", payload])


def _envelope(chain: list[bytes], payload: bytes, signature: bytes) -> bytes:
    sign1 = [_PROTECTED, {_X5CHAIN: chain}, payload, signature]
    return cbor(cbor2.CBORTag(_CWT_TAG, cbor2.CBORTag(_SIGN1_TAG, sign1)))


def _open_envelope(data: bytes) -> tuple[tuple[bytes, ...], bytes, bytes]:
    """Returns (chain, payload, signature); accepts only what `_envelope` makes."""
    outer = decoded(data, cbor2.CBORTag)
    try:
        _, unprotected, payload, signature = outer.value.value
        if not isinstance(unprotected, Mapping) or not isinstance(unprotected[_X5CHAIN], Sequence):
            raise TypeError("no chain of certificates")
        chain = list(unprotected[_X5CHAIN])
        if not all(type(part) is bytes for part in [*chain, payload, signature]):
            raise TypeError("parts that are not bytes")
        if len(signature) != 2 * _COORDINATE or _envelope(chain, payload, signature) != data:
            raise ValueError("another form of envelope")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TokenError(
            "This is no token: a COSE_Sign1 of EAT claims under ES384 with its chain is needed."
        ) from error
    return tuple(chain), payload, signature
