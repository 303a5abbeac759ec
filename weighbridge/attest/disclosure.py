"""What a record of an outcome discloses: byte by byte what leaves, and a book that counts the bits of a year.

A field of a record can take so many values; the logarithm bounds what an honest worker's record says about secrets,
whatever they are. It depends on the terms alone, so it is known, and charged, before anything is read: a start that is
refused afterwards would say something, too. Rules are counted as what they are, an oracle: each answer takes a part of
what is left of a secret, and a rule with a threshold halves it.

What follows from other fields, or was known before, discloses nothing more. Nor does what is random to the Verifier:
nonce, commitment, key and signature of an honest worker. A dishonest one may hide bits in them; see
`weighbridge.attest.signed_outcome.audit`.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weighbridge.attest.outcome_record import pieces
from weighbridge.attest.outcome_terms import OutcomeError, OutcomeTerms
from weighbridge.attest.outcome_values import RECORD_STATUSES, RULE_OUTCOMES, SNAPSHOT_STATUSES, Outcome
from weighbridge.core import durable
from weighbridge.core.bounded import decode_cbor_sequence
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError

YEAR_MS = 365 * 86_400_000
_BOOK_LIMIT = 16 << 20
_SIGNATURE = 64

_FREE = {
    "": "frame",
    "format": "the format",
    "size": "agreed on before",
    "nonce": "random, of both parties",
    "key": "follows from both parties' randomness",
    "sealed": "random to all but the Prover",
    "draw": "follows from the draw and from the statuses of chips",
    "groups": "follows from the draw and from the statuses of chips",
    "derived": "follows from other fields",
    "verdict": "follows from other fields",
    "signature": "follows from key and record",
}
_PERCENT = 101


@dataclass(frozen=True, slots=True)
class Disclosed:
    """One stretch of a record.

    Attributes:
        offset: Its first byte.
        length: Its bytes.
        field: The field's name; empty for what frames it.
        bits: At most so many bits about secrets are in it.
        why: Why it is no more.
    """

    offset: int
    length: int
    field: str
    bits: float
    why: str


def capacity(terms: OutcomeTerms) -> dict[str, tuple[float, str]]:
    """Returns for each field that discloses anything how many bits at most, and of what.

    Args:
        terms: Agreed on before anything was read.
    """
    room, found = terms.room, terms.finding_count + 1
    hours, flops = len(terms.hours) + 2, len(terms.flops) + 2
    return {
        "status": (math.log2(len(RECORD_STATUSES)), f"{len(RECORD_STATUSES)} statuses"),
        "chips": (2.0 * room.chips, f"{room.chips} chips: log read or not, verified or not"),
        "snapshots": (
            room.snapshots * math.log2(len(SNAPSHOT_STATUSES)),
            f"{room.snapshots} snapshots, {len(SNAPSHOT_STATUSES)} statuses",
        ),
        "violations": (float(found), f"{found} findings that are there or not"),
        "warnings": (float(found), f"{found} findings that are there or not"),
        "rules": (terms.rule_count * math.log2(len(RULE_OUTCOMES)), f"{terms.rule_count} rules, three values"),
        "hours": (4 * math.log2(hours), f"4 of {hours} classes"),
        "flops": (3 * math.log2(flops), f"3 of {flops} classes"),
        "shares": (2 * math.log2(_PERCENT) + math.log2(3), "two shares in percent, and one of three"),
    }


def bits(terms: OutcomeTerms) -> int:
    """Returns how many bits a record under these terms discloses at most, whether or not it ever leaves."""
    return math.ceil(math.fsum(most for most, _ in capacity(terms).values()))


def ledger(record: Outcome, terms: OutcomeTerms) -> list[Disclosed]:
    """Returns the disclosure ledger: every byte of the signed record in one row, in order.

    Args:
        record: The record.
        terms: What it was made under.

    Raises:
        OutcomeError: The record is of another size class.
    """
    if record.size != terms.size:
        raise OutcomeError("the record is of another size class than its terms")
    most, rows, at = capacity(terms), list[Disclosed](), 0
    for name, piece in [*pieces(record), ("signature", bytes(_SIGNATURE))]:
        known = (0.0, _FREE[name]) if name in _FREE else most[name]
        rows.append(Disclosed(at, len(piece), name, *known))
        at += len(piece)
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What a book charges.

    Attributes:
        kind: What is started.
        name: Which one, in the book.
        attempt: How many starts of it came before.
        digest: Of its terms (32 bytes).
        cost: So many bits it may disclose.
        most: So many bits all starts of it may.
        year: So many bits all starts of 365 days may.
    """

    kind: Literal["inspection", "dispute"]
    name: str
    attempt: int
    digest: bytes
    cost: int
    most: int
    year: int


