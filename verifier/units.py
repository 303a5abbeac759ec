"""What an inspection has done so far, unit by unit, so that a Verifier that was killed goes on where it was.

A unit of work is the reading of one log, one Prover's answer, one fetched transcript, one replay, one judgement. Its
outcome is durable before the next unit relies on it; what was not stored is done again. Outcomes are CBOR, compressed;
large ones lie in the cache directory under their digest. Progress is kept too, for those who watch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cbor2
import zstandard
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from verifier.registry import FINISHED
from verifier.store import database
from verifier.store.cache import Cache
from verifier.store.tables import AttemptRow, InspectionRow, ProgressLineRow, UnitRow
from weighbridge.core.bounded import compress
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import WeighbridgeError

T = TypeVar("T")

INLINE_BYTES = 16 << 10
"""Outcomes up to this size lie in the database."""
FLUSH_SECONDS = 0.5
"""Progress is written down this often; who watches after a restart misses no more than this."""
_MAX_MESSAGE = 500
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of progress: a stage's word, units done and in all (0: not known), one sentence."""

    stage: str
    done: int
    total: int
    message: str


def key_of(*parts: Any) -> str:
    """Returns the key of a unit that is named by several values, some of which others chose: 64 hex digits."""
    return record_digest("unit/1", list(parts)).hex()


class Units:
    """The outcomes of one inspection's units of work. One thread at a time uses it."""

    def __init__(self, session: sessionmaker[Session], cache: Cache, inspection: str) -> None:
        """Opens the units of an inspection that the registry knows.

        Args:
            session: Of the registry's database.
            cache: Where large outcomes lie.
            inspection: Its identifier.
        """
        self._session, self._cache, self._inspection = session, cache, inspection
        with session() as opened:
            query = select(UnitRow.kind, UnitRow.key).where(UnitRow.inspection == inspection)
            self._there = {(kind, key) for kind, key in opened.execute(query)}

    def __contains__(self, unit: tuple[str, str]) -> bool:
        """Whether a unit (kind, key) has an outcome."""
        return unit in self._there

    def once(self, kind: str, key: str, work: Callable[[], T], *, to: Callable[[T], Any], of: Callable[[Any], T]) -> T:
        """Returns a unit's outcome; does the work and stores it if that has not been done.

        Args:
            kind: What kind of unit it is.
            key: Which one; see `key_of`.
            work: Does it. What it raises is not stored.
            to: Turns the outcome into data for CBOR.
            of: Its inverse. What it cannot read is done again.
        """
        if (kind, key) in self._there:
            try:
                return of(self._read(kind, key))
            except (WeighbridgeError, OSError, ValueError, TypeError, KeyError, cbor2.CBORError, zstandard.ZstdError):
                # An object was deleted or damaged, or an older version wrote it.
                _log.warning("the outcome of %s %s cannot be read; it is done again", kind, key, exc_info=True)
        outcome = work()
        self.put(kind, key, to(outcome))
        return outcome

    def get(self, kind: str, key: str, of: Callable[[Any], T]) -> T | None:
        """Returns a unit's outcome, or None if there is none that can be read; see `once`."""
        if (kind, key) not in self._there:
            return None
        try:
            return of(self._read(kind, key))
        except (WeighbridgeError, OSError, ValueError, TypeError, KeyError, cbor2.CBORError, zstandard.ZstdError):
            _log.warning("the outcome of %s %s cannot be read; it is done again", kind, key, exc_info=True)
            return None

    def put(self, kind: str, key: str, value: Any) -> None:
        """Stores a unit's outcome, replacing one that could not be read."""
        data, digest = compress(cbor(value)), b""
        if len(data) > INLINE_BYTES:
            data, digest = b"", self._cache.keep(data)
        with self._session.begin() as session:
            unit = {"inspection": self._inspection, "kind": kind, "key": key, "value": data, "object": digest}
            database.put(session, UnitRow, unit)
        self._there.add((kind, key))

    def _read(self, kind: str, key: str) -> Any:
        with self._session() as session:
            row = session.get_one(UnitRow, (self._inspection, kind, key))
            data = self._cache.kept(row.object) if row.object else row.value
        return cbor2.loads(zstandard.ZstdDecompressor().decompress(data))


