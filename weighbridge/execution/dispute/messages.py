"""The messages of a dispute: signed, and chained, so that a finished dispute is one file that any reader can check.

Every message names the head before it. Its head is signed with Ed25519 by the party that sends it. Decoding is bounded
and strict: a message has one encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import decode_cbor, decode_cbor_sequence
from weighbridge.core.digests import DIGEST_SIZE, cbor, record_digest
from weighbridge.core.errors import FormatError, WeighbridgeError
from weighbridge.execution.dispute.memory_messages import Doubt, Equality, Granted, Layer
from weighbridge.execution.dispute.openings import MAX_OPENING

START = bytes(DIGEST_SIZE)
"""The head before the first message."""

MAX_MESSAGE = MAX_OPENING + (1 << 16)
"""Most bytes of a message."""

RANGE = 1 << 10
"""Steps of a range of a course; the last one has fewer."""

MAX_MESSAGES = 16
"""Most messages of a dispute."""

_Kind = TypeVar("_Kind", bound="Content")


class DisputeError(WeighbridgeError):
    """A message does not belong where it was sent, or does not verify; it is not part of the dispute."""

    code = "dispute.message"


@dataclass(frozen=True, kw_only=True)
class Course:
    """A party's whole training by its digests; it comes before a challenge whose step is still to be found.

    Attributes:
        terms: As for `Challenge`.
        states: Digest of the state after each step, one after the other.
        inputs: What each step begins with besides the state, by `leaves.input_digest`, one after the other; zeros for a
            step that cannot be disputed.
        count: Of a course by ranges (`ranges`), how many steps it has: states and inputs are then those of ranges.
    """

    terms: bytes
    states: bytes
    inputs: bytes
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Range:
    """Shows the first range in which two courses by ranges differ (`ranges`).

    Attributes:
        before: What shows the state before it: a digest of all states of the range before, and the last of them (32
            bytes each); nothing of the first range.
        states: As for `Course`, of the steps of this range.
        inputs: Likewise.
    """

    before: bytes
    states: bytes
    inputs: bytes


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """Opens a dispute: the challenger's leaf hashes, before it sees those of the other party.

    Attributes:
        terms: What the step's execution depends on in the draft, encoded.
        tape: The program, encoded.
        state: Digest of the state before the step (32 bytes).
        step: Number of the step.
        record: The step record, encoded.
        own: Whether that is the challenger's own; else it is the one of the defender that it disputes.
        log: Digest of the rounding log that it followed (32 bytes).
        leaves: Its leaf hashes, one after the other; they may end before the leaf that it denies.
        draft: Digest of the draft of the record's run (32 bytes) if the step's log was made on demand; else nothing.
        supplements: Signed statements about the step, each with the root of its tree, from whichever party.
    """

    terms: bytes
    tape: bytes
    state: bytes
    step: int
    record: bytes
    own: bool
    log: bytes
    leaves: bytes
    draft: bytes = b""
    supplements: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The defender's claim; without a record, it says that the challenge is about no step of the defender's.

    Attributes:
        record: Its step record, encoded.
        log: Digest of its rounding log (32 bytes).
        leaves: Its leaf hashes, one after the other.
        draft: As for `Challenge`.
        supplements: As for `Challenge`.
    """

    record: bytes
    log: bytes
    leaves: bytes
    draft: bytes = b""
    supplements: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Narrows a dispute about an operation to one chunk of its result; without one from either party, it is not.

    Attributes:
        leaf: The party's leaf that differs, encoded; nothing from a party that names none.
        parts: Chaining values of all chunks of the storage that the operation writes, one after the other; nothing for
            an operation that is executed whole.
    """

    leaf: bytes
    parts: bytes


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a party shows of the first leaf that differs.

    Attributes:
        opening: An encoded `Opening`; only a confined worker decodes it.
    """

    opening: bytes


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """What the referee says in the end.

    Attributes:
        leaf: The first leaf that differs, or how many there are if none does; -1 if a party fell silent before.
        claims: (party, verdict, code, reason) of each claim about it: 0 is the challenger's, 1 the defender's.
        seconds: What each party used of its clock.
        clock: What each party had.
        sent: Bytes that each party sent.
        judged: Seconds that the referee used.
    """

    leaf: int
    claims: list[tuple[int, str, str, str]]
    seconds: tuple[float, float]
    clock: float
    sent: tuple[int, int]
    judged: float


Content = Course | Range | Challenge | Answer | Parts | Shown | Ruling | Equality | Granted | Doubt | Layer
_KINDS: dict[str, type[Content]] = {
    "course": Course, "range": Range, "challenge": Challenge, "answer": Answer, "parts": Parts, "opening": Shown,
    "ruling": Ruling, "equality": Equality, "granted": Granted, "doubt": Doubt, "layer": Layer,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True)
class Message:
    """One message, whose signature was verified.

    Attributes:
        previous: Head before it (32 bytes).
        content: What it says.
        key: Raw public key of its sender (32 bytes).
        head: Its own head (32 bytes).
        data: The message as it travels.
    """

    previous: bytes
    content: Content
    key: bytes
    head: bytes
    data: bytes


def signed(previous: bytes, content: Content, key: SigningKey) -> Message:
    """Returns a message.

    Args:
        previous: Head of the dispute so far (`START` for a challenge).
        content: What it says.
        key: Signs it.
    """
    body = body_of(content)
    head = _head(previous, body, key.public)
    data = cbor([previous, body, key.public, key.sign(b"weighbridge/dispute/1\x00" + head)])
    return Message(previous, content, key.public, head, data)


