"""Which segments of a transcript are replayed whole: a choice that any reader can recompute once it is opened.

Every segment with a sampled snapshot; some drawn at random; those in which the weights changed most; those that made
what the transcript says came back later (`returned.cbor`), as nothing else shows that this was ever the run's own;
those whose logs were due while the run went on and are missing or false, with their neighbours; and
those that secret criteria name, to which the Verifier committed by a hash before the inspection and which the report
opens. A Prover who knows what will be looked at could leave the rest undone, so no part of this but the snapshots
counts in p.

The random ones: the segments' first steps, as 8 bytes big-endian, drawn as chips are (`verifier.model.seeded_draw`)
with the seed BLAKE3(`weighbridge/segments/1` || 0x00 || plan's seed || transcript's identifier).
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from blake3 import blake3

from verifier.model import seeded_draw
from verifier.model.weight_change import Changes
from weighbridge.core import secret_files
from weighbridge.core.digests import DIGEST_SIZE, record_digest
from weighbridge.core.errors import FormatError, ProofError, UsageError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript

Reason = Literal["snapshot", "random", "change", "returned", "unrepeated", "secret"]
Segment = tuple[int, int]
"""(first step, step after the last one)."""

CRITERIA = ("step", "every", "tensor")
_MOST_CRITERIA = 256
_LARGEST_FILE = 1 << 20
_DOMAIN = b"weighbridge/segments/1\x00"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One secret criterion.

    Attributes:
        kind: `step`: the segment with step `number`. `every`: segments whose place, counted from 0, leaves the
            remainder `share` (a whole number) when divided by `number`. `tensor`: segments in which the tensor `name`
            changed by at least `share` of its norm.
        number: See `kind`; 0 for `tensor`.
        share: See `kind`; 0 for `step`.
        name: Name of a view in the checkpoints, for `tensor`; else empty.
    """

    kind: str
    number: int = 0
    share: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: The criterion makes no sense.
        """
        numbers = type(self.number) is int and 0 <= self.number < 1 << 53 and type(self.share) is float
        if self.kind not in CRITERIA or not numbers or not (math.isfinite(self.share) and self.share >= 0):
            raise UsageError(f"a secret criterion is one of {', '.join(CRITERIA)}, with numbers of at least 0")
        if self.kind == "every" and not (self.number >= 1 and self.share.is_integer() and self.share < self.number):
            raise UsageError("`every` needs a number of at least 1, and as share a remainder below it")
        if type(self.name) is not str or (self.kind == "tensor") != bool(self.name) or len(self.name) > 1000:
            raise UsageError("`tensor`, and no other criterion, needs the name of a tensor")

    def names(self, place: int, segment: Segment, changes: Changes) -> bool:
        """Whether it names a segment."""
        if self.kind == "step":
            return segment[0] <= self.number < segment[1]
        if self.kind == "every":
            return place % self.number == int(self.share)
        return changes.of(segment[0], self.name) >= self.share


@dataclass(frozen=True, slots=True)
class Secret:
    """Criteria that the Prover does not know before the inspection.

    Attributes:
        salt: 32 random bytes, so that the hash cannot be guessed.
        criteria: Any of them names a segment.
    """

    salt: bytes
    criteria: tuple[Criterion, ...]

    @classmethod
    def of(cls, criteria: Iterable[Criterion]) -> Secret:
        """Returns the criteria with a fresh salt."""
        return cls(secrets.token_bytes(DIGEST_SIZE), tuple(criteria))

    def commitment(self) -> str:
        """Returns the hex digest (BLAKE3-256) to publish before the inspection."""
        listed = [[c.kind, c.number, c.share, c.name] for c in self.criteria]
        return record_digest("criteria/1", [self.salt, listed]).hex()

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data; `from_json` reads it back."""
        criteria = [{"kind": c.kind, "number": c.number, "share": c.share, "name": c.name} for c in self.criteria]
        return {"salt": self.salt.hex(), "criteria": criteria}

    @classmethod
    def load(cls, path: Path) -> Secret:
        """Reads a file of secret criteria, as `weighbridge inspect criteria` writes it.

        Raises:
            UsageError: It cannot be read, or others may read it.
            FormatError: It has another form.
        """
        try:
            secret_files.require_private(path)
            return cls.from_json(json.loads(path.read_bytes()[:_LARGEST_FILE]))
        except OSError as error:
            raise UsageError(f"cannot read {path} ({error.strerror}); make one with `inspect criteria`") from None
        except (ValueError, RecursionError):
            raise FormatError(f"{path} is not JSON; make one with `inspect criteria`") from None

    @classmethod
    def from_json(cls, value: Any) -> Secret:
        """Reads what `to_json` wrote.

        Raises:
            FormatError: It has another form.
        """
        try:
            match value:
                case {"salt": str(salt), "criteria": list(criteria), **rest} if not rest and len(salt) == 64:
                    if len(criteria) <= _MOST_CRITERIA and all(isinstance(c, dict) for c in criteria):
                        return cls(bytes.fromhex(salt), tuple(Criterion(**c) for c in criteria))
        except (UsageError, ValueError, TypeError) as error:
            raise FormatError(f"not secret criteria: {error}") from None
        raise FormatError(f"not secret criteria: a salt of 64 hex digits and at most {_MOST_CRITERIA} criteria")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """One segment that is to be replayed whole.

    Attributes:
        begin: Its first step.
        end: The step after its last one.
        reasons: Why, in the order of `Reason`.
    """

    begin: int
    end: int
    reasons: tuple[Reason, ...]

    @property
    def in_p(self) -> bool:
        """Whether what is found there counts in the detection probability: only where a snapshot was sampled."""
        return "snapshot" in self.reasons


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The segments of one transcript that are replayed whole, with everything that they follow from.

    Attributes:
        transcript: Its identifier.
        seed: The plan's seed.
        sampled: Steps in which a sampled chip took a snapshot that this transcript explains, ascending.
        random: How many were to be drawn.
        largest: How many of the largest changes were to be taken.
        secret: The opened criteria; None if there were none.
        chosen: The segments, ascending.
        unrepeated: First steps of segments whose logs were due while the run went on and are missing or false.
    """

    transcript: str
    seed: bytes
    sampled: tuple[int, ...]
    random: int
    largest: int
    secret: Secret | None
    chosen: tuple[Chosen, ...]
    unrepeated: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data for the report."""
        return {
            "transcript": self.transcript,
            "seed": self.seed.hex(),
            "sampled": list(self.sampled),
            "random": self.random,
            "largest": self.largest,
            "secret": None if self.secret is None else self.secret.to_json(),
            **({"unrepeated": list(self.unrepeated)} if self.unrepeated else {}),
            "chosen": [
                {"begin": c.begin, "end": c.end, "reasons": list(c.reasons), "counts_in_p": c.in_p} for c in self.chosen
            ],
        }


