"""What a Verifier logs about a draw: a commitment, the closing, and the opening or the abandonment.

    commitment    before the cut-off: H(v), registry root, population, strata and sample sizes, cut-off, beacon round
    closing       after the cut-off and before the round: the heads of the chips' logs that were witnessed by then
    opening       after the round: v, the beacon's value, the seed, and the sample that follows from them
    abandonment   in place of an opening: v, and why nothing was drawn

Each is one entry of the Verifier's own log (`verifier.draw.own_log`): deterministic CBOR, a map with text keys.
docs/formats/draw.md has the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from functools import partial
from typing import Any, TypeVar

from verifier.model.strata import ATTRIBUTES, Allocation, Attribute, DrawFormatError, Key
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest, cbor, record_digest
from weighbridge.core.errors import FormatError, UsageError

MAX_ENTRY_BYTES = 65_000
"""A log's entries have at most 65,535 bytes; this many bytes hold the names of several hundred strata."""

_COMMITMENT = "weighbridge/draw-commitment/1"
_CLOSING = "weighbridge/draw-closing/1"
_OPENING = "weighbridge/draw-opening/1"
_ABANDONMENT = "weighbridge/draw-abandonment/1"
_END = 1 << 53
T = TypeVar("T")


def secret_digest(secret: bytes) -> bytes:
    """Returns H(v), which a commitment shows of the secret (32 bytes)."""
    return record_digest("draw-secret/1", secret)


def seed_of(secret: bytes, registry_root: bytes, heads: bytes, randomness: bytes) -> bytes:
    """Returns the seed of a draw, 32 bytes.

    Args:
        secret: v, 32 bytes.
        registry_root: Root of the registry when the draw was committed to.
        heads: Digest of the heads that were witnessed at the cut-off.
        randomness: The beacon's value.
    """
    return record_digest("draw-seed/1", [secret, registry_root, heads, randomness])


