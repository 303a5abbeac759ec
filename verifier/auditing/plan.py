"""The plan of an audit, and what follows from it and a beacon: who replays what, under which key, and the share.

A plan is fixed before the round of its draw. Auditors enrol in it before that round, by their own clocks, so neither
the Prover nor the coordinator can choose transcript, auditors or plan for the draw that they give. The key comes a
round later. The referee's share is drawn over the closed commitments, in a round that is out only after all opened.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from verifier.auditing.statements import AuditError, Subject
from verifier.model.seeded_draw import draw
from weighbridge.attest.beacon import Beacon, in_utc, verify_round
from weighbridge.attest.manifest import valid_name
from weighbridge.attest.training_order import OrderError, SignedOrder, TrainingOrder
from weighbridge.core.digests import record_digest
from weighbridge.core.errors import UsageError

MOST_AUDITORS = 64
MOST_SEGMENTS = 1 << 17
_HEX = re.compile(r"[0-9a-f]{64}")

Assignment = dict[int, tuple[int, ...]]
"""Number of each drawn segment to the numbers of its auditors."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A transcript to be audited.

    Attributes:
        name: Its name, by the word of who signed it.
        sha256: Hex SHA-256 of its manifest.json.
        digest: Its identifier: hex BLAKE3 digest of its manifest.json.
        edges: First step of each segment, and the step after the last one.
    """

    name: str
    sha256: str
    digest: str
    edges: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is fixed before anything is drawn.

    Attributes:
        sources: The transcripts.
        auditors: Name and hex public key of each auditor.
        copies: By how many auditors each drawn segment is replayed.
        drawn: How many segments are drawn.
        referee: How many of them the referee replays whatever was found.
        beacon: Hex chain hash of the beacon.
        rounds: Its rounds that give the draw, the key and the referee's share, ascending.
        planted: Hex commitment to which segments were planted (`Planted.commitment`).
        orders: Identifier of each transcript that was ordered, and its order as both parties signed it, in hex.
    """

    sources: tuple[Source, ...]
    auditors: tuple[tuple[str, str], ...]
    copies: int
    drawn: int
    referee: int
    beacon: str
    rounds: tuple[int, int, int]
    planted: str
    orders: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Checks that it makes sense.

        Raises:
            AuditError: It does not.
        """
        names, keys = [name for name, _ in self.auditors], [key for _, key in self.auditors]
        count = sum(len(source.edges) - 1 for source in self.sources)
        digests: tuple[Any, ...] = (
            self.beacon,
            self.planted,
            *keys,
            *(h for s in self.sources for h in (s.sha256, s.digest)),
        )
        edges = [edge for source in self.sources for edge in source.edges]
        numbers = (self.copies, self.drawn, self.referee, *self.rounds, *edges)
        if not 1 <= len(names) <= MOST_AUDITORS or len(set(names)) != len(names) or len(set(keys)) != len(keys):
            raise _bad(f"it needs 1 to {MOST_AUDITORS} auditors, each with a name and a key of its own")
        if not all(valid_name(each) for each in (*names, *(source.name for source in self.sources))):
            raise _bad("a name is not printable")
        if not all(isinstance(each, str) and _HEX.fullmatch(each) for each in digests):
            raise _bad("a key or a digest is not 64 hexadecimal digits")
        if not all(type(each) is int and 0 <= each < 1 << 53 for each in numbers):
            raise _bad("a number is negative, too large or not a whole number")
        if not all(len(source.edges) > 1 and _ascending(source.edges) for source in self.sources):
            raise _bad("the segments of a transcript are not in order")
        if len({source.digest for source in self.sources}) != len(self.sources):
            raise _bad("one transcript is there twice")
        if not 1 <= self.drawn <= count <= MOST_SEGMENTS:
            raise _bad(f"it draws {self.drawn} of {count} segments, at most {MOST_SEGMENTS}")
        if not 1 <= self.copies <= len(names) or self.referee > self.drawn:
            raise _bad("a segment has 1 auditor to all of them, and the referee replays no more than are drawn")
        if not _ascending(self.rounds):
            raise _bad("the rounds of draw, key and referee must be in this order")
        if not self.ordered.keys() <= {source.digest for source in self.sources}:
            raise _bad("an order is of a transcript that is not among those to be audited")

    @cached_property
    def ordered(self) -> dict[str, TrainingOrder]:
        """The order of each transcript that was ordered, by its identifier.

        Raises:
            AuditError: It is no order that both parties signed, or a transcript has two.
        """
        found: dict[str, TrainingOrder] = {}
        for digest, signed in self.orders:
            if found.setdefault(digest, order := _order(signed)) is not order:
                raise _bad("one transcript has two orders")
        return found

    @cached_property
    def segments(self) -> list[tuple[Source, int, int]]:
        """Transcript, first step and the step after the last one of each segment."""
        return [(source, *pair) for source in self.sources for pair in itertools.pairwise(source.edges)]

    def subjects(self) -> list[Subject]:
        """Returns what statements of this audit are about."""
        return [(source.name, source.sha256) for source in self.sources]

    def to_json(self) -> dict[str, Any]:
        """Returns it as a statement has it; inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Plan:
        """Reads a plan.

        Raises:
            AuditError: It is none.
        """
        try:
            sources = tuple(Source(**{**each, "edges": tuple(each["edges"])}) for each in raw["sources"])
            auditors = tuple((name, key) for name, key in raw["auditors"])
            first, second, third = raw["rounds"]
            orders = tuple((digest, signed) for digest, signed in raw.get("orders", ()))
            rounds = first, second, third
            return cls(**{**raw, "sources": sources, "auditors": auditors, "rounds": rounds, "orders": orders})
        except (KeyError, TypeError, ValueError):
            raise _bad("it has other fields") from None


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Which transcripts were planted, and in which step each was made false; secret until the verdict.

    Attributes:
        salt: 32 random bytes in hex.
        steps: Identifier of each planted transcript to the false step in it.
    """

    salt: str
    steps: dict[str, int]

    def commitment(self) -> str:
        """Returns what the plan says of it."""
        return record_digest("audit-planted/1", [self.salt, sorted(self.steps.items())]).hex()

    @classmethod
    def from_json(cls, raw: Any) -> Planted:
        """Reads what `asdict` wrote.

        Raises:
            AuditError: It is none.
        """
        match raw:
            case {"salt": str(salt), "steps": dict(steps), **rest} if not rest and _HEX.fullmatch(salt):
                if all(_HEX.fullmatch(digest) and type(step) is int for digest, step in steps.items()):
                    return cls(salt=salt, steps=steps)
        raise AuditError("What was planted is not a salt and a step of each transcript; give the file of the plan.")


def value(beacon: Beacon, plan: Plan, number: int) -> bytes:
    """Returns the verified value of a round of the plan's beacon.

    Args:
        beacon: Where values are.
        plan: The plan.
        number: The round.

    Raises:
        AuditError: It is another beacon.
        UsageError: The round has no value yet.
        BeaconError: The value is not the beacon's.
    """
    if beacon.info.chain.hex() != plan.beacon:
        raise AuditError("The beacon is not the one that the plan names; give that one.")
    found = beacon.value(number)
    if found is None:
        raise UsageError(
            f"the beacon has no value of round {number} yet; it is due at {in_utc(beacon.info.time_ms(number))}: wait "
            "until then, and put the value there"
        )
    if found.number != number:
        raise AuditError(f"The value of round {number} is that of round {found.number}; fetch it again.")
    verify_round(beacon.info, found)
    return found.randomness


def assignment(plan: Plan, digest: bytes, randomness: bytes) -> Assignment:
    """Returns who replays which segments.

    Of each drawn segment the auditors with the least steps so far are taken; ties are broken by chance.

    Args:
        plan: The plan.
        digest: Digest of its statement (32 bytes).
        randomness: Value of the draw's round.
    """
    seed = record_digest("audit-draw/1", [digest, randomness])
    segments = plan.segments
    keys = {bytes.fromhex(key): number for number, (_, key) in enumerate(plan.auditors)}
    load = [0] * len(keys)
    found: Assignment = {}
    for segment in _drawn(range(len(segments)), plan.drawn, seed):
        order = [keys[key] for key in draw(keys, len(keys), record_digest("audit-auditors/1", [seed, segment]))]
        taken = sorted(order, key=load.__getitem__)[: plan.copies]
        for auditor in taken:
            load[auditor] += segments[segment][2] - segments[segment][1]
        found[segment] = tuple(sorted(taken))
    return dict(sorted(found.items()))


def segment_key(plan: Plan, digest: bytes, randomness: bytes, segment: int) -> bytes:
    """Returns the key of a segment's digest (32 bytes): no other segment, audit or round has the same.

    Args:
        plan: The plan.
        digest: Digest of its statement (32 bytes).
        randomness: Value of the key's round.
        segment: Number of the segment.
    """
    source, begin, end = plan.segments[segment]
    return record_digest("audit-key/1", [digest, randomness, source.digest, begin, end])


def referee_share(plan: Plan, closing: bytes, randomness: bytes, assigned: Iterable[int]) -> list[int]:
    """Returns the segments that the referee replays whatever was found, ascending.

    Args:
        plan: The plan.
        closing: Digest of the statement that closed the commitments (32 bytes).
        randomness: Value of the referee's round.
        assigned: The drawn segments, those of silent auditors too.
    """
    if not plan.referee:
        return []
    return sorted(_drawn(assigned, plan.referee, record_digest("audit-referee/1", [closing, randomness])))


def _drawn(population: Iterable[int], count: int, seed: bytes) -> list[int]:
    return [int.from_bytes(each) for each in draw((each.to_bytes(8) for each in population), count, seed)]


def _order(signed: Any) -> TrainingOrder:
    try:
        return SignedOrder.from_cbor(bytes.fromhex(signed)).require_accepted()
    except (OrderError, TypeError, ValueError) as error:
        raise _bad(f"it has an order that is none ({error})") from None


def _ascending(numbers: Iterable[int]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def _bad(why: str) -> AuditError:
    return AuditError(f"The plan of the audit makes no sense: {why}.", code="audit.plan")
