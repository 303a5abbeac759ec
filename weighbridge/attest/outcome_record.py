"""The encoding of the record of an outcome, whose length follows from its size class alone.

Each field is a byte string of a fixed width, so every byte has one place whatever the values are, and what is left over
is zero. No field is a float, whose low bits could say something else.

Reading is strict: a record has one encoding, and everything else is an `OutcomeError`. What a record says may still be
false or contradict itself: see `verifier.report.outcome_consistency`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weighbridge.attest.outcome_terms import MOST_FINDINGS, SIZE_CLASSES, OutcomeError, mapping
from weighbridge.attest.outcome_values import (
    BASES,
    GROUP_KINDS,
    RECORD_STATUSES,
    RULE_OUTCOMES,
    SNAPSHOT_STATUSES,
    VERDICTS,
    ChipOutcome,
    Derived,
    GroupOutcome,
    Outcome,
)
from weighbridge.core.digests import cbor

FORMAT = 1
RECORD_LIMIT = 1 << 16
"""So many bytes the largest record may have."""

_BITMAP = MOST_FINDINGS // 8
_CHIP, _GROUP = 3, 14
_UNDEFINED = (1 << 32) - 1


def pieces(record: Outcome) -> list[tuple[str, bytes]]:
    """Returns the encoding in pieces, in order: each field's name and bytes; the frame between them has no name."""
    values = {"format": FORMAT.to_bytes(1, "big"), **_values(record)}
    out = [("", _head(5, len(values)))]
    for name in sorted(values, key=lambda each: (len(each), each)):
        out += [("", cbor(name) + _head(2, len(values[name]))), (name, values[name])]
    return out


def encode(record: Outcome) -> bytes:
    """Returns the one encoding of this record, whose length follows from `size` alone."""
    return b"".join(piece for _, piece in pieces(record))


def _values(record: Outcome) -> dict[str, bytes]:
    room, derived = SIZE_CLASSES[record.size], record.derived
    chips = [
        bytes([each.reachable | each.verified << 1 | each.certain << 2]) + _number(len(each.snapshots), 2)
        for each in record.chips
    ]
    groups = [
        bytes([1 + GROUP_KINDS.index(each.kind), _byte(each.speed)])
        + b"".join(_number(count, 4) for count in (each.chips, each.drawn, each.unverified))
        for each in record.groups
    ]
    places = (derived.p, derived.p_proven, derived.not_drawn, derived.no_snapshot, derived.unseen)
    return {
        "size": bytes([record.size]),
        "nonce": record.nonce,
        "key": record.key,
        "sealed": record.sealed,
        "status": bytes([RECORD_STATUSES.index(record.status)]),
        "draw": b"".join(_number(each, 4) for each in (record.population, record.drawn, record.unverified)),
        "groups": _padded(b"".join(groups), _GROUP * room.groups),
        "chips": _number(len(record.chips), 2) + _padded(b"".join(chips), _CHIP * room.chips),
        "snapshots": _padded(
            bytes(1 + SNAPSHOT_STATUSES.index(each) for chip in record.chips for each in chip.snapshots),
            room.snapshots,
        ),
        "violations": _bits(record.violations),
        "warnings": _bits(record.warnings),
        "rules": _padded(bytes(1 + RULE_OUTCOMES.index(each) for each in record.rules), room.rules),
        "hours": bytes(map(_byte, record.hours)),
        "flops": bytes(map(_byte, record.flops)),
        "shares": bytes(map(_byte, (record.chunks, record.unproven, record.replayed))),
        "derived": b"".join(_number(_UNDEFINED if each is None else each, 4) for each in places),
        "verdict": bytes([VERDICTS.index(derived.verdict), BASES.index(derived.p_is)]),
    }


def decode(data: bytes) -> Outcome:
    """Reads a record.

    Law: `decode(encode(o)) == o`; and where `decode(data)` returns, its encoding is `data`.

    Raises:
        OutcomeError: The bytes are not the encoding of a record.
    """
    values = mapping(data, RECORD_LIMIT, "a record")
    if not all(type(each) is bytes for each in values.values()):
        raise OutcomeError("the record of an outcome holds byte strings alone")
    try:
        found = _read(values)
        # Padding, order, widths and names are right if, and only if, the same bytes come out again.
        same = encode(found) == data
    except (LookupError, ValueError, OverflowError):
        same = False
    if not same:
        raise OutcomeError("the record of an outcome is not in its one encoding")
    return found


