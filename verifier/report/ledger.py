"""The ledger: where every chip-hour of the period went, and how much undeclared work the rest leaves room for.

Between two entries of a chip's log there is no snapshot. What the entries at both ends say decides what the time
between them counts as:

- *explained*: both ends show the same transcript (its draft was logged, or a replay reproduced the memory), and the
  chip's counters ran on. The FLOPs between the two positions, counted from the tapes, over the chip's peak are the
  utilisation. After the last snapshot a transcript explains as much time as its remaining FLOPs take at that pace.
- *idle*: the chip's kernel counter stood still; or at both ends no workload was attached (a boot, an interrupt that
  found none, and then the draft of the next declared run).
- *exempt*: the parties agreed not to look at this chip.
- *unexplained*: everything else.

Rows of one chip follow each other without gap or overlap and fill the period to the millisecond. Nothing here is
evidence against the Prover: every chip has unexplained hours after its last snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from verifier.checks.commitment import EVENT
from verifier.checks.interrupts import IDLE
from verifier.checks.memory import replayed
from verifier.model.facts import Explanation, LogFacts, SnapshotFacts, TranscriptFacts, digest, number
from weighbridge.attest.tokens import HiddenBody, Token, event_name
from weighbridge.core.errors import UsageError, WeighbridgeError

DAY_MS = 86_400_000

Category = Literal["explained", "idle", "exempt", "unexplained"]
CATEGORIES: tuple[Category, ...] = ("explained", "idle", "exempt", "unexplained")
Kind = Literal["boot", "idle", "draft", "snapshot", "other", "head"]

_EXPLAINED = ("explained", "explained given collectives")
_FREE = ("boot", "idle")
"""Kinds of entries at which no workload was attached."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerPolicy:
    """What the parties agreed on.

    Attributes:
        exempt: UEIDs in hex, and types, of chips that are not accounted for.
        tolerated_share: A chip with a larger share of unexplained hours counts as one in the extrapolation.
        confidence: Of the bound on chips that were not sampled.
    """

    exempt: frozenset[str] = frozenset()
    tolerated_share: float = 0.1
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is out of range.
        """
        if not (0 <= self.tolerated_share <= 1 and 0.5 < self.confidence < 1):
            raise UsageError("tolerated_share of a ledger lies from 0 to 1, and its confidence between 0.5 and 1")

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field."""
        return {
            "exempt": sorted(self.exempt),
            "tolerated_share": self.tolerated_share,
            "confidence": self.confidence,
        }


