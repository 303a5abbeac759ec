"""What both parties agree on before an inspection that shows nothing but its outcome: the terms of its record.

Everything that the shape of the record depends on is here: its size class, how many rules there are, the edges of the
classes in which hours and FLOPs are told. So a record's length says nothing, and what it can say at most is known
before the first file is read.

Reading is strict: terms have one encoding, and everything else is an `OutcomeError`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from weighbridge.attest import beacon as beacons
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, WeighbridgeError

FORMAT, DRAWING, CHOOSING = 1, 2, 3
"""Formats of terms: of a record alone, of one whose chips are drawn as the terms say, and of one whose worker's image
or machine is chosen as they say too."""
KEY_SIZE = 32
TERMS_LIMIT = 1 << 14
"""So many bytes the encoding of terms may have."""

MOST_FINDINGS = 512
"""Bits of a record's bitmap. Bit 0 stands for every identifier that the published list lacks."""

_INSPECTION = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_MOST_EDGES, _MOST_SPEEDS, _MOST_ATTEMPT = 64, 32, 255
_MOST_SECONDS, _MOST_BITS, _MOST_ROUND = 1 << 31, 1 << 40, (1 << 53) - 1
_BEACON_LIMIT = 1 << 12
_OF_DRAW = frozenset({"samples", "population", "beacon", "round"})
_OF_WORKER = frozenset({"images", "machines", "examined"})
_MOST_EXAMINED = 1 << 16


class OutcomeError(WeighbridgeError):
    """A record of an outcome, or what it rests on, is malformed, altered, or another than was agreed."""

    code = "outcome.malformed"


@dataclass(frozen=True, slots=True)
class SizeClass:
    """How much of everything a record has room for; its length follows from that alone.

    Attributes:
        chips: Drawn chips.
        snapshots: Snapshots on all of them.
        groups: Groups of a draw from strata.
        rules: Rules of the rule set.
    """

    chips: int
    snapshots: int
    groups: int
    rules: int


