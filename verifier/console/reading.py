"""What the console asks of the Verifier's database. Nothing here writes, and the database would refuse it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, select

from verifier.registry import FINISHED, Chip, InspectionLine, Registry
from verifier.registry.chip_history import chip_history
from verifier.registry.listings import rfc3339
from verifier.registry.transitions import DRAWN
from verifier.report.earlier_reports import as_current
from verifier.store.tables import (
    ChipRow,
    HeldEntryRow,
    HeldLogRow,
    InspectionRow,
    ProgressLineRow,
    RefusedCheckpointRow,
    SampledRow,
)
from verifier.units import Line
from weighbridge.attest.tokens import entry_digest
from weighbridge.core.errors import NotFoundError

_KEPT_CHIPS = 5000
"""Reports of so many chips together are kept in memory: a large one takes seconds to read, and much room."""
_SITES = 40
_LINES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """How far the chips of one owner at one site are covered.

    Attributes:
        chips: Those that can be drawn.
        witnessed: Of these, chips whose log an inspection has verified at least once.
        drawn: Of these, chips that a finished inspection has drawn.
    """

    owner: str
    site: str
    chips: int
    witnessed: int
    drawn: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """One chip in one finished inspection.

    Attributes:
        row: The chip's part of the report; None if there is no report.
    """

    inspection: str
    created_at: str
    row: Mapping[str, Any] | None


class Reading:
    """Questions to one registry; safe to use from several threads.

    Attributes:
        registry: Opened for reading only.
    """

    def __init__(self, registry: Registry) -> None:
        """Takes a registry."""
        self.registry = registry
        self._reports: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def line(self, inspection: str) -> InspectionLine:
        """Returns one inspection as lists show it, without reading its report.

        Raises:
            NotFoundError: There is none with this identifier.
        """
        for each in self.registry.inspections(prefix=inspection, limit=2):
            if each.id == inspection:
                return each
        raise NotFoundError(f"there is no inspection {inspection}", resource="inspection", name=inspection)

    def report(self, inspection: str) -> dict[str, Any] | None:
        """Returns an inspection's report in the form of this version, or None if it has none.

        Raises:
            NotFoundError: There is no such inspection.
        """
        with self._lock:
            if inspection in self._reports:
                self._reports.move_to_end(inspection)
                return self._reports[inspection]
        found = self.registry.inspection(inspection).report
        if found is None:
            return None
        report = dict(as_current(found))
        with self._lock:
            self._reports[inspection] = report
            while len(self._reports) > 1 and sum(len(each["chips"]) for each in self._reports.values()) > _KEPT_CHIPS:
                self._reports.popitem(last=False)
        return report

    def progress(self, inspection: str) -> list[Line]:
        """Returns the newest lines that an inspection said, the newest first."""
        query = select(ProgressLineRow).where(ProgressLineRow.inspection == inspection)
        with self.registry.session() as session:
            rows = session.scalars(query.order_by(ProgressLineRow.place.desc()).limit(_LINES)).all()
        return [Line(row.stage, row.done, row.total, row.message) for row in rows]

    def coverage(self) -> list[Site]:
        """Returns owners and sites with how many of their chips were looked at, the largest first."""
        finished = select(InspectionRow.id).where(InspectionRow.stage == "done")
        drawn = select(SampledRow.ueid).where(SampledRow.inspection.in_(finished))
        chips = func.count()
        query = (
            select(
                ChipRow.owner,
                ChipRow.site,
                chips,
                func.sum(case((ChipRow.witnessed_size > 0, 1), else_=0)),
                func.sum(case((ChipRow.ueid.in_(drawn), 1), else_=0)),
            )
            .where(ChipRow.state.in_(DRAWN))
            .group_by(ChipRow.owner, ChipRow.site)
            .order_by(chips.desc(), ChipRow.owner, ChipRow.site)
            .limit(_SITES)
        )
        with self.registry.session() as session:
            rows = session.execute(query).all()
        return [
            Site(owner=owner, site=site, chips=count, witnessed=witnessed, drawn=seen)
            for owner, site, count, witnessed, seen in rows
        ]

    def chips(self, *, after: str = "", limit: int) -> list[Chip]:
        """Returns registered chips, sorted by UEID.

        Args:
            after: Only those behind this UEID, in hexadecimal.
            limit: At most so many.
        """
        query = select(ChipRow.ueid).order_by(ChipRow.ueid).limit(limit)
        if after:
            query = query.where(ChipRow.ueid > bytes.fromhex(after))
        with self.registry.session() as session:
            ueids = session.scalars(query).all()
        return [self.registry.chip(ueid) for ueid in ueids]

    def custody(self, ueid: bytes) -> dict[str, Any]:
        """Returns what the registry and the witness know of a chip beyond its listing.

        Returns:
            `history` (see `chip_history`), `contradictions`, `held` (entries of its log that the witness holds, and
            since when; None for none) and `refused` (checkpoints that the witness refused).
        """
        with self.registry.session() as session:
            held = session.get(HeldLogRow, ueid)
            refused = session.execute(
                select(RefusedCheckpointRow.reason, RefusedCheckpointRow.read_ms)
                .where(RefusedCheckpointRow.ueid == ueid)
                .order_by(RefusedCheckpointRow.id)
                .limit(_LINES)
            ).all()
            seen = None if held is None else {"size": held.size, "time": rfc3339(held.read_ms / 1000)}
        return {
            "history": chip_history(self.registry, ueid),
            "contradictions": self.registry.contradictions(ueid),
            "held": seen,
            "refused": [{"reason": reason, "time": rfc3339(read_ms / 1000)} for reason, read_ms in refused],
        }

    def inspections_of(self, ueid: bytes, limit: int = 5) -> list[Drawn]:
        """Returns the newest finished inspections that drew a chip, the newest first; what runs now is not told."""
        query = (
            select(InspectionRow.id, InspectionRow.created_at)
            .join(SampledRow, SampledRow.inspection == InspectionRow.id)
            .where(SampledRow.ueid == ueid, InspectionRow.stage.in_(FINISHED))
            .distinct()
            .order_by(InspectionRow.created_at.desc(), InspectionRow.id)
            .limit(limit)
        )
        with self.registry.session() as session:
            found = session.execute(query).all()
        out = []
        for inspection, created_at in found:
            report, name = self.report(inspection), ueid.hex()
            row = None if report is None else next((c for c in report["chips"] if c["ueid"] == name), None)
            out.append(Drawn(inspection=inspection, created_at=created_at, row=row))
        return out

    def entry_digest(self, ueid: bytes, index: int) -> str:
        """Returns the digest of an entry of a chip's log, in hexadecimal; empty if the witness does not hold it."""
        with self.registry.session() as session:
            row = session.get(HeldEntryRow, (ueid, index))
            return "" if row is None else entry_digest(row.data).hex()