@dataclass(kw_only=True, slots=True)
class Replayed:
    """What the replays of the chosen segments found.

    Attributes:
        selection: Which were chosen.
        results: First step of each segment to its replay, or why there is none.
        recognise: How many steps of each were to be recognised.
        seconds: Time that all of them took.
    """

    selection: Selection
    results: dict[int, ReplayResult | WeighbridgeError] = field(default_factory=dict)
    seconds: float = 0.0
    recognise: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data for the report: the selection, and what each segment's replay came to.

        That is its verdict, or why there is none, the steps that it executed (first, and the one after the last), how
        many roundings rest on probabilistic bounds (of all ranks) and on calibrated ones, and how sampled steps
        responded if the plan asked for that.
        """
        verdicts = [
            {"begin": chosen.begin, **self._outcome(self.results.get(chosen.begin))} for chosen in self.selection.chosen
        ]
        return {"selection": self.selection.to_json(), "verdicts": verdicts, "seconds": round(self.seconds, 3)}

    def _outcome(self, result: ReplayResult | WeighbridgeError | None) -> dict[str, Any]:
        if result is None or isinstance(result, WeighbridgeError):
            return {"verdict": "" if result is None else result.reason, "steps": None}
        told = {
            "verdict": result.verdict,
            "steps": list(result.steps),
            "probable": result.probable + result.probable_elsewhere,
            "calibrated": result.calibrated,
        }
        return told if result.sensitivity is None else {**told, "sensitivity": result.sensitivity.to_json()}


def segments(transcript: OpenedTranscript) -> list[Segment]:
    """Returns the segments between the checkpoints that the manifest names, ascending; they cover every step."""
    edges = sorted({0, *(c for c in transcript.manifest.checkpoints if c < transcript.steps), transcript.steps})
    return list(pairwise(edges))


def select(
    transcript: OpenedTranscript,
    *,
    sampled: Iterable[int],
    seed: bytes,
    random: int = 0,
    largest: int = 0,
    secret: Secret | None = None,
    unrepeated: Iterable[int] = (),
) -> Selection:
    """Chooses the segments to replay.

    Args:
        transcript: A verified transcript.
        sampled: Steps in which a sampled snapshot was taken; the step after the last one stands for the last one.
        seed: The plan's seed.
        random: How many to draw; all if there are fewer.
        largest: How many of the largest weight changes to take, of the segments with a checkpoint at both ends.
        secret: Criteria that were committed to.
        unrepeated: First steps of segments that are taken with their neighbours.
    """
    all_of_them, changes = segments(transcript), Changes(transcript)
    steps, failed = tuple(sorted(set(sampled))), tuple(sorted(set(unrepeated)))
    # A segment that chips logged may be a part of one that the manifest names.
    ends = {begin: end for begin, end in all_of_them if any(begin <= step < end for step in failed)}
    named: dict[Reason, Callable[[int, Segment], bool]] = {
        "snapshot": lambda _, s: any(s[0] <= min(step, transcript.steps - 1) < s[1] for step in steps),
        "random": _members(_drawn(transcript.digest, all_of_them, seed, random)),
        "change": _members(changes.largest([s[0] for s in all_of_them], largest)),
        "returned": lambda _, s: any(s[0] < step <= s[1] for step in transcript.returned),
        "unrepeated": lambda _, s: any(s[0] <= begin <= s[1] or s[0] == end for begin, end in ends.items()),
        "secret": lambda p, s: secret is not None and any(c.names(p, s, changes) for c in secret.criteria),
    }
    chosen = []
    for place, segment in enumerate(all_of_them):
        reasons = tuple(reason for reason, names in named.items() if names(place, segment))
        if reasons:
            chosen.append(Chosen(begin=segment[0], end=segment[1], reasons=reasons))
    return Selection(
        transcript=transcript.digest, seed=seed, sampled=steps, random=random, largest=largest, secret=secret,
        chosen=tuple(chosen), unrepeated=failed,
    )  # fmt: skip


def verify(transcript: OpenedTranscript, told: Mapping[str, Any], commitment: str = "") -> Selection:
    """Makes a selection again from what a report says of it.

    Args:
        transcript: The transcript.
        told: What `Selection.to_json` returned.
        commitment: Hex digest of the secret criteria, as it was published before the inspection; empty if none was.

    Returns:
        The selection.

    Raises:
        FormatError: The report has another form.
        ProofError: The criteria are not those that were committed to, or other segments follow from the rules.
    """
    try:
        secret = None if told["secret"] is None else Secret.from_json(told["secret"])
        seed, random, largest = bytes.fromhex(told["seed"]), told["random"], told["largest"]
        sampled = [step for step in told["sampled"] if type(step) is int and step >= 0]
        if not all(type(n) is int and n >= 0 for n in (random, largest)) or len(sampled) != len(told["sampled"]):
            raise ValueError("its numbers are none")
        failed = told.get("unrepeated", [])
        if not all(type(step) is int and step >= 0 for step in failed):
            raise ValueError("its segments are none")
        made = select(
            transcript, sampled=sampled, seed=seed, random=random, largest=largest, secret=secret, unrepeated=failed
        )
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise FormatError(f"not a selection of segments: {error}") from None
    if (secret.commitment() if secret is not None else "") != commitment:
        raise ProofError("the secret criteria are not those that the Verifier committed to; do not count on its choice")
    if made.to_json() != dict(told):
        raise ProofError("other segments follow from the rules than the report says; do not count on its choice")
    return made


def _members(first_steps: Iterable[int]) -> Callable[[int, Segment], bool]:
    known = set(first_steps)
    return lambda _, segment: segment[0] in known


def _drawn(identifier: str, everything: Sequence[Segment], seed: bytes, count: int) -> list[int]:
    if not count:
        return []
    own = blake3(_DOMAIN + seed + bytes.fromhex(identifier)).digest()
    population = [begin.to_bytes(8, "big") for begin, _ in everything]
    return [int.from_bytes(begin, "big") for begin in seeded_draw.draw(population, min(count, len(population)), own)]
