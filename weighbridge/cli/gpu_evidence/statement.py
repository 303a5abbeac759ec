"""What is signed about a device, and how it is read from a sender that is not trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from verifier.evidence.bundle import Part
from weighbridge.attest.dsse import DocumentError, canonical, open_envelope, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import DIGEST_SIZE

SCHEMA = "weighbridge-device-evidence/1"
MEDIA_TYPE = "application/vnd.weighbridge.device-evidence.v1+json"
STATEMENT = "statement.dsse"
"""The part that lists the others."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}){0,6}")
_TEXT = 300
_MOST = 1000
MOST_PRODUCTS = 64
"""Products of the trainings that are probed at a place: those with the most multiplications."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """One training that was recorded.

    Attributes:
        subject: Its name (`weighbridge.cli.gpu_evidence.subjects`).
        place: Where it was recorded.
        folder: The part of the file in which the transcript is.
        transcript: Identifier of the transcript, hexadecimal.
        state: Digest of the last state, hexadecimal.
        steps: How many steps it has, the initialisation among them.
        parameters: Of the model.
        rounded: Elements that were rounded.
        logged: Entries in the rounding log.
        recorded_ms: Median and least milliseconds of an update.
    """

    subject: str
    place: str
    folder: str
    transcript: str
    state: str
    steps: int
    parameters: int
    rounded: int
    logged: int
    recorded_ms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """One replay of a recording.

    Attributes:
        recording: Its number in the list, from 0.
        place: Where it was replayed.
        verdict: `match`, `mismatch` or `inconclusive`; `error` if it could not be.
        state: Digest of the state that it came to; empty after an error.
        followed: Roundings that differed on this device and went as logged.
        seconds: What it took.
        says: The first operation that differed, or the error; empty otherwise.
    """

    recording: int
    place: str
    verdict: str
    state: str
    followed: int
    seconds: float
    says: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """Everything that was measured. All is the signer's word but what a replay of the transcripts shows.

    Attributes:
        made_at: UTC time, RFC 3339.
        size: `full` or `tiny`.
        places: By name, what computes there.
        recordings: What was recorded.
        replays: What came of replaying it.
        times: (subject, place) as `SUBJECT on PLACE` to milliseconds of an update, plain and wide.
        units: By place, what the products of `weighbridge.numerics.units.identification` gave there, and by signature
            and layout those of `probing`.
        errors: By place and operation, the largest error of the device's float32 kernels over the bound.
        software: Versions, and the digest of the rule table.
        parts: The other parts of the file by name.
    """

    made_at: str
    size: str
    places: Mapping[str, Mapping[str, Any]]
    recordings: tuple[Recording, ...]
    replays: tuple[Replayed, ...]
    times: Mapping[str, Mapping[str, Mapping[str, float]]]
    units: Mapping[str, Mapping[str, str]]
    errors: Mapping[str, Mapping[str, Mapping[str, float]]]
    software: Mapping[str, str]
    parts: Mapping[str, Part] = field(default_factory=dict)

    def sign(self, key: SigningKey) -> bytes:
        """Returns the signed statement."""
        return seal(canonical({"schema": SCHEMA, **asdict(self)}), MEDIA_TYPE, [key])


def open_statement(data: bytes) -> tuple[Statement, tuple[bytes, ...]]:
    """Reads a signed statement; returns it and the public keys that signed it (32 bytes each).

    Raises:
        DocumentError: It is malformed, or a signature does not verify.
    """
    envelope = open_envelope(data, MEDIA_TYPE)
    try:
        raw = json.loads(envelope.payload)
        if canonical(raw) != envelope.payload or raw.pop("schema") != SCHEMA:
            raise ValueError
        statement = Statement(
            **{
                **raw,
                "recordings": tuple(_recording(each) for each in _list(raw["recordings"])),
                "replays": tuple(_replayed(each) for each in _list(raw["replays"])),
                "parts": {_matching(name, _NAME): _part(each) for name, each in raw["parts"].items()},
            }
        )
        _check(statement)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError):
        raise DocumentError("this is no evidence about a device that this version can read") from None
    return statement, envelope.signers


def _recording(raw: Any) -> Recording:
    made = Recording(**raw)
    _texts(made.subject, made.place)
    _matching(made.folder, _NAME)
    _digest(made.transcript)
    _digest(made.state)
    _counts(made.steps, made.parameters, made.rounded, made.logged)
    _milliseconds(made.recorded_ms)
    return made


def _replayed(raw: Any) -> Replayed:
    made = Replayed(**raw)
    _texts(made.place, made.verdict, made.says)
    _counts(made.recording, made.followed)
    _numbers(made.seconds)
    if made.verdict not in ("match", "mismatch", "inconclusive", "error") or (made.verdict == "match" and made.says):
        raise ValueError
    if made.state:
        _digest(made.state)
    return made


def _part(raw: Any) -> Part:
    part = Part(**raw)
    _counts(part.bytes)
    _digest(part.blake3)
    return part


def _check(made: Statement) -> None:
    """Checks what the constructors do not."""
    _texts(made.made_at, *made.software, *made.software.values(), *made.places)
    if made.size not in ("full", "tiny"):
        raise ValueError
    for about in made.places.values():
        _texts(*about, *(each for each in about.values() if not isinstance(each, int)))
    for table in made.times.values():
        for each in table.values():
            _milliseconds(each)
    for said in made.units.values():
        if not {"short", "long"} <= set(said) or not all(isinstance(each, str) for each in said.values()):
            raise ValueError
        if len(said) > MOST_PRODUCTS + 2:
            raise ValueError
        _texts(*said)
    for operations in made.errors.values():
        for name, each in operations.items():
            _texts(name)
            _numbers(each["ratio"], each["elements"])
    for place in (*made.units, *made.errors, *(r.place for r in made.recordings), *(r.place for r in made.replays)):
        if place not in made.places:
            raise ValueError
    folders = sorted(f"{each.folder}/" for each in made.recordings)
    if not folders or any(after.startswith(before) for before, after in pairwise(folders)):
        raise ValueError
    for replayed in made.replays:
        made.recordings[replayed.recording]


def _list(raw: Any) -> list[Any]:
    if not isinstance(raw, list) or len(raw) > _MOST:
        raise ValueError
    return raw


def _matching(text: Any, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(text):
        raise ValueError
    return str(text)


def _digest(text: Any) -> None:
    if len(bytes.fromhex(text)) != DIGEST_SIZE or bytes.fromhex(text).hex() != text:
        raise ValueError


def _texts(*texts: Any) -> None:
    if any(not isinstance(text, str) or len(text) > _TEXT or (text and not text.isprintable()) for text in texts):
        raise ValueError


def _counts(*numbers: Any) -> None:
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers):
        raise ValueError


def _numbers(*numbers: Any) -> None:
    if any(type(number) not in (int, float) or not 0 <= number < 1e18 for number in numbers):
        raise ValueError


def _milliseconds(raw: Mapping[str, Any]) -> None:
    _numbers(raw["median"], raw["least"])