def _read(values: dict[str, Any]) -> Outcome:
    """Reads what has the right form; of all else it raises, or returns what encodes to other bytes."""
    (size,) = values["size"]
    statuses = [SNAPSHOT_STATUSES[each - 1] for each in values["snapshots"].rstrip(b"\0")]
    chips, at = [], 0
    raw = values["chips"]
    for start in range(2, 2 + _CHIP * int.from_bytes(raw[:2], "big"), _CHIP):
        flags, count = raw[start], int.from_bytes(raw[start + 1 : start + _CHIP], "big")
        own = tuple(statuses[at : at + count])
        at += count
        chips.append(ChipOutcome(bool(flags & 1), bool(flags & 2), bool(flags & 4), own))
    if at != len(statuses):
        raise ValueError("statuses of no chip")
    groups = [_group(each) for each in _cells(values["groups"], _GROUP) if each[0]]
    p, proven, not_drawn, no_snapshot, unseen = (
        None if each == _UNDEFINED else each for each in _numbers(values["derived"], 5)
    )
    verdict, basis = values["verdict"]
    hours, flops = tuple(values["hours"]), tuple(values["flops"])
    if len(hours) != 4 or len(flops) != 3:
        raise ValueError("classes")
    population, drawn, unverified = _numbers(values["draw"], 3)
    chunks, unproven, replayed = values["shares"]
    (status,) = values["status"]
    return Outcome(
        size=size, nonce=values["nonce"], key=values["key"], sealed=values["sealed"],
        status=RECORD_STATUSES[status], population=population, drawn=drawn, unverified=unverified,
        groups=tuple(groups), chips=tuple(chips), violations=_places(values["violations"]),
        warnings=_places(values["warnings"]),
        rules=tuple(RULE_OUTCOMES[each - 1] for each in values["rules"].rstrip(b"\0")),
        hours=hours, flops=flops, chunks=chunks, unproven=unproven, replayed=replayed,
        derived=Derived(
            p=p, p_is=BASES[basis], p_proven=proven, not_drawn=not_drawn, no_snapshot=no_snapshot, unseen=unseen,
            verdict=VERDICTS[verdict],
        ),
    )  # fmt: skip


def _group(cell: bytes) -> GroupOutcome:
    return GroupOutcome(GROUP_KINDS[cell[0] - 1], cell[1], *_numbers(cell[2:], 3))


def _cells(data: bytes, width: int) -> Iterable[bytes]:
    if len(data) % width:
        raise ValueError("no whole number of cells")
    return (data[at : at + width] for at in range(0, len(data), width))


def _numbers(data: bytes, count: int) -> list[int]:
    if len(data) != 4 * count:
        raise ValueError("another number of numbers")
    return [int.from_bytes(each, "big") for each in _cells(data, 4)]


def _number(value: int, width: int) -> bytes:
    try:
        return value.to_bytes(width, "big")
    except OverflowError:
        raise OutcomeError("a number does not fit into the record of an outcome", code="outcome.overfull") from None


def _byte(value: int) -> int:
    return _number(value, 1)[0]


def _padded(data: bytes, width: int) -> bytes:
    return data.ljust(width, b"\0")


def _bits(places: Iterable[int]) -> bytes:
    return sum(1 << place for place in places).to_bytes(_BITMAP, "big")


def _places(data: bytes) -> frozenset[int]:
    value = int.from_bytes(data, "big")
    return frozenset(place for place in range(8 * len(data)) if value >> place & 1)


def _head(major: int, length: int) -> bytes:
    """Returns the head of a byte string or a map in deterministic CBOR."""
    if length < 24:
        return bytes([major << 5 | length])
    width = 1 if length < 1 << 8 else 2
    return bytes([major << 5 | (24 if width == 1 else 25)]) + length.to_bytes(width, "big")