AS_AGREED = LedgerPolicy()


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One entry of a chip's log, as far as the ledger looks at it.

    Attributes:
        time_ms: The chip's time.
        uptime_ms: Time since the boot.
        boot: Number of the boot.
        index: Index in the log.
        kind: What it says; `other` says nothing about the workload.
        transcript: Whose draft was logged, or which one explains the snapshot.
        done: FLOPs of the transcript up to the snapshot, by its tapes.
        kernels: The chip's kernel counter, since the workload was attached.
        counted: The chip's FLOP counter, likewise.
    """

    time_ms: int
    uptime_ms: int
    boot: int
    index: int
    kind: Kind
    transcript: str | None = None
    done: int = 0
    kernels: int = 0
    counted: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One stretch of a chip's time.

    Attributes:
        begin_ms: Its first millisecond.
        end_ms: The one after its last.
        category: What it counts as.
        basis: Why: `snapshots`, `transcript`, `counters`, `interrupts`, `off`, `agreed`, or what is missing.
        transcript: What explains it.
        flops: FLOPs of that transcript in it.
        counted: FLOPs by the chip's counter, where that is known.
    """

    begin_ms: int
    end_ms: int
    category: Category
    basis: str
    transcript: str | None = None
    flops: float = 0.0
    counted: float | None = None

    @property
    def ms(self) -> int:
        """How long it is."""
        return self.end_ms - self.begin_ms

    def clipped(self, begin_ms: int, end_ms: int) -> Row:
        """Returns the part of it from `begin_ms` to `end_ms`; its FLOPs are taken to be spread evenly."""
        begin, end = max(self.begin_ms, begin_ms), min(self.end_ms, end_ms)
        part = (end - begin) / self.ms if self.ms else 0.0
        counted = None if self.counted is None else self.counted * part
        return replace(self, begin_ms=begin, end_ms=end, flops=self.flops * part, counted=counted)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChipLedger:
    """The account of one chip.

    Attributes:
        ueid: The chip.
        peak: FLOPs that it can do a day.
        rows: In order; they fill the period.
    """

    ueid: bytes
    peak: float
    rows: tuple[Row, ...]

    def ms(self, category: Category) -> int:
        """Milliseconds of one category."""
        return sum(row.ms for row in self.rows if row.category == category)

    @property
    def period_ms(self) -> int:
        """Length of the period."""
        return sum(row.ms for row in self.rows)

    @property
    def explained_flops(self) -> float:
        """FLOPs of transcripts in the period."""
        return math.fsum(row.flops for row in self.rows)

    @property
    def unexplained_flops(self) -> float:
        """Bound on undeclared work if the chip's counters and interrupts are believed.

        Unexplained hours at full speed, and what the counter shows beyond the transcripts in explained ones.
        """
        beside = (max(0.0, row.counted - row.flops) for row in self.rows if row.counted is not None)
        return self.ms("unexplained") * self.peak / DAY_MS + math.fsum(beside)

    @property
    def remainder_flops(self) -> float:
        """Bound on undeclared work if nothing is believed but the transcripts: capacity less explained FLOPs.

        Time of exempt chips is not in it.
        """
        return max(0.0, (self.period_ms - self.ms("exempt")) * self.peak / DAY_MS - self.explained_flops)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data; times in milliseconds, work in FLOPs."""
        return {
            "ueid": self.ueid.hex(),
            "peak_flops_per_day": self.peak,
            "ms": {category: self.ms(category) for category in CATEGORIES},
            "explained_flops": self.explained_flops,
            "unexplained_flops": self.unexplained_flops,
            "remainder_flops": self.remainder_flops,
            "rows": [
                {
                    "begin_ms": row.begin_ms,
                    "end_ms": row.end_ms,
                    "category": row.category,
                    "basis": row.basis,
                    "transcript": row.transcript,
                    "flops": row.flops,
                    "counted": row.counted,
                    "utilisation": row.flops * DAY_MS / (self.peak * row.ms) if row.flops and row.ms else None,
                }
                for row in self.rows
            ],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ChipLedger:
        """Reads the peak and the rows of what `to_json` returned; `from_json(to_json(x)) == x`.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        rows = tuple(
            Row(
                begin_ms=int(row["begin_ms"]),
                end_ms=int(row["end_ms"]),
                category=CATEGORIES[CATEGORIES.index(row["category"])],
                basis=str(row["basis"]),
                transcript=None if row["transcript"] is None else str(row["transcript"]),
                flops=float(row["flops"]),
                counted=None if row["counted"] is None else float(row["counted"]),
            )
            for row in raw["rows"]
        )
        return cls(ueid=bytes.fromhex(raw["ueid"]), peak=float(raw["peak_flops_per_day"]), rows=rows)


def account(
    log: LogFacts,
    snapshots: Iterable[SnapshotFacts],
    transcripts: Iterable[TranscriptFacts],
    *,
    period_days: float,
    peak: float,
    policy: LedgerPolicy = AS_AGREED,
    totals: Mapping[str, int] | None = None,
) -> ChipLedger:
    """Accounts for one chip.

    Args:
        log: Its log.
        snapshots: All snapshots of the inspection, once they are judged.
        transcripts: Those that explain snapshots.
        period_days: Length of the period, which ends when the log was read.
        peak: FLOPs that the chip can do a day.
        policy: What the parties agreed on.
        totals: FLOPs of whole transcripts, by identifier; without one, a transcript explains nothing after its last
            snapshot.
    """
    length = round(period_days * DAY_MS)
    if log.chip.ueid.hex() in policy.exempt or log.chip.chip_type in policy.exempt:
        rows = [Row(begin_ms=0, end_ms=length, category="exempt", basis="agreed")]
    elif isinstance(log.head, WeighbridgeError):
        rows = [Row(begin_ms=0, end_ms=length, category="unexplained", basis="log not read")]
    else:
        end = log.head.token.time_ms
        rows = fill(points(log, snapshots, transcripts), end - length, end, totals or {})
    return ChipLedger(ueid=log.chip.ueid, peak=peak, rows=tuple(rows))


