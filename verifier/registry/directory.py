"""The registry's directory: the chips, what was witnessed of their logs, and the inspections."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from verifier.database import Database
from verifier.registry.tables import ChipRow, InspectionRow, SampledRow
from weighbridge.errors import UsageError

_ADDRESS = re.compile(r"[A-Za-z0-9._\-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:]{2,39}\]:[0-9]{1,5}")
_MAX_TEXT = 200
FINISHED = ("done", "failed")
"""Stages in which an inspection does nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """One registered chip.

    Attributes:
        ueid: The chip's identity (EAT UEID), 17 to 33 bytes.
        address: `host:port` of the chip's ChipService.
        prover_address: `host:port` of the ProverService that answers for it; empty if nobody declared one.
        owner: Who answers for the chip.
        site: Where it stands.
        chip_type: Its model, in words.
        registered_at: UTC time of the first registration, RFC 3339.
        witnessed_size: Entries of the log at the last inspection that could verify it.
        witnessed_last: Digest of the newest of those entries (32 bytes; empty before the first).
    """

    ueid: bytes
    address: str
    prover_address: str = ""
    owner: str = ""
    site: str = ""
    chip_type: str = ""
    registered_at: str = ""
    witnessed_size: int = 0
    witnessed_last: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectionRecord:
    """One inspection as the registry knows it.

    Attributes:
        id: Hex identifier.
        created_at: UTC time of the start, RFC 3339.
        seed: The sampling seed.
        plan: The plan as JSON-compatible data.
        stage: What it is doing; `done` or `failed` at the end.
        report: The finished report, or None.
    """

    id: str
    created_at: str
    seed: bytes
    plan: dict[str, Any]
    stage: str
    report: dict[str, Any] | None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Registry:
    """The registry in the Verifier's database; safe to use from several threads.

    Attributes:
        database: Where it is kept.
        session: Makes sessions on it, for modules with tables of their own.
    """

    def __init__(self, where: str | Path) -> None:
        """Opens the registry, creating it if there is none.

        Args:
            where: An SQLite file or a database's URL, as `verifier.database.database_url` takes them.

        Raises:
            UsageError: It is not a registry or cannot be opened.
        """
        self.database = Database(where)
        self.session: sessionmaker[Session] = self.database.session
        self.create_tables()

    def create_tables(self) -> None:
        """Creates the tables that are missing."""
        self.database.create_tables()

    def close(self) -> None:
        """Closes all connections."""
        self.database.close()

    def register(self, chip: Chip) -> None:
        """Adds a chip, or changes the addresses and descriptions of a known one; what was witnessed of it stays.

        Raises:
            UsageError: The UEID has not 17 to 33 bytes, an address is not `host:port`, or a text is too long.
        """
        if not 17 <= len(chip.ueid) <= 33:
            raise UsageError(f"a UEID has 17 to 33 bytes, not {len(chip.ueid)}; pass the chip's own")
        if not _ADDRESS.fullmatch(chip.address):
            raise UsageError("the chip's address is not of the form host:port")
        if chip.prover_address and not _ADDRESS.fullmatch(chip.prover_address):
            raise UsageError("the Prover's address is not of the form host:port; leave it empty if there is none")
        texts = {"owner": chip.owner, "site": chip.site, "chip_type": chip.chip_type}
        for name, text in texts.items():
            if len(text) > _MAX_TEXT or not text.isprintable():
                raise UsageError(f"{name} must be at most {_MAX_TEXT} printable characters on one line")
        with self.session.begin() as session:
            row = session.get(ChipRow, chip.ueid)
            if row is None:
                row = ChipRow(ueid=chip.ueid, registered_at=_now())
                session.add(row)
            row.address, row.prover_address = chip.address, chip.prover_address
            row.owner, row.site, row.chip_type = chip.owner, chip.site, chip.chip_type

    def chips(self) -> list[Chip]:
        """Returns all chips, sorted by UEID."""
        with self.session() as session:
            return [_chip(row) for row in session.scalars(select(ChipRow).order_by(ChipRow.ueid))]

    def chip(self, ueid: bytes) -> Chip:
        """Returns one chip.

        Raises:
            UsageError: No such chip is registered.
        """
        with self.session() as session:
            row = session.get(ChipRow, ueid)
            if row is None:
                raise UsageError(f"chip {ueid.hex()} is not registered; register it first")
            return _chip(row)

    def witness(self, ueid: bytes, *, size: int, last: bytes) -> None:
        """Remembers that the chip's log had `size` entries, the newest with digest `last`; never goes backwards."""
        with self.session.begin() as session:
            session.execute(
                update(ChipRow)
                .where(ChipRow.ueid == ueid, ChipRow.witnessed_size < size)
                .values(witnessed_size=size, witnessed_last=last)
            )

    def start_inspection(self, inspection: str, *, seed: bytes, plan: Mapping[str, Any], chips: list[bytes]) -> None:
        """Records an inspection before it does anything, with the chips drawn in order.

        Raises:
            UsageError: The identifier is taken, or a chip is not registered.
        """
        try:
            with self.session.begin() as session:
                text = json.dumps(dict(plan), sort_keys=True)
                session.add(
                    InspectionRow(id=inspection, created_at=_now(), seed=seed, plan=text, stage="starting", report=None)
                )
                session.flush()
                session.add_all(SampledRow(inspection=inspection, place=n, ueid=ueid) for n, ueid in enumerate(chips))
        except IntegrityError:
            raise UsageError(f"inspection {inspection} exists already, or samples a chip nobody registered") from None

    def set_stage(self, inspection: str, stage: str, report: Mapping[str, Any] | None = None) -> None:
        """Records how far an inspection is, and its report when there is one."""
        values: dict[str, Any] = {"stage": stage}
        if report is not None:
            values["report"] = json.dumps(dict(report), sort_keys=True)
        with self.session.begin() as session:
            session.execute(update(InspectionRow).where(InspectionRow.id == inspection).values(**values))

    def inspection(self, inspection: str) -> InspectionRecord:
        """Returns one inspection.

        Raises:
            UsageError: There is no such inspection.
        """
        with self.session() as session:
            row = session.get(InspectionRow, inspection)
            if row is None:
                raise UsageError(f"there is no inspection {inspection!r}; start one first")
            return InspectionRecord(
                id=row.id,
                created_at=row.created_at,
                seed=row.seed,
                plan=json.loads(row.plan),
                stage=row.stage,
                report=None if row.report is None else json.loads(row.report),
            )

    def sampled(self, inspection: str) -> list[bytes]:
        """Returns the UEIDs that an inspection drew, in order."""
        with self.session() as session:
            query = select(SampledRow.ueid).where(SampledRow.inspection == inspection).order_by(SampledRow.place)
            return list(session.scalars(query))

    def fail_unfinished(self) -> int:
        """Marks inspections that a former process left unfinished as `failed`; returns how many there were."""
        with self.session.begin() as session:
            rows = list(session.scalars(select(InspectionRow).where(InspectionRow.stage.not_in(FINISHED))))
            for row in rows:
                row.stage = "failed"
            return len(rows)


def _chip(row: ChipRow) -> Chip:
    return Chip(
        ueid=row.ueid,
        address=row.address,
        prover_address=row.prover_address,
        owner=row.owner,
        site=row.site,
        chip_type=row.chip_type,
        registered_at=row.registered_at,
        witnessed_size=row.witnessed_size,
        witnessed_last=row.witnessed_last,
    )
