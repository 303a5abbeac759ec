"""Heads of chips that a Verifier keeps to compare clocks: where a boot began, where its clock became slow, the newest.

Uptime between two heads of one boot must go on as far as the Verifier's clock. Over a whole boot, time that went too
fast could make up for time that went slowly, and interrupts come on the chip's clock. So the witness compares from
report to report, and keeps the heads between which a clock was slow.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from verifier.model.reference_values import CLOCK_TOLERANCE
from verifier.store import database
from verifier.store.tables import AnchorRow
from weighbridge.attest.tokens import Token, read_own

MOST = 64
"""Heads of one boot that are kept; what comes then replaces the newest."""
SLACK_MS = 60_000
"""What a clock may lose from one report to the next, besides a small share of the time: it may be set."""


def rows(session: Session, ueid: bytes) -> list[tuple[bytes, int, int]]:
    """Returns the heads of a chip that are kept, in order: token, when it was asked for, and when it was there."""
    query = select(AnchorRow).where(AnchorRow.ueid == ueid).order_by(AnchorRow.boot_count, AnchorRow.place)
    return [(row.token, row.asked_ms, row.read_ms) for row in session.scalars(query)]


def keep(session: Session, token: Token, data: bytes, asked_ms: int, read_ms: int) -> None:
    """Keeps a head; the newest of its boot goes, unless the clock was slow on one side of it only.

    Args:
        session: Of the registry's database, in a transaction.
        token: The head, verified.
        data: Its bytes.
        asked_ms: When its nonce was given, in milliseconds since 1970.
        read_ms: When it was there.
    """
    query = select(AnchorRow).where(AnchorRow.ueid == token.ueid, AnchorRow.boot_count == token.boot_count)
    kept = session.scalars(query.order_by(AnchorRow.place)).all()
    place = len(kept)
    if place >= MOST:
        place = MOST - 1
    elif place >= 2:
        before, newest = kept[-2:]
        middle = read_own(newest.token)
        was = _slow(read_own(before.token), before.read_ms, middle, newest.asked_ms)
        place -= int(was == _slow(middle, newest.read_ms, token, asked_ms))
    row = {"token": data, "asked_ms": asked_ms, "read_ms": read_ms}
    database.put(session, AnchorRow, {"ueid": token.ueid, "boot_count": token.boot_count, "place": place} | row)


def _slow(first: Token, begin_ms: int, last: Token, end_ms: int) -> bool:
    """Whether the chip's clock went less far than the Verifier's, which went from `begin_ms` to `end_ms`."""
    return last.uptime_ms - first.uptime_ms < (end_ms - begin_ms) * (1 - CLOCK_TOLERANCE) - SLACK_MS
