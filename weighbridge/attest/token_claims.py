"""What a token says: EAT claims (RFC 9711) of a chip, and the one encoding that they have.

Reading is strict: whatever differs from that encoding is a `TokenError`, and so is a claim outside its range. Who
signed a token is the matter of `weighbridge.attest.tokens`. docs/formats/snapshot-token.md has the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import cbor2

from weighbridge.attest.work import END, Work
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest, cbor
from weighbridge.core.errors import FormatError, TokenError

Kind = Literal["boot", "event", "snapshot", "head"]
Value = bytes | int | str | bool

MAX_TOKEN_BYTES = (1 << 16) - 1
"""OCP Profile for IETF EAT: a token has at most 64 kB. The length of an entry in a tiled log says no more than this."""

PROFILE = "urn:x-weighbridge:token:1"
OEMID = bytes_digest(b"weighbridge simulated chip")[:16]
"""RFC 9711, section 4.2.3.1: a random OEM ID of 16 bytes; this one stands for "no silicon, a simulation"."""

OWN_EVENTS = ("interrupt-", "workload-")
"""How the names of the chip's own events begin; a workload cannot log one."""

_CBOR_FORMAT = 60  # CoAP content format of application/cbor.

# Claim labels: RFC 8392 and RFC 9711, then private ones from the range that the OCP profile leaves to vendors.
_IAT, _NONCE, _UEID, _OEMID, _HWMODEL, _UPTIME, _DBGSTAT, _EAT_PROFILE = 6, 10, 256, 258, 259, 261, 263, 265
_BOOTCOUNT, _BOOTSEED, _SWVERSION, _MEASUREMENTS = 267, 268, 271, 273
_KIND, _INDEX, _PREVIOUS, _UPTIME_MS, _TIME_MS, _WORK = -70002, -70003, -70004, -70005, -70006, -70007

_DEBUG_STATES = (1, 0)
"""RFC 9711, section 4.2.9: disabled, enabled. A fuse may still be blown, so it is not disabled permanently."""

_INTEGER_END = 1 << 63
BODIES: Mapping[Kind, Mapping[str, str]] = {
    "boot": {
        "salt_digest": "digest",
        "rate_milli": "count",
        "hold": "count",
        "clock_milli": "count",
        "forced": "flag",
        "reporting": "text",
        "witness": "digest",
        "unserved": "flag",
        "confidential": "flag",
    },
    "event": {"name": "text", "digest": "digest"},
    "head": {"size": "count", "last": "digest", "root": "digest", "log_key": "digest", "counter": "count"},
    "snapshot": {
        "root": "digest",
        "leaves": "count",
        "bytes": "count",
        "weights_root": "digest",
        "weights_bytes": "count",
        "salt_digest": "digest",
        "head": "claimed digest",
        "running": "claimed digest",
        "step": "claimed count",
        "op": "claimed count",
        "safepoint": "flag",
        "held": "count",
        "kernels": "large count",
        "flops": "large count",
        "stall_us": "count",
        "unobserved": "count",
    },
}
"""What each kind's body holds, no more and no less. Claimed values come from the workload.

Off a safepoint it claims no digest of its operations (`running`), and either all of the others or none.
"""
HIDING: frozenset[Kind] = frozenset({"event", "snapshot"})
"""Kinds of entries whose bodies may be hidden."""
_NOT_SAID_BEFORE = (frozenset({"confidential"}), frozenset({"confidential", "clock_milli", "forced", "unserved"}))
"""What the boot entries of earlier firmware lack: either of these as a whole."""


@dataclass(frozen=True, slots=True)
class HiddenBody:
    """What a token of a confidential boot carries in place of fields (`weighbridge.attest.hidden_fields`).

    Attributes:
        commitment: A blinded commitment to them (32 bytes).
    """

    commitment: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """The claims of one token.

    Attributes:
        kind: What it attests.
        ueid: EAT UEID of the chip, 17 to 33 bytes.
        nonce: The asker's nonce, 8 to 64 bytes, in a head; None in log entries, which are unsolicited.
        index: Monotonic counter: the entry's index in the log; in a head, the index that the next entry will have.
        previous: Digest (32 bytes) of the entry before it; `GENESIS` before the first.
        boot_count: Boots so far, this one included.
        boot_seed: 32 random bytes of this boot (RFC 9711, section 4.2.12).
        uptime_ms: Milliseconds since boot on the chip's clock.
        time_ms: Milliseconds since 1970 on the chip's clock.
        hwmodel: Model of the chip, 1 to 32 bytes.
        firmware_version: As in the attestation certificate.
        debug: Whether the chip was started in debug mode; as in the attestation certificate.
        body: What is attested, by kind: see docs/formats/snapshot-token.md. It is hidden together with the work alone,
            and in entries of the kinds event and snapshot alone.
        work: What the chip has done over its life; None in tokens of earlier firmware, which did not say, and in heads
            of confidential boots.
    """

    kind: Kind
    ueid: bytes
    nonce: bytes | None
    index: int
    previous: bytes
    boot_count: int
    boot_seed: bytes
    uptime_ms: int
    time_ms: int
    hwmodel: bytes
    firmware_version: str
    debug: bool
    body: Mapping[str, Value] | HiddenBody
    work: Work | HiddenBody | None = None