SIZE_CLASSES: Mapping[int, SizeClass] = MappingProxyType(
    {
        1: SizeClass(chips=16, snapshots=128, groups=8, rules=16),
        2: SizeClass(chips=128, snapshots=2048, groups=32, rules=64),
        3: SizeClass(chips=1024, snapshots=16384, groups=64, rules=256),
    }
)
"""By the number that terms name them by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeTerms:
    """The terms of one record.

    Attributes:
        inspection: Which inspection it is of.
        attempt: How many starts of this inspection came before, 0 to 255.
        size: Number of the size class.
        leaves_after_s: Seconds after the start at which the record leaves, however early it is ready.
        flops_threshold: Size of the violation (H).
        chip_flops_per_day: FLOPs that one chip can do per day (a).
        period_days: Length of the period (T).
        snapshot_rate_per_day: Mean number of snapshots per chip and day (f).
        speeds: The different speeds of chips in groups of a draw, in FLOPs per day, ascending.
        hours: Edges of the classes in which hours are told, ascending: class k is at most `hours[k]`, the last more.
        flops: Edges of those in which FLOPs are told.
        rules: Digest of the rule set (32 bytes); empty without one.
        rule_count: How many rules it has.
        findings: Digest of the list of published findings that the bitmaps are over.
        finding_count: How many identifiers that list has.
        prover: The key that signs for the Prover (raw Ed25519).
        verifier: The key that signs for the Verifier.
        inspection_bits: So many bits an inspection may disclose.
        year_bits: So many bits all inspections of a year may disclose.
        samples: How many chips a sealed inspection draws; 0 if these terms say nothing about a draw.
        population: Digest of the chips that it draws from (32 bytes); empty with `samples`.
        beacon: The beacon whose value the draw depends on besides both parties' shares, as `encode_beacon` has it;
            empty without one.
        round: The round of that beacon; 0 without one.
        images: Digest of the policy of images that may run (32 bytes); empty without one.
        machines: Digest of the list of machines of which one is drawn to run the worker (32 bytes); empty without one.
        examined: So many others of these are drawn to be examined.
    """

    inspection: str
    attempt: int
    size: int
    leaves_after_s: int
    flops_threshold: float
    chip_flops_per_day: float
    period_days: float
    snapshot_rate_per_day: float
    speeds: tuple[float, ...]
    hours: tuple[float, ...]
    flops: tuple[float, ...]
    rules: bytes
    rule_count: int
    findings: bytes
    finding_count: int
    prover: bytes
    verifier: bytes
    inspection_bits: int
    year_bits: int
    samples: int = 0
    population: bytes = b""
    beacon: bytes = b""
    round: int = 0
    images: bytes = b""
    machines: bytes = b""
    examined: int = 0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            OutcomeError: A field is none of its kind.
        """
        name: Any = self.inspection
        if not isinstance(name, str) or not _INSPECTION.fullmatch(name):
            raise OutcomeError("the terms of an outcome name no inspection")
        if type(self.size) is not int or self.size not in SIZE_CLASSES:
            raise OutcomeError(f"there is no size class of that number; the classes are {sorted(SIZE_CLASSES)}")
        for number, most in (
            (self.attempt, _MOST_ATTEMPT),
            (self.leaves_after_s, _MOST_SECONDS),
            (self.rule_count, self.room.rules),
            (self.finding_count, MOST_FINDINGS - 1),
            (self.inspection_bits, _MOST_BITS),
            (self.year_bits, _MOST_BITS),
            (self.samples, self.room.chips),
            (self.round, _MOST_ROUND),
            (self.examined, _MOST_EXAMINED),
        ):
            if type(number) is not int or not 0 <= number <= most:
                raise OutcomeError("a number in the terms of an outcome is out of its range")
        plan = (self.flops_threshold, self.chip_flops_per_day, self.period_days, self.snapshot_rate_per_day)
        if not all(_amount(each) for each in plan):
            raise OutcomeError("the plan of an outcome's terms has H, a, T and f: finite, positive floats")
        for edges, most in ((self.speeds, _MOST_SPEEDS), (self.hours, _MOST_EDGES), (self.flops, _MOST_EDGES)):
            if type(edges) is not tuple or not len(edges) <= most or not all(_amount(each) for each in edges):
                raise OutcomeError(f"speeds and edges of classes are at most {most} finite, positive floats")
            if any(one >= two for one, two in pairwise(edges)):
                raise OutcomeError("speeds and edges of classes ascend")
        keys = (self.findings, self.prover, self.verifier)
        if any(type(each) is not bytes or len(each) != KEY_SIZE for each in keys) or self.prover == self.verifier:
            raise OutcomeError("keys and digests of an outcome's terms have 32 bytes, and the parties are two")
        if type(self.rules) is not bytes or len(self.rules) != (KEY_SIZE if self.rule_count else 0):
            raise OutcomeError("the terms of an outcome have a digest of the rule set if, and only if, it has rules")
        self._check_draw()
        if any(type(each) is not bytes or len(each) not in (0, KEY_SIZE) for each in (self.images, self.machines)):
            raise OutcomeError("a policy of images and a list of machines have digests of 32 bytes")
        if self.examined and not self.machines:
            raise OutcomeError("the terms of an outcome have machines examined of a list that they do not name")

    def _check_draw(self) -> None:
        if type(self.population) is not bytes or len(self.population) != (KEY_SIZE if self.samples else 0):
            raise OutcomeError("the terms of an outcome name a population if, and only if, they draw chips from it")
        if type(self.beacon) is not bytes or len(self.beacon) > _BEACON_LIMIT:
            raise OutcomeError("the beacon in the terms of an outcome is none")
        if bool(self.beacon) != bool(self.round) or (self.beacon and not self.samples):
            raise OutcomeError("the terms of an outcome have a beacon with a round of it, and with a draw, or neither")
        if self.beacon:
            _ = self.beacon_info

    @property
    def beacon_info(self) -> beacons.BeaconInfo | None:
        """The beacon that the draw depends on; None without one.

        Raises:
            OutcomeError: It is none, or not in its one encoding.
        """
        if not self.beacon:
            return None
        try:
            info = beacons.parse_info(json.loads(self.beacon))
        except (FormatError, ValueError, RecursionError):
            raise OutcomeError("the beacon in the terms of an outcome is none") from None
        if encode_beacon(info) != self.beacon:
            raise OutcomeError("the beacon in the terms of an outcome is not in its one encoding")
        return info

    @property
    def room(self) -> SizeClass:
        """The size class."""
        return SIZE_CLASSES[self.size]

    @property
    def digest(self) -> bytes:
        """What commitments and the nonce of the record are bound to."""
        return record_digest("outcome-terms/1", self.to_cbor())

    def to_cbor(self) -> bytes:
        """Returns the one encoding of these terms."""
        form = CHOOSING if self.images or self.machines else DRAWING if self.samples else FORMAT
        values = {name: getattr(self, name) for name in _names(form)}
        return cbor({"format": form, **{k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}})

    @classmethod
    def from_cbor(cls, data: bytes) -> OutcomeTerms:
        """Reads terms.

        Law: `from_cbor(t.to_cbor()) == t`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            OutcomeError: The bytes are not the encoding of terms.
        """
        values = mapping(data, TERMS_LIMIT, "the terms of an outcome")
        form = values.pop("format", None)
        if form not in (FORMAT, DRAWING, CHOOSING) or values.keys() != _names(form):
            raise OutcomeError(f"the terms of an outcome are no map of format {FORMAT}, {DRAWING} or {CHOOSING}")
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        terms = cls(**given)
        if terms.to_cbor() != data:
            raise OutcomeError("the terms of an outcome are not in their one encoding")
        return terms


def _names(form: int) -> set[str]:
    """Returns the fields of terms of a format."""
    names = {each.name for each in fields(OutcomeTerms)}
    names -= _OF_WORKER if form < CHOOSING else set()
    return names - _OF_DRAW if form < DRAWING else names


def encode_beacon(info: beacons.BeaconInfo) -> bytes:
    """Returns a beacon's description as terms have it: JSON as a drand node gives it, keys ascending, no spaces."""
    return json.dumps(info.to_json(), sort_keys=True, separators=(",", ":")).encode()


def _amount(value: Any) -> bool:
    return type(value) is float and math.isfinite(value) and value > 0


def mapping(data: bytes, limit: int, what: str) -> dict[str, Any]:
    """Returns the map with texts as keys that some bytes encode.

    Args:
        data: Hostile.
        limit: So many bytes it may have.
        what: Names it in the message.

    Raises:
        OutcomeError: It is none, not in deterministic CBOR, or longer.
    """
    try:
        value = decode_cbor(data, max_depth=3, max_items=limit) if len(data) <= limit else None
    except FormatError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise OutcomeError(f"{what}: no map in deterministic CBOR of at most {limit} bytes")
    return value