def unsigned(previous: bytes, content: Content, key: bytes) -> Message:
    """Returns a message whose sender is known otherwise, as a sealed worker's is by its channel; it does not travel.

    Args:
        previous: Head of the dispute so far.
        content: What it says.
        key: Raw public key of its sender (32 bytes).
    """
    return Message(previous, content, key, _head(previous, body_of(content), key), b"")


def body_of(content: Content) -> bytes:
    """Returns what a message says, encoded."""
    return cbor([_NAMES[type(content)], plain(content)])


def plain(content: Content) -> dict[str, Any]:
    """Returns a message's fields as they are encoded: what it may do without is left out if it says nothing."""
    return {name: value for name, value in asdict(content).items() if name not in _OPTIONAL or value}


def read(data: bytes) -> Message:
    """Reads a message and verifies its signature.

    Raises:
        FormatError: It is no message.
        DisputeError: Its signature does not verify.
    """
    if len(data) > MAX_MESSAGE:
        raise FormatError(f"A message of {len(data)} bytes is larger than {MAX_MESSAGE}; it is not read.")
    match decode_cbor(data, max_depth=2, max_items=8):
        case [bytes(previous), bytes(body), bytes(key), bytes(signature)]:
            pass
        case _:
            raise FormatError("A message must be a head, a body, a key and a signature; ask for it again.")
    head = _head(previous, body, key)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, b"weighbridge/dispute/1\x00" + head)
    except (InvalidSignature, ValueError):
        raise DisputeError("The signature of a message does not verify; it is not part of the dispute.") from None
    return Message(previous, content_of(body), key, head, data)


def pack(messages: Iterable[Message]) -> bytes:
    """Returns a dispute as one file."""
    return b"".join(message.data for message in messages)


def unpack(data: bytes) -> Iterator[Message]:
    """Reads a file of a dispute, message by message.

    Raises:
        FormatError: It is no such file.
        DisputeError: A signature does not verify, or a message does not follow the one before it.
    """
    head = START
    for raw in decode_cbor_sequence(data, max_length=MAX_MESSAGES, max_depth=2, max_items=8 * MAX_MESSAGES):
        message = read(cbor(raw))
        if message.previous != head:
            raise DisputeError("A message does not follow the one before it; the file is not one dispute.")
        head = message.head
        yield message


def _head(previous: bytes, body: bytes, key: bytes) -> bytes:
    return record_digest("dispute-message/1", [previous, body, key])


def content_of(body: bytes) -> Content:
    """Reads what a message says.

    Raises:
        FormatError: It says nothing, or not in its one encoding.
    """
    raw = decode_cbor(body, max_items=1 << 10)
    match raw:
        case [str(kind), dict(entries)] if kind in _KINDS:
            pass
        case _:
            raise FormatError("The body of a message has no known kind; ask for it again.")
    try:
        content = _filled(_KINDS[kind], entries)
    except (TypeError, ValueError, LookupError):
        raise FormatError(f"A message of the kind {kind} has other fields; ask for it again.") from None
    if cbor([kind, plain(content)]) != body:
        raise FormatError("The body of a message is not in its one encoding; ask for it again.")
    return content


_OPTIONAL = frozenset({"draft", "supplements", "chunk", "count"})
_MOST_SUPPLEMENTS = 4
_DIGESTS = ("state", "log", "draft")
_LISTS = ("leaves", "states", "inputs", "parts", "keyed", "plain", "before")
_NUMBERS = ("step", "node", "count")


def _filled(kind: type[_Kind], raw: dict[str, Any]) -> _Kind:
    names = {each.name for each in fields(kind)}
    if not names - _OPTIONAL <= set(raw) <= names:
        raise ValueError("fields")
    if kind is Ruling:
        raw = raw | {
            "claims": [_said(claim) for claim in raw["claims"]],
            "seconds": (_real(raw["seconds"][0]), _real(raw["seconds"][1])),
            "sent": (_natural(raw["sent"][0]), _natural(raw["sent"][1])),
            "clock": _real(raw["clock"]), "judged": _real(raw["judged"]), "leaf": _natural(raw["leaf"] + 1) - 1,
        }  # fmt: skip
        return kind(**raw)
    for name, value in raw.items():
        if name in _NUMBERS:
            _natural(value)
        elif name == "supplements":
            if type(value) is not list or len(value) > _MOST_SUPPLEMENTS or {type(each) for each in value} - {bytes}:
                raise ValueError(name)
        elif type(value) is not (bool if name == "own" else bytes):
            raise ValueError(name)
        else:
            _sized(name, value)
    if kind in (Course, Range) and len(raw["states"]) != len(raw["inputs"]):
        raise ValueError("inputs")
    if (count := raw.get("count", 0)) and len(raw["states"]) != DIGEST_SIZE * -(-count // RANGE):
        raise ValueError("count")
    return kind(**raw)


def _sized(name: str, value: Any) -> None:
    if (name in _DIGESTS and len(value) != DIGEST_SIZE) or (name in _LISTS and len(value) % DIGEST_SIZE):
        raise ValueError(name)


def _said(raw: Any) -> tuple[int, str, str, str]:
    party, verdict, code, reason = raw
    texts = all(type(each) is str and len(each) <= 4000 for each in (verdict, code, reason))
    if type(party) is not int or party not in (0, 1) or not texts:
        raise ValueError("claim")
    return party, verdict, code, reason


def _natural(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw < 1 << 62:
        raise ValueError("number")
    return raw


def _real(raw: Any) -> float:
    if type(raw) not in (int, float) or not 0 <= raw < 1e12:
        raise ValueError("number")
    return float(raw)