def count(session: sessionmaker[Session], inspection: str) -> int:
    """Returns how many units of an inspection have an outcome."""
    with session() as opened:
        query = select(func.count()).select_from(UnitRow).where(UnitRow.inspection == inspection)
        return opened.scalar(query) or 0


def unfinished(session: sessionmaker[Session]) -> list[str]:
    """Returns the inspections that are neither done nor failed, oldest first."""
    with session() as opened:
        query = select(InspectionRow.id).where(InspectionRow.stage.not_in(FINISHED))
        return list(opened.scalars(query.order_by(InspectionRow.created_at, InspectionRow.id)))


def begin_attempt(session: sessionmaker[Session], inspection: str) -> int:
    """Notes that an unfinished inspection is taken up again.

    Returns:
        How often that was done since it last got any further; 1 if it had got further since the last time.
    """
    done = count(session, inspection)
    with session.begin() as opened:
        row = opened.get(AttemptRow, inspection)
        attempts = row.attempts + 1 if row is not None and row.units == done else 1
        opened.merge(AttemptRow(inspection=inspection, attempts=attempts, units=done))
    return attempts


class Journal:
    """The progress of one inspection: what it said from its beginning, also in former processes.

    A transient line is replaced by the next one and not kept: a replay may say thousands, and one that is hostile as
    many as it likes.
    """

    def __init__(self, session: sessionmaker[Session], inspection: str) -> None:
        """Reads what was said before."""
        self._session, self._inspection = session, inspection
        self._changed = threading.Condition()
        with session() as opened:
            query = (
                select(ProgressLineRow).where(ProgressLineRow.inspection == inspection).order_by(ProgressLineRow.place)
            )
            self._lines = [Line(row.stage, row.done, row.total, row.message) for row in opened.scalars(query)]
        self._stored = len(self._lines)
        self._transient: Line | None = None
        self._version = 0
        self._flushed = 0.0

    def say(self, stage: str, done: int, total: int, message: str, *, transient: bool = False) -> None:
        """Adds a line; those of a new stage are durable at once, others soon."""
        text = "".join(each if each.isprintable() else "?" for each in message[:_MAX_MESSAGE])
        line = Line(stage, done, total, text)
        with self._changed:
            self._version += 1
            self._transient = line if transient else None
            if not transient:
                fresh = not self._lines or self._lines[-1].stage != stage
                self._lines.append(line)
                if fresh or time.monotonic() - self._flushed > FLUSH_SECONDS:
                    self._flush()
            self._changed.notify_all()

    def flush(self) -> None:
        """Makes every line durable."""
        with self._changed:
            self._flush()

    def _flush(self) -> None:
        fresh = self._lines[self._stored :]
        with self._session.begin() as session:
            session.add_all(
                ProgressLineRow(
                    inspection=self._inspection, place=place, stage=line.stage, done=line.done, total=line.total,
                    message=line.message,
                )
                for place, line in enumerate(fresh, self._stored)
            )  # fmt: skip
        self._stored, self._flushed = len(self._lines), time.monotonic()

    def wake(self) -> None:
        """Lets those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def after(self, place: int, version: int, timeout: float) -> tuple[Sequence[Line], Sequence[Line], int]:
        """Waits for something new.

        Args:
            place: Lines that are known, transient ones not counted.
            version: As it was returned before; 0 at first.
            timeout: Seconds after which to return with nothing.

        Returns:
            The lines from `place` on; the newest transient one, if it is new; the version.
        """
        with self._changed:
            if place >= len(self._lines) and version >= self._version:
                self._changed.wait(timeout)
            transient = [self._transient] if self._transient is not None and version < self._version else []
            return self._lines[place:], transient, self._version