def shown(token: Token) -> Mapping[str, Value]:
    """Returns the body of a token that shows it.

    Raises:
        TokenError: It is hidden.
    """
    if isinstance(token.body, HiddenBody):
        raise TokenError(f"Entry {token.index} hides what it says; have it opened in a sealed inspection.")
    return token.body


def event_name(token: Token) -> str | None:
    """Returns the name of an event; None of a token that is none, or that hides it."""
    if token.kind != "event" or isinstance(token.body, HiddenBody):
        return None
    return str(token.body["name"])


def counters(token: Token) -> Work | None:
    """Returns what the chip has done by a token; None if it does not say, or hides it."""
    return None if isinstance(token.work, HiddenBody) else token.work


def is_own(token: Token) -> bool:
    """Tells whether a token shows one of the chip's own events, which say nothing of what a workload does."""
    name = event_name(token)
    return name is not None and name.startswith(OWN_EVENTS) and shown(token)["digest"] == bytes(DIGEST_SIZE)


def is_confidential(boot: Token) -> bool:
    """Tells whether a boot entry says that the boot's snapshots are opened to no Verifier."""
    return shown(boot).get("confidential") is True


def claims_position(token: Token) -> bool:
    """Tells whether the workload claimed a position in a transcript when a snapshot was taken."""
    return shown(token)["head"] != b""


def encode_claims(token: Token) -> bytes:
    """Returns a token's claims as deterministic CBOR (RFC 8949, section 4.2.1).

    Raises:
        TokenError: A claim is outside its range.
    """
    _check(token)
    claims: dict[int, Any] = {
        _IAT: token.time_ms // 1000,
        _UEID: token.ueid,
        _OEMID: OEMID,
        _HWMODEL: token.hwmodel,
        _UPTIME: token.uptime_ms // 1000,
        _DBGSTAT: _DEBUG_STATES[token.debug],
        _EAT_PROFILE: PROFILE,
        _BOOTCOUNT: token.boot_count,
        _BOOTSEED: token.boot_seed,
        _SWVERSION: [token.firmware_version],
        _KIND: token.kind,
        _INDEX: token.index,
        _PREVIOUS: token.previous,
        _UPTIME_MS: token.uptime_ms,
        _TIME_MS: token.time_ms,
    }
    if token.nonce is not None:
        claims[_NONCE] = token.nonce
    if not isinstance(token.body, HiddenBody):
        claims[_MEASUREMENTS] = [[_CBOR_FORMAT, cbor(dict(token.body))]]
    if token.work is not None:
        claims[_WORK] = token.work.commitment if isinstance(token.work, HiddenBody) else token.work.to_json()
    return cbor(claims)