def points(log: LogFacts, snapshots: Iterable[SnapshotFacts], transcripts: Iterable[TranscriptFacts]) -> list[Point]:
    """Returns what the entries of a log, and its head at the end, say about the workload."""
    drafts = {
        facts.opened.draft_digest: facts.id for facts in transcripts if not isinstance(facts.opened, WeighbridgeError)
    }
    known = {snapshot.index: snapshot for snapshot in snapshots if snapshot.chip.ueid == log.chip.ueid}
    tokens = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    if not isinstance(log.head, WeighbridgeError):
        tokens.append(log.head.token)
    found = [_point(token, known.get(token.index), drafts) for token in tokens if not _says_nothing(token)]
    # A log that runs backwards is a finding of its own; the ledger must add up all the same.
    return sorted(found, key=lambda point: (point.time_ms, point.index))


def _says_nothing(token: Token) -> bool:
    """Whether an entry is the workload's own note, about something else than the transcript that it writes."""
    name = event_name(token)
    return name is not None and name != EVENT and not name.startswith("interrupt-")


def _point(token: Token, snapshot: SnapshotFacts | None, drafts: Mapping[bytes, str]) -> Point:
    place: dict[str, Any] = {
        "time_ms": token.time_ms, "uptime_ms": token.uptime_ms, "boot": token.boot_count, "index": token.index,
    }  # fmt: skip
    if isinstance(token.body, HiddenBody):
        return Point(kind="other", **place)
    if token.kind == "event":
        name = event_name(token)
        if name == IDLE:
            return Point(kind="idle", **place)
        run = drafts.get(digest(token, "digest")) if name == EVENT else None
        return Point(kind="other" if run is None else "draft", transcript=run, **place)
    if token.kind != "snapshot":
        return Point(kind="boot" if token.kind == "boot" else "head", **place)
    counters: dict[str, Any] = {"kernels": number(token, "kernels"), "counted": number(token, "flops")}
    if snapshot is None or snapshot.status not in _EXPLAINED or not isinstance(snapshot.explanation, Explanation):
        return Point(kind="snapshot", **counters, **place)
    result = replayed(snapshot)
    if result is None or result.flops is None:  # a tape that cannot be counted
        return Point(kind="snapshot", **counters, **place)
    return Point(kind="snapshot", transcript=snapshot.explanation.transcript_id, done=result.flops, **counters, **place)


def fill(found: Sequence[Point], begin_ms: int, end_ms: int, totals: Mapping[str, int]) -> list[Row]:
    """Returns rows that fill the time from `begin_ms` to `end_ms` exactly.

    Args:
        found: Points of one chip, in order of time.
        begin_ms: First millisecond of the period.
        end_ms: The one after its last.
        totals: FLOPs of whole transcripts.
    """
    rows = [*_before(found), *_rows(found, totals)]
    kept = [row.clipped(begin_ms, end_ms) for row in rows if row.end_ms > begin_ms and row.begin_ms < end_ms]
    kept = [row for row in kept if row.ms]
    first = kept[0].begin_ms if kept else end_ms
    last = kept[-1].end_ms if kept else first
    gaps = [(begin_ms, first), *((before.end_ms, after.begin_ms) for before, after in pairwise(kept)), (last, end_ms)]
    kept += [
        Row(begin_ms=begin, end_ms=end, category="unexplained", basis="no entry in the log")
        for begin, end in gaps
        if end > begin
    ]
    return sorted(kept, key=lambda row: row.begin_ms)