@dataclass(frozen=True, kw_only=True, slots=True)
class StratumPlan:
    """How many chips are drawn of a stratum.

    Attributes:
        key: Its value of each attribute that divides the population.
        chips: Chips in it.
        samples: Chips to draw at random, at most `chips`.
    """

    key: Key
    chips: int
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """What the draw is to catch; p follows from it.

    Attributes:
        flops_threshold: Size of the violation not to miss, in FLOPs (H).
        chip_flops_per_day: FLOPs that one chip can do a day (a).
        period_days: Monitoring period in days (T_m).
        snapshot_rate_per_day: Mean snapshots per chip and day (f).
        speeds: FLOPs a day of chips of some types, by type, where they differ from `chip_flops_per_day`.
    """

    flops_threshold: float
    chip_flops_per_day: float
    period_days: float
    snapshot_rate_per_day: float
    speeds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks every number.

        Raises:
            UsageError: One is not positive and finite.
        """
        for value in (
            self.flops_threshold, self.chip_flops_per_day, self.period_days, self.snapshot_rate_per_day,
            *self.speeds.values(),
        ):  # fmt: skip
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"H, a, T_m and f must be positive finite numbers, not {value!r}")

    def speed(self, chip_type: str) -> float:
        """Returns what a chip of a type can do, in FLOPs a day."""
        return self.speeds.get(chip_type, self.chip_flops_per_day)

    def to_json(self) -> dict[str, Any]:
        """Returns every field."""
        return {
            "flops_threshold": float(self.flops_threshold),
            "chip_flops_per_day": float(self.chip_flops_per_day),
            "period_days": float(self.period_days),
            "snapshot_rate_per_day": float(self.snapshot_rate_per_day),
            "speeds": {name: float(value) for name, value in sorted(self.speeds.items())},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Commitment:
    """What is fixed before the cut-off.

    Attributes:
        inspection: Identifier of the inspection.
        secret: H(v), 32 bytes.
        registry: Root of the registry's log, 32 bytes.
        registry_size: Entries of that log.
        population: Digest of the population's lines, 32 bytes.
        chips: Chips in the population (C).
        by: Attributes that divide it into strata.
        strata: Each stratum, in ascending order of keys.
        allocation: How samples were allocated to strata.
        aim: What the draw is to catch.
        beacon: Chain hash of the beacon, 32 bytes.
        round: Which of its values counts.
        committed_ms: When this was made, in milliseconds since 1970 by the Verifier's clock.
        cutoff_ms: Heads count that were witnessed until then; later ones may.
        open_by_ms: When an opening is overdue.
    """

    inspection: str
    secret: bytes
    registry: bytes
    registry_size: int
    population: bytes
    chips: int
    by: tuple[Attribute, ...]
    strata: tuple[StratumPlan, ...]
    allocation: Allocation
    aim: Aim
    beacon: bytes
    round: int
    committed_ms: int
    cutoff_ms: int
    open_by_ms: int

    def encode(self) -> bytes:
        """Returns the log entry; `parse_entry` reads it back.

        Raises:
            UsageError: It is larger than an entry can be.
        """
        data = cbor(
            {
                "type": _COMMITMENT,
                "inspection": self.inspection,
                "secret": self.secret,
                "registry": self.registry,
                "registry_size": self.registry_size,
                "population": self.population,
                "chips": self.chips,
                "by": list(self.by),
                "strata": [[list(each.key), each.chips, each.samples] for each in self.strata],
                "allocation": self.allocation,
                "aim": self.aim.to_json(),
                "beacon": self.beacon,
                "round": self.round,
                "committed_ms": self.committed_ms,
                "cutoff_ms": self.cutoff_ms,
                "open_by_ms": self.open_by_ms,
            }
        )
        if len(data) > MAX_ENTRY_BYTES:
            raise UsageError(f"{len(self.strata)} strata do not fit into one log entry; divide by fewer attributes")
        return data


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """What was witnessed at the cut-off.

    Attributes:
        commitment: Digest of the commitment's entry, 32 bytes.
        heads: Digest of the heads' lines, 32 bytes.
        witnessed: Chips with a head.
        closed_ms: When this was made, in milliseconds since 1970 by the Verifier's clock.
    """

    commitment: bytes
    heads: bytes
    witnessed: int
    closed_ms: int

    def encode(self) -> bytes:
        """Returns the log entry; `parse_entry` reads it back."""
        return cbor({"type": _CLOSING, **asdict(self)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What the draw came to.

    Attributes:
        commitment: Digest of the commitment's entry, 32 bytes.
        closing: Digest of the closing's entry, 32 bytes.
        secret: v, 32 bytes.
        randomness: The beacon's value of the round, 32 bytes.
        seed: As `seed_of` gives it, 32 bytes.
        sample: Digest of the sample, as `verifier.draw.derivation.sample_digest` gives it, 32 bytes.
    """

    commitment: bytes
    closing: bytes
    secret: bytes
    randomness: bytes
    seed: bytes
    sample: bytes

    def encode(self) -> bytes:
        """Returns the log entry; `parse_entry` reads it back."""
        return cbor({"type": _OPENING, **asdict(self)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Abandonment:
    """Why nothing was drawn, with the secret, so that a reader can see what would have been.

    Attributes:
        commitment: Digest of the commitment's entry, 32 bytes.
        secret: v, 32 bytes.
        reason: One sentence.
    """

    commitment: bytes
    secret: bytes
    reason: str

    def encode(self) -> bytes:
        """Returns the log entry; `parse_entry` reads it back."""
        return cbor({"type": _ABANDONMENT, **asdict(self)})


Entry = Commitment | Closing | Opening | Abandonment


def entry_digest(entry: Entry) -> bytes:
    """Returns the digest by which later entries name this one: BLAKE3 of its bytes."""
    return bytes_digest(entry.encode())


def parse_entry(data: bytes) -> Entry:
    """Reads an entry of the Verifier's log; inverse of `encode` for all bytes that are accepted.

    Raises:
        DrawFormatError: It is none.
    """
    if len(data) > MAX_ENTRY_BYTES:
        raise DrawFormatError(f"An entry about a draw has at most {MAX_ENTRY_BYTES} bytes, not {len(data)}.")
    try:
        value = decode_cbor(data)
    except FormatError as error:
        raise DrawFormatError(f"The entry is {error.message}.") from None
    kind = value.get("type") if isinstance(value, dict) else None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise DrawFormatError("The entry is none about a draw; name one that is.")
    return reader(_Fields(value))


def parse_as(data: bytes, kind: type[T]) -> T:
    """Reads an entry that must be of one kind.

    Raises:
        DrawFormatError: It is none of these.
    """
    entry = parse_entry(data)
    if not isinstance(entry, kind):
        raise DrawFormatError(f"The entry is no {kind.__name__.lower()}, but an {type(entry).__name__.lower()}.")
    return entry


class _Fields:
    """The fields of a map from outside; each must be taken once."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise DrawFormatError("A part of the entry is no map.")
        self._value, self._left = value, set(value) - {"type"}

    def _take(self, name: str) -> Any:
        if name not in self._value:
            raise DrawFormatError(f"The entry has no field {name!r}.")
        self._left.discard(name)
        return self._value[name]

    def end(self) -> None:
        if self._left:
            raise DrawFormatError(f"The entry has fields that it may not have: {sorted(map(str, self._left))!r:.200}.")

    def digest(self, name: str) -> bytes:
        value = self._take(name)
        if not isinstance(value, bytes) or len(value) != DIGEST_SIZE:
            raise DrawFormatError(f"The field {name!r} has {DIGEST_SIZE} bytes.")
        return value

    def number(self, name: str, least: int = 0) -> int:
        return _number(self._take(name), name, least)

    def text(self, name: str) -> str:
        return _text(self._take(name), name)

    def list(self, name: str) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list):
            raise DrawFormatError(f"The field {name!r} is no list.")
        return value

    def map(self, name: str) -> dict[Any, Any]:
        value = self._take(name)
        if not isinstance(value, dict):
            raise DrawFormatError(f"The field {name!r} is no map.")
        return value

    def real(self, name: str) -> float:
        return _real(self._take(name), name)


def _number(value: Any, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < _END:
        raise DrawFormatError(f"The field {name!r} is no whole number from {least}.")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > 300 or not value.isprintable():
        raise DrawFormatError(f"The field {name!r} is no text of at most 300 printable characters.")
    return value


def _real(value: Any, name: str) -> float:
    if not isinstance(value, float) or not (math.isfinite(value) and value > 0):
        raise DrawFormatError(f"The field {name!r} is no positive finite float.")
    return value


def _commitment(fields: _Fields) -> Commitment:
    by = fields.list("by")
    known = tuple(each for each in ATTRIBUTES if each in by)
    if list(known) != by:
        raise DrawFormatError("The field 'by' names attributes that are unknown, doubled or out of order.")
    strata = []
    for row in fields.list("strata"):
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], list) or len(row[0]) != len(by):
            raise DrawFormatError("A stratum is its key, its chips and its samples.")
        plan = StratumPlan(
            key=tuple(_text(each, "strata") for each in row[0]),
            chips=_number(row[1], "strata", 1),
            samples=_number(row[2], "strata", 0),
        )
        if plan.samples > plan.chips:
            raise DrawFormatError("More chips cannot be drawn of a stratum than there are in it.")
        strata.append(plan)
    keys = [each.key for each in strata]
    chips = fields.number("chips", 1)
    if keys != sorted(set(keys)) or sum(each.chips for each in strata) != chips:
        raise DrawFormatError("Strata are not in ascending order, or their chips are not all chips.")
    allocation = fields.text("allocation")
    if allocation not in ("proportional", "optimal"):
        raise DrawFormatError(f"The allocation {allocation!r:.40} is not known.")
    aim = _Fields(fields.map("aim"))
    made = Commitment(
        inspection=fields.text("inspection"),
        secret=fields.digest("secret"),
        registry=fields.digest("registry"),
        registry_size=fields.number("registry_size"),
        population=fields.digest("population"),
        chips=chips,
        by=known,
        strata=tuple(strata),
        allocation="optimal" if allocation == "optimal" else "proportional",
        aim=Aim(
            flops_threshold=aim.real("flops_threshold"),
            chip_flops_per_day=aim.real("chip_flops_per_day"),
            period_days=aim.real("period_days"),
            snapshot_rate_per_day=aim.real("snapshot_rate_per_day"),
            speeds={_text(name, "speeds"): _real(value, "speeds") for name, value in aim.map("speeds").items()},
        ),
        beacon=fields.digest("beacon"),
        round=fields.number("round", 1),
        committed_ms=fields.number("committed_ms"),
        cutoff_ms=fields.number("cutoff_ms"),
        open_by_ms=fields.number("open_by_ms"),
    )
    aim.end()
    fields.end()
    return made


_Flat = TypeVar("_Flat", Closing, Opening, Abandonment)


def _flat(kind: type[_Flat], fields: _Fields) -> _Flat:
    """Reads an entry whose bytes are all digests, and that has no parts."""
    take: dict[str, Callable[[str], Any]] = {"bytes": fields.digest, "int": fields.number, "str": fields.text}
    made = kind(**{each.name: take[str(each.type)](each.name) for each in dataclass_fields(kind)})
    fields.end()
    return made


_READERS: dict[str, Callable[[_Fields], Entry]] = {
    _COMMITMENT: _commitment,
    _CLOSING: partial(_flat, Closing),
    _OPENING: partial(_flat, Opening),
    _ABANDONMENT: partial(_flat, Abandonment),
}