class DisclosureBook:
    """The starts of one party's inspections and sealed disputes, and the bits that each of them may have disclosed.

    Each party keeps one of its own, and takes no part in a start that does not fit. An attempt that came to nothing is
    charged like every other.
    """

    def __init__(self, path: Path, *, inspection_bits: int, year_bits: int) -> None:
        """Opens a book, or begins one.

        Args:
            path: The file; what is in it is only added to.
            inspection_bits: So many bits a start may disclose, by its keeper's word.
            year_bits: So many bits all starts of 365 days.
        """
        self._path, self._inspection, self._year = path, inspection_bits, year_bits

    def charge(self, terms: OutcomeTerms, now_ms: int) -> int:
        """Charges a start before it begins, durably.

        Args:
            terms: What was agreed on.
            now_ms: The time, in milliseconds.

        Returns:
            The bits that are left of the year's.

        Raises:
            OutcomeError: It is more than the keeper or the terms allow, the clock went back, or this start was charged
                already or is not the next one of its inspection (`outcome.budget`); or the book is damaged.
        """
        start = Start(
            kind="inspection", name=terms.inspection, attempt=terms.attempt, digest=terms.digest, cost=bits(terms),
            most=terms.inspection_bits, year=terms.year_bits,
        )  # fmt: skip
        return self.charge_start(start, now_ms)

    def charge_start(self, start: Start, now_ms: int) -> int:
        """Charges a start of any kind; as `charge`.

        Args:
            start: What is charged.
            now_ms: The time, in milliseconds.
        """
        cost, most, year = start.cost, min(self._inspection, start.most), min(self._year, start.year)
        with self._locked() as file:
            entries = _read(file)
            before = sum(name == start.name for _, name, _, _ in entries)
            if start.attempt != before:
                raise _over(f"{before} starts of {start.kind} {start.name} are in the book, not {start.attempt}")
            if entries and now_ms < entries[-1][0]:
                raise _over("the clock went back behind the last start")
            attempts = sum(own for _, name, _, own in entries if name == start.name)
            if attempts + cost > most:
                raise _over(f"this start may disclose {cost} bits after {attempts}; the {start.kind} has {most}")
            spent = sum(own for then, _, _, own in entries if then > now_ms - YEAR_MS)
            if spent + cost > year:
                raise _over(f"this start may disclose {cost} bits, and {spent} of the year's {year} are spent")
            os.write(file, cbor([now_ms, start.name, start.digest, cost]))
            os.fsync(file)
        durable.sync(self._path.parent)
        return year - spent - cost

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _over(why: str) -> OutcomeError:
    return OutcomeError(f"{why}; agree on a smaller class, on fewer rules, or wait", code="outcome.budget")


def _read(file: int) -> list[tuple[int, str, bytes, int]]:
    """Returns the entries of a book; one that is cut off or damaged is no book, and nothing more is charged to it."""
    size = os.fstat(file).st_size
    data = os.pread(file, size, 0) if size <= _BOOK_LIMIT else b"\xff"
    entries = []
    try:
        for each in decode_cbor_sequence(data, max_length=size, max_depth=2, max_items=size + 1) if data else ():
            match each:
                case [int(then), str(name), bytes(digest), int(cost)] if cost >= 0:
                    entries.append((then, name, digest, cost))
                case _:
                    raise FormatError("no entry")
    except FormatError:
        raise OutcomeError("the book of disclosures is damaged; restore it from a copy, and never begin anew") from None
    return entries