def _before(found: Sequence[Point]) -> list[Row]:
    """The time before a log begins: a chip that was never started before its first entry did nothing."""
    if not found or found[0].kind != "boot" or found[0].boot != 1 or found[0].index != 0:
        return []
    return [Row(begin_ms=-(1 << 62), end_ms=found[0].time_ms, category="idle", basis="off")]


def _rows(found: Sequence[Point], totals: Mapping[str, int]) -> list[Row]:
    rows: list[Row] = []
    for a, b in pairwise(found):
        if b.time_ms > a.time_ms:
            rows += _between(a, b, totals, _pace(rows, a.transcript))
    return rows


def _pace(rows: Collection[Row], transcript: str | None) -> float:
    """FLOPs a millisecond of a transcript so far, where they are known."""
    own = [row for row in rows if row.transcript == transcript and row.basis == "snapshots"]
    return sum(row.flops for row in own) / sum(row.ms for row in own) if transcript and own else 0.0


def _between(a: Point, b: Point, totals: Mapping[str, int], pace: float) -> list[Row]:
    """What the time from one point to the next counts as."""

    def row(category: Category, basis: str, begin: int = a.time_ms, end: int = b.time_ms, **more: Any) -> Row:
        return Row(begin_ms=begin, end_ms=end, category=category, basis=basis, **more)

    if b.kind == "boot":  # the chip lost power at some time; the boot entry comes before any workload
        started = min(b.time_ms, max(a.time_ms, b.time_ms - b.uptime_ms))
        left = _tail(a, started, totals, pace, "when it lost power is not known")
        return [*left, *([row("idle", "off", begin=started)] if started < b.time_ms else [])]
    if a.kind == b.kind == "snapshot" and a.boot == b.boot and b.kernels >= a.kernels and b.counted >= a.counted:
        if a.transcript is not None and a.transcript == b.transcript and b.done >= a.done:
            done, counted = float(b.done - a.done), float(b.counted - a.counted)
            return [row("explained", "snapshots", transcript=a.transcript, flops=done, counted=counted)]
        if a.kernels == b.kernels:
            return [row("idle", "counters")]
    if a.kind == "draft" and b.kind == "snapshot" and a.boot == b.boot and a.transcript == b.transcript:
        return [row("explained", "snapshots", transcript=a.transcript, flops=float(b.done), counted=float(b.counted))]
    if a.kind in _FREE and b.kind in ("idle", "draft") and a.boot == b.boot:
        return [row("idle", "interrupts")]
    if b.kind in ("idle", "draft"):
        first, *rest = _tail(a, b.time_ms, totals, pace, "no transcript explains it")
        if first.category == "explained":  # the run had ended, and the next entry found no workload
            return [first, *(replace(each, category="idle", basis="interrupts") for each in rest)]
        return [first, *rest]
    return _tail(
        a, b.time_ms, totals, pace, "no snapshot fell here" if b.kind == "head" else "no transcript explains it"
    )


def _tail(a: Point, end_ms: int, totals: Mapping[str, int], pace: float, why: str) -> list[Row]:
    """The time after `a`: what is left of its transcript at the pace so far, then unexplained."""
    split = a.time_ms
    left = totals.get(a.transcript, 0) - a.done if a.kind == "snapshot" and a.transcript is not None else 0
    rows = []
    if left > 0 and pace > 0:
        split = min(end_ms, a.time_ms + math.ceil(left / pace))
        flops = min(float(left), pace * (split - a.time_ms))
        rows.append(
            Row(
                begin_ms=a.time_ms, end_ms=split, category="explained", basis="transcript", transcript=a.transcript,
                flops=flops,
            )
        )  # fmt: skip
    if split < end_ms:
        rows.append(Row(begin_ms=split, end_ms=end_ms, category="unexplained", basis=why))
    return [each for each in rows if each.ms]