def decode_claims(payload: bytes) -> Token:
    """Reads claims; inverse of `encode_claims`: encode_claims(decode_claims(p)) == p for every p that is accepted.

    Raises:
        TokenError: The bytes are no such claims.
    """
    claims = decoded(payload, dict)
    try:
        work = _work(claims)
        (version,) = claims[_SWVERSION]
        token = Token(
            kind=claims[_KIND],
            ueid=claims[_UEID],
            nonce=claims.get(_NONCE),
            index=claims[_INDEX],
            previous=claims[_PREVIOUS],
            boot_count=claims[_BOOTCOUNT],
            boot_seed=claims[_BOOTSEED],
            uptime_ms=claims[_UPTIME_MS],
            time_ms=claims[_TIME_MS],
            hwmodel=claims[_HWMODEL],
            firmware_version=version,
            debug=_DEBUG_STATES.index(claims[_DBGSTAT]) == 1,
            body=work if isinstance(work, HiddenBody) and _MEASUREMENTS not in claims else _body(claims),
            work=work,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TokenError("A claim is missing from the token or has another shape than the profile says.") from error
    if encode_claims(token) != payload:
        raise TokenError("The token has claims that the profile does not know, or that contradict each other.")
    return token


def _work(claims: Mapping[int, Any]) -> Work | HiddenBody | None:
    if _WORK not in claims:
        return None
    said = claims[_WORK]
    return HiddenBody(said) if isinstance(said, bytes) else Work.from_json(said)


def _body(claims: Mapping[int, Any]) -> dict[Any, Any]:
    ((form, body),) = claims[_MEASUREMENTS]
    found: dict[Any, Any] = decoded(body, dict) if isinstance(body, bytes) and form == _CBOR_FORMAT else {}
    return found


def decode_cbor(data: bytes, *, max_bytes: int) -> Any:
    """Decodes deterministic CBOR from outside: cbor(decode_cbor(d)) == d for every d that is accepted.

    Args:
        data: One item, no more.
        max_bytes: What is longer is not looked at.

    Raises:
        FormatError: It is too long, not CBOR, or not its one deterministic encoding.
    """
    if len(data) > max_bytes:
        raise FormatError(f"{len(data)} bytes of CBOR arrived where at most {max_bytes} are accepted.")
    try:
        value = cbor2.loads(data, max_depth=16, allow_indefinite=False, allow_duplicate_keys=False)
        canonical = cbor(value) == data
    except (
        cbor2.CBORError,
        ValueError,
        TypeError,
        OverflowError,
        AttributeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise FormatError("The bytes are not CBOR of the accepted kind.") from error
    if not canonical:
        raise FormatError("The CBOR is not in its one deterministic form (RFC 8949, section 4.2.1).")
    return value


def decoded(data: bytes, kind: type) -> Any:
    """Decodes one item of a token, of a kind.

    Raises:
        TokenError: It is malformed, or of another kind.
    """
    try:
        value = decode_cbor(data, max_bytes=MAX_TOKEN_BYTES)
    except FormatError as error:
        raise TokenError(f"The token is malformed: {error.message}") from error
    if type(value) is not kind:
        raise TokenError(f"The token holds {type(value).__name__} where the profile has {kind.__name__}.")
    return value


def _check(token: Token) -> None:
    """Checks every claim's type and range; `Token` may have been filled from outside."""
    if token.kind not in get_args(Kind):
        raise TokenError(f"There is no kind of token {token.kind!r}.")
    sizes = (
        ("ueid", token.ueid, 17, 33),
        ("previous", token.previous, DIGEST_SIZE, DIGEST_SIZE),
        ("boot_seed", token.boot_seed, 32, 32),
        ("hwmodel", token.hwmodel, 1, 32),
        ("nonce", b"" if token.nonce is None else token.nonce, *((8, 64) if token.kind == "head" else (0, 0))),
    )
    for name, value, least, most in sizes:
        if type(value) is not bytes or not least <= len(value) <= most:
            raise TokenError(f"The claim {name} of a {token.kind} token must be {least} to {most} bytes.")
    if token.nonce == b"":
        raise TokenError("A token has a nonce or none, but not an empty one.")
    for name in ("index", "boot_count", "uptime_ms", "time_ms"):
        _check_value(name, getattr(token, name), "count")
    _check_value("firmware_version", token.firmware_version, "text")
    _check_value("debug", token.debug, "flag")
    if isinstance(token.work, HiddenBody):
        _check_value("work", token.work.commitment, "digest")
        if token.kind == "head":
            raise TokenError("A head hides nothing: it has counters, or none.")
    elif token.work is not None:
        Work.from_json(token.work.to_json())
    if isinstance(token.body, HiddenBody):
        if token.kind not in HIDING or token.work != token.body:
            raise TokenError("A body is hidden with the work, by one commitment, in entries of events and snapshots.")
        return
    schema = BODIES[token.kind]
    body = cast(Mapping[Any, Any], token.body)
    if token.kind == "boot" and (missing := set(schema) - set(body)) in _NOT_SAID_BEFORE:
        schema = {name: kind for name, kind in schema.items() if name not in missing}
    if set(body) != set(schema):
        raise TokenError(f"The body of a {token.kind} token must hold exactly {', '.join(schema)}.")
    for name, kind in schema.items():
        if kind.startswith("claimed "):
            unknown = body["safepoint"] is False and (name == "running" or body["head"] == b"")
            kind = kind.replace("claimed", "unknown") if unknown else kind.removeprefix("claimed ")
        _check_value(name, body[name], kind)


def _check_value(name: str, value: object, kind: str) -> None:
    good = {
        "count": type(value) is int and 0 <= value < _INTEGER_END,
        "large count": type(value) is int and 0 <= value < END,
        "digest": type(value) is bytes and len(value) == DIGEST_SIZE,
        "flag": type(value) is bool,
        "text": type(value) is str and 0 < len(value) <= 100 and value.isprintable(),
        "unknown count": type(value) is int and value == -1,
        "unknown digest": value == b"",
    }
    if not good[kind]:
        raise TokenError(f"The claim {name} is no {kind} within its range.")
