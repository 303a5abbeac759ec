"""Search: chips by name or identifier, inspections by identifier, runs by name, and digests, in reports too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from verifier.console.reading import Reading
from verifier.registry import Chip, InspectionLine
from verifier.report.finding_groups import group
from verifier.store.tables import ChipRow, InspectionRow

LONGEST = 200
"""Characters of a query."""
_SHORTEST = 3
"""Characters from which on reports are read: anything shorter is in all of them."""
_MOST = 20
_NEWEST = 200
"""Reports that are looked through."""
_HEX = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a report something was found.

    Attributes:
        inspection: Identifier.
        what: In words, e.g. `run` or a finding's identifier.
        text: What it is called there.
        path: The page with it.
    """

    inspection: str
    what: str
    text: str
    path: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

    chips: list[Chip] = field(default_factory=list)
    inspections: list[InspectionLine] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether it found anything."""
        return bool(self.chips or self.inspections or self.places)


def search(reading: Reading, query: str) -> Found:
    """Looks for a query everywhere.

    Args:
        reading: The database.
        query: What a reader typed, at most `LONGEST` characters; letters of either case are the same.

    Returns:
        At most 20 of each kind; of reports, what is in the 200 newest.
    """
    query = query.strip()
    if not query:
        return Found()
    low = query.lower()
    inspections = reading.registry.inspections(prefix=low, limit=_MOST) if _HEX.fullmatch(low) else []
    return Found(_chips(reading, query), inspections, list(_places(reading, query)))


def _chips(reading: Reading, query: str) -> list[Chip]:
    found = reading.registry.find(query, _MOST)
    if found:
        return found
    part = select(ChipRow.ueid).where(ChipRow.name.icontains(query, autoescape=True)).order_by(ChipRow.ueid)
    with reading.registry.session() as session:
        ueids = session.scalars(part.limit(_MOST)).all()
    return [reading.registry.chip(ueid) for ueid in ueids]


def _places(reading: Reading, query: str) -> Iterator[Place]:
    if len(query) < _SHORTEST:
        return
    newest = select(InspectionRow.id).order_by(InspectionRow.created_at.desc()).limit(_NEWEST).subquery()
    written = json.dumps(query)[1:-1]  # as it is written in the report's JSON
    having = (
        select(InspectionRow.id)
        .where(InspectionRow.id.in_(select(newest)), InspectionRow.report.icontains(written, autoescape=True))
        .order_by(InspectionRow.created_at.desc())
        .limit(_MOST)
    )
    with reading.registry.session() as session:
        identifiers = session.scalars(having).all()
    count = 0
    for inspection in identifiers:
        report = reading.report(inspection)
        for place in _within(inspection, report or {}, query.lower()):
            yield place
            count += 1
            if count >= _MOST:
                return


def _within(inspection: str, report: Mapping[str, Any], low: str) -> Iterator[Place]:
    for each in report.get("transcripts", ()):
        if low in str(each["name"]).lower() or each["id"].startswith(low):
            yield Place(inspection, "run", each["name"] or each["id"], f"/inspections/{inspection}#runs")
            for chip in report["chips"]:
                for row in chip["snapshots"]:
                    if row["transcript"] == each["id"]:
                        text = f"entry {row['index']} of {chip['name'] or chip['ueid'][:8]}: {row['status']}"
                        yield Place(inspection, "snapshot", text, snapshot_path(inspection, chip["ueid"], row["index"]))
        elif any(low in digest for digest in each["tapes"]):
            yield Place(inspection, "program of the run", each["name"] or each["id"], f"/inspections/{inspection}#runs")
    for one in group(report.get("findings", ())):
        if any(low in json.dumps(case, ensure_ascii=False).lower() for case in one.cases):
            yield Place(inspection, f"finding {one.id}", one.message, f"/inspections/{inspection}#findings")


def snapshot_path(inspection: str, ueid: str, index: int) -> str:
    """Returns the path of a snapshot's page."""
    return f"/inspections/{inspection}/snapshots/{ueid}/{index}"
