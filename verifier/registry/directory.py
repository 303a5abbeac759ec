"""The registry's directory: the chips, what was witnessed of their logs, and the inspections."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from verifier.registry.entries import Listing, Opened, opened_entry
from verifier.registry.listings import Lister, check, rfc3339, unpacked
from verifier.registry.log import Log
from verifier.registry.statements import Statements
from verifier.registry.transitions import DRAWN, Contradiction
from verifier.store import revision
from verifier.store.database import Database
from verifier.store.tables import ChipRow, ContradictionRow, InspectionRow, LogHeadRow, SampledRow
from weighbridge.attest.custody_statements import UEID_SIZES
from weighbridge.attest.tlog import NoteSigner
from weighbridge.core.errors import NotFoundError, UsageError

_CHUNK = 500
_UEID_MOST = UEID_SIZES[1]
_DIGITS = re.compile(rf"[0-9a-f]{{1,{2 * _UEID_MOST}}}")
FINISHED = ("done", "failed", "sealed")
"""Stages in which an inspection does nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """One registered chip.

    Attributes:
        ueid: The chip's identity (EAT UEID), 17 to 33 bytes.
        address: `host:port` of the chip's ChipService.
        prover_address: `host:port` of the ProverService that answers for it; empty if none was declared.
        owner: Who answers for the chip.
        site: Where it stands.
        chip_type: Its model, in words.
        registered_at: UTC time of the first registration, RFC 3339.
        witnessed_size: Entries of the log at the last inspection that could verify it.
        witnessed_last: Digest of the newest of those entries (32 bytes; empty before the first).
        state: What happened to it last: see `verifier.registry.transitions.STATES`.
        maker: The party that made it; empty if the registry was not told.
        name: What people call it; empty if it has no name. Names need not be unique.
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
    state: str = "installed"
    maker: str = ""
    name: str = ""


_COLUMNS = [getattr(ChipRow, field.name) for field in fields(Chip)]
_CHIP = select(*_COLUMNS).where(ChipRow.ueid == bindparam("chip"))


class Member(NamedTuple):
    """What a draw needs to know of a chip; see `Chip`."""

    ueid: bytes
    owner: str
    site: str
    chip_type: str


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


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectionLine:
    """One inspection in a list.

    Attributes:
        id: Hex identifier.
        created_at: UTC time of the start, RFC 3339.
        stage: What it is doing; `done` or `failed` at the end.
        samples: How many chips its plan draws.
        summary: A few figures of its report; None if there is no report, or one from before there were summaries.
    """

    id: str
    created_at: str
    stage: str
    samples: int
    summary: dict[str, Any] | None


class Registry:
    """The registry in the Verifier's database; safe to use from several threads.

    Attributes:
        database: Where it is kept.
        session: Makes sessions on it, for modules with tables of their own.
        log: The registry's log.
        statements: Parties, and what they say.
    """

    def __init__(
        self,
        where: str | Path,
        signer: NoteSigner | None = None,
        clock: Callable[[], float] = time.time,
        *,
        read_only: bool = False,
    ) -> None:
        """Opens the registry, creating it if there is none.

        Args:
            where: An SQLite file or a database's URL, as `verifier.store.database.database_url` takes them.
            signer: The registry's key, for parties' statements and for checkpoints; see `verifier.registry.load_key`.
            clock: Seconds since 1970.
            read_only: Whether to open one that exists, of this version, so that the database refuses every change.

        Raises:
            UsageError: It is not a registry or cannot be opened, or is another key's.
        """
        self.database = Database(where, read_only=read_only)
        self.session: sessionmaker[Session] = self.database.session
        self._signer, self._clock = signer, clock
        self.log = Log(self.database)
        self.statements = Statements(self.session, self.log, self.now)
        if read_only:
            revision.require_newest(self.database)
            return
        revision.prepare(self.database)
        self._begin()

    def now(self) -> int:
        """Seconds since 1970 on the registry's clock."""
        return int(self._clock())

    def _begin(self) -> None:
        """Puts into a new log what it begins with: chips of a registry that had none yet, and the registry's key."""
        try:
            with self.session.begin() as session:
                if self.log.begin(session):
                    self._relist(session)
        except IntegrityError:
            pass  # another process was faster
        if self._signer is None:
            return
        opened = Opened(name=self._signer.key.name, key=self._signer.key.public)
        with self.session.begin() as session:
            size = self.log.lock(session)
            known = session.scalar(select(LogHeadRow.name))
            if not known:
                session.execute(update(LogHeadRow).values(name=opened.name))
                self.log.append(session, size, [opened_entry(self.now(), opened)])
            elif known != opened.name:
                raise UsageError(f"this is {known}, and the key is that of {opened.name}; name the right key file")

    def _relist(self, session: Session) -> None:
        lister = Lister(session, self.log, 0, self.now())
        for chips in session.scalars(select(ChipRow).order_by(ChipRow.ueid)).partitions(_CHUNK):
            lister.relist([_listing(row) for row in chips])

    def close(self) -> None:
        """Closes all connections."""
        self.database.close()

    @property
    def name(self) -> str:
        """The registry's name, which statements made to it hold.

        Raises:
            UsageError: It was never opened with a key, and so has none.
        """
        with self.session() as session:
            name: str | None = session.scalar(select(LogHeadRow.name))
        if not name:
            raise UsageError("the registry has no key yet; open it with one")
        return name

    @property
    def tree_size(self) -> int:
        """Number of entries of the registry's log."""
        return self.log.size

    def root(self, size: int | None = None) -> bytes:
        """Returns the root (32 bytes) over all that the registry knows of chips: that of its log's tree.

        Args:
            size: Take the first so many entries only.

        Raises:
            UsageError: There are fewer.
        """
        return self.log.root(size)

    def checkpoint(self) -> bytes:
        """Returns the checkpoint of the registry's log as it is now, signed by the registry.

        Raises:
            UsageError: The registry was opened without its key.
        """
        if self._signer is None:
            raise UsageError("only the registry's key can sign a checkpoint; open the registry with it")
        return self.log.checkpoint(self._signer)

    def submit(self, data: bytes) -> int:
        """Logs a party's statement and applies it; returns its index in the log.

        Raises:
            CustodyError: It is not authentic, or logged already; see `Statements.submit`.
        """
        return self.statements.submit(self.name, data)

    def register(self, chip: Chip) -> None:
        """Adds a chip, or changes the addresses and descriptions of a known one; what was witnessed of it stays.

        Raises:
            UsageError: The UEID has not 17 to 33 bytes, an address is not `host:port`, a text is too long, or parties
                say something else of the chip than this does.
        """
        if not chip.address:
            raise UsageError("the chip's address is not of the form host:port")
        check(_listing(chip))
        with self.session.begin() as session:
            size = self.log.lock(session)
            known = session.get(ChipRow, chip.ueid)
            if known is not None and known.latest_s:
                # Addresses are the registry's own affair; what is left out is what parties say.
                chip = replace(
                    chip,
                    owner=chip.owner or known.owner,
                    site=chip.site or known.site,
                    chip_type=chip.chip_type or known.chip_type,
                    state=known.state,
                )
            session.expunge_all()
            for _, message in Lister(session, self.log, size, self.now()).add([_listing(chip)]):
                raise UsageError(message)

    def chips(self) -> list[Chip]:
        """Returns the chips that can be drawn for inspection, sorted by UEID."""
        return [chip for chip in self.everything() if chip.state in DRAWN]

    def population(self) -> Iterator[Member]:
        """Yields the chips that can be drawn for inspection, sorted by UEID; fit for millions."""
        query = select(ChipRow.ueid, ChipRow.owner, ChipRow.site, ChipRow.chip_type)
        with self.session() as session:
            for row in session.execute(
                query.where(ChipRow.state.in_(DRAWN)).order_by(ChipRow.ueid), execution_options={"yield_per": _CHUNK}
            ):
                yield Member(*row)

    def population_size(self) -> int:
        """Returns how many chips can be drawn for inspection."""
        with self.session() as session:
            return session.scalar(select(func.count()).where(ChipRow.state.in_(DRAWN))) or 0

    def states(self) -> dict[str, int]:
        """Returns how many chips there are in each state that occurs."""
        with self.session() as session:
            rows = session.execute(select(ChipRow.state, func.count()).group_by(ChipRow.state).order_by(ChipRow.state))
            return {state: count for state, count in rows}

    def history(self, ueid: bytes) -> list[int]:
        """Returns the indices of the entries of the registry's log that list a chip or speak of it.

        Raises:
            NotFoundError: No such chip is registered.
        """
        with self.session() as session:
            history = session.scalar(select(ChipRow.history).where(ChipRow.ueid == ueid))
        if history is None:
            raise _no_chip(ueid)
        return unpacked(history)

    def contradictions(self, ueid: bytes) -> tuple[Contradiction, ...]:
        """Returns what parties said of a chip that cannot be, in the order of the log."""
        with self.session() as session:
            query = select(ContradictionRow).where(ContradictionRow.ueid == ueid).order_by(ContradictionRow.place)
            return tuple(
                Contradiction(index=row.place, reason=row.reason, expected=row.expected, found=row.found)
                for row in session.scalars(query)
            )

    def everything(self) -> Iterator[Chip]:
        """Yields all chips, also those that are lost or not yet installed, sorted by UEID; fit for millions."""
        with self.session() as session:
            query = select(*_COLUMNS).order_by(ChipRow.ueid)
            for row in session.execute(query, execution_options={"yield_per": _CHUNK}):
                yield Chip(**row._mapping)

    def chip(self, ueid: bytes) -> Chip:
        """Returns one chip.

        Raises:
            NotFoundError: No such chip is registered.
        """
        with self.session() as session:
            row = session.execute(_CHIP, {"chip": ueid}).one_or_none()
        if row is None:
            raise _no_chip(ueid)
        return Chip(**row._mapping)

    def find(self, given: str, limit: int = 20) -> list[Chip]:
        """Returns chips whose name is `given`, or else those whose UEID begins with it, sorted by UEID.

        Args:
            given: A name, or the first hexadecimal digits of a UEID.
            limit: At most so many.
        """
        query = select(*_COLUMNS).order_by(ChipRow.ueid).limit(limit)
        with self.session() as session:
            rows = session.execute(query.where(ChipRow.name == given)).all() if given else []
            digits = given.lower()
            if not rows and _DIGITS.fullmatch(digits):
                odd = len(digits) % 2
                first, last = (
                    bytes.fromhex(digits + "0" * odd),
                    bytes.fromhex(digits + "f" * odd) + b"\xff" * _UEID_MOST,
                )
                rows = session.execute(query.where(ChipRow.ueid.between(first, last))).all()
        return [Chip(**row._mapping) for row in rows]

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
                    InspectionRow(
                        id=inspection,
                        created_at=rfc3339(self.now()),
                        seed=seed,
                        plan=text,
                        stage="starting",
                        report=None,
                    )
                )
                session.flush()
                session.add_all(SampledRow(inspection=inspection, place=n, ueid=ueid) for n, ueid in enumerate(chips))
        except IntegrityError:
            raise UsageError(f"inspection {inspection} exists already, or samples an unregistered chip") from None

    def set_sample(self, inspection: str, *, seed: bytes, chips: Sequence[bytes]) -> None:
        """Records what an inspection drew, if it was not known at its start; twice the same is the same as once."""
        with self.session.begin() as session:
            session.execute(update(InspectionRow).where(InspectionRow.id == inspection).values(seed=seed))
            session.execute(delete(SampledRow).where(SampledRow.inspection == inspection))
            session.add_all(SampledRow(inspection=inspection, place=n, ueid=ueid) for n, ueid in enumerate(chips))

    def set_stage(
        self,
        inspection: str,
        stage: str,
        report: Mapping[str, Any] | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        """Records how far an inspection is, and its report when there is one, with what lists say of it."""
        values: dict[str, Any] = {"stage": stage}
        if report is not None:
            values["report"] = json.dumps(dict(report), sort_keys=True)
        if summary is not None:
            values["summary"] = json.dumps(dict(summary), sort_keys=True)
        with self.session.begin() as session:
            session.execute(update(InspectionRow).where(InspectionRow.id == inspection).values(**values))

    def inspection(self, inspection: str) -> InspectionRecord:
        """Returns one inspection.

        Raises:
            NotFoundError: There is no such inspection.
        """
        with self.session() as session:
            row = session.get(InspectionRow, inspection)
            if row is None:
                raise NotFoundError(
                    f"there is no inspection {inspection!r}; start one first", resource="inspection", name=inspection
                )
            return InspectionRecord(
                id=row.id,
                created_at=row.created_at,
                seed=row.seed,
                plan=json.loads(row.plan),
                stage=row.stage,
                report=None if row.report is None else json.loads(row.report),
            )

    def inspections(self, *, prefix: str = "", limit: int = 100) -> list[InspectionLine]:
        """Returns inspections, the newest first.

        Args:
            prefix: Only those whose identifiers begin with these hexadecimal digits.
            limit: At most so many.
        """
        row = InspectionRow
        query = select(row.id, row.created_at, row.stage, row.plan, row.summary)
        if prefix:
            query = query.where(row.id.startswith(prefix, autoescape=True))
        with self.session() as session:
            found = session.execute(query.order_by(row.created_at.desc(), row.id).limit(limit)).all()
        return [
            InspectionLine(
                id=id_,
                created_at=created_at,
                stage=stage,
                samples=int(json.loads(plan).get("samples", 0)),
                summary=None if summary is None else json.loads(summary),
            )
            for id_, created_at, stage, plan, summary in found
        ]

    def sampled(self, inspection: str) -> list[bytes]:
        """Returns the UEIDs that an inspection drew, in order."""
        with self.session() as session:
            query = select(SampledRow.ueid).where(SampledRow.inspection == inspection).order_by(SampledRow.place)
            return list(session.scalars(query))


def _no_chip(ueid: bytes) -> NotFoundError:
    name = ueid.hex()
    return NotFoundError(f"chip {name} is not registered; register it first", resource="chip", name=name)


def _listing(chip: Chip | ChipRow) -> Listing:
    return Listing(**{field.name: getattr(chip, field.name) for field in fields(Listing)})
