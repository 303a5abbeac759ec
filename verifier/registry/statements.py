"""Taking in what parties say: who may say what, and what it does to the chips that it is about.

A statement is logged if it is authentic: signed by declared parties whose roles allow it, made to this registry, not
logged before, and not from the future. Whether it can be true is another matter. What contradicts a chip's history is
logged too, because it is evidence, and kept as a contradiction, which the audit reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session, sessionmaker

from verifier.registry.entries import Listing, Party, check_party, decode, party_entry, statement_entry
from verifier.registry.listings import packed, rfc3339, unpacked
from verifier.registry.log import Log
from verifier.registry.transitions import Contradiction, Custody, Event, fold, roles_for, step
from verifier.store.tables import ChipRow, ContradictionRow, PartyRow
from weighbridge.attest.custody_statements import CustodyError, Signed, Statement, decode_key, read, verify
from weighbridge.core.errors import UsageError

CLOCK_SLACK_S = 300
"""How far a party's clock may be ahead of the registry's."""
_CHUNK = 500

Lookup = Callable[[str], Party | None]


def check_statement(signed: Signed, registry: str, at_s: int, lookup: Lookup) -> None:
    """Checks that a statement is authentic: signed by parties who may make it.

    Args:
        signed: As read.
        registry: Name of the registry that takes it in.
        at_s: When it does, in seconds since 1970.
        lookup: Returns a party as it is declared then, None if it never was.

    Raises:
        CustodyError: It is made to another registry (`registry.foreign`), from the future (`registry.time`), by a party
            that is not declared (`registry.party`) or whose role does not allow it (`registry.role`), forged
            (`registry.signature`) or lacks the other side's signature (`registry.handover.onesided`).
    """
    statement = signed.statement
    if statement.registry != registry:
        raise CustodyError(
            f"The statement is made to {statement.registry}, and this is {registry}; have it made to this registry.",
            code="registry.foreign",
        )
    if statement.time_s > at_s + CLOCK_SLACK_S:
        raise CustodyError("The statement is from the future; correct its signer's clock.", code="registry.time")
    roles_by, roles_to = roles_for(statement.kind)
    by = _party(lookup, statement.by, roles_by, statement)
    to = _party(lookup, statement.to, roles_to, statement) if statement.to else None
    verify(signed, decode_key(by.key), None if to is None else decode_key(to.key))


def _party(lookup: Lookup, name: str, roles: Sequence[str], statement: Statement) -> Party:
    party = lookup(name)
    if party is None:
        raise CustodyError(f"The party {name} is not declared; declare it first.", code="registry.party")
    if not set(roles) & set(party.roles):
        raise CustodyError(
            f"{name} is {' and '.join(party.roles) or 'withdrawn'}; of chips that were {statement.kind} only "
            f"{' or '.join(roles)} can say that.",
            code="registry.role",
        )
    return party


def event_of(index: int, statement: Statement, *, inspector: bool) -> Event:
    """Returns a statement as it concerns each of its chips."""
    return Event(
        index=index,
        kind=statement.kind,
        by=statement.by,
        to=statement.to,
        time_s=statement.time_s,
        site=statement.site,
        chip_type=statement.chip_type,
        inspector=inspector,
    )


def listed_custody(at_s: int, listing: Listing) -> Custody:
    """Returns the custody that a listing says."""
    return Custody(
        state=listing.state, owner=listing.owner, site=listing.site, chip_type=listing.chip_type, since_s=at_s
    )


class Statements:
    """Parties and their statements, in the Verifier's database."""

    def __init__(self, session: sessionmaker[Session], log: Log, now: Callable[[], int]) -> None:
        """Takes the registry's parts.

        Args:
            session: Makes sessions.
            log: The registry's log.
            now: Seconds since 1970.
        """
        self._session, self._log, self._now = session, log, now

    def declare(self, party: Party) -> None:
        """Declares a party, or changes its roles and key for statements from now on.

        Raises:
            CustodyError: Name, roles or key are none that a party can have.
        """
        check_party(party)
        with self._session.begin() as session:
            size = self._log.lock(session)
            if _declared(session, party.name) == party:
                return
            self._log.append(session, size, [party_entry(self._now(), party)])
            session.add(PartyRow(name=party.name, place=size, roles=" ".join(party.roles), key=party.key))

    def party(self, name: str) -> Party:
        """Returns a party as it is declared now.

        Raises:
            UsageError: It is not declared.
        """
        with self._session() as session:
            found = _declared(session, name)
        if found is None:
            raise UsageError(f"there is no party {name!r}; declare it first")
        return found

    def parties(self) -> list[Party]:
        """Returns all parties as they are declared now, sorted by name."""
        with self._session() as session:
            rows = session.scalars(select(PartyRow).order_by(PartyRow.name, PartyRow.place)).all()
        return list({row.name: _party_of(row) for row in rows}.values())

    def submit(self, registry: str, data: bytes) -> int:
        """Logs a statement and applies it, and returns its index in the log.

        Args:
            registry: This registry's name.
            data: The statement, countersigned if its kind asks for it.

        Raises:
            CustodyError: It is malformed or not authentic; see `check_statement`. `registry.replayed` if it is logged
                already. Nothing was changed.
        """
        signed = read(data)
        with self._session.begin() as session:
            index = self._log.lock(session)
            known = self._log.index_of(session, signed.digest)
            if known is not None:
                raise CustodyError(
                    f"The statement is entry {known} of the log already; there is nothing to do.",
                    code="registry.replayed",
                    index=known,
                )
            now = self._now()
            check_statement(signed, registry, now, lambda name: _declared(session, name))
            self._log.append(session, index, [statement_entry(now, data)], signed.digest)
            self._apply(session, index, signed.statement)
        return index

    def _apply(self, session: Session, index: int, statement: Statement) -> None:
        by = _declared(session, statement.by)
        event = event_of(index, statement, inspector=by is not None and "inspector" in by.roles)
        for first in range(0, len(statement.chips), _CHUNK):
            chips = statement.chips[first : first + _CHUNK]
            for lot, ueids in _lots(session, chips).items():
                custody, history = (None, b"") if lot is None else (_custody(lot), lot.history)
                if custody is not None and event.time_s < custody.latest_s:
                    for ueid in ueids:
                        self._replay(session, ueid, history, event)
                    continue
                after, wrong = step(custody, event)
                if custody is None:
                    _insert(session, ueids, self._now())
                _update(session, ueids, after, history + packed(index))
                _contradict(session, ueids, wrong)

    def _replay(self, session: Session, ueid: bytes, history: bytes, event: Event) -> None:
        """Works out a chip's custody anew, because an event came late."""
        entries = self._log.pick(session, unpacked(history))
        events, listed = [event], None
        for index, entry in sorted(entries.items()):
            at_s, content = decode(entry)
            if isinstance(content, Signed):
                by = _declared(session, content.statement.by, index)
                inspector = by is not None and "inspector" in by.roles
                events.append(event_of(index, content.statement, inspector=inspector))
            elif isinstance(content, tuple):
                for row in content:
                    if isinstance(row, Listing) and row.ueid == ueid:
                        listed = listed_custody(at_s, row)
        custody, wrong = fold(listed, events)
        assert custody is not None  # there is an event
        session.execute(delete(ContradictionRow).where(ContradictionRow.ueid == ueid))
        _update(session, [ueid], custody, history + packed(event.index))
        _contradict(session, [ueid], wrong)


def _declared(session: Session, name: str, before: int | None = None) -> Party | None:
    """Returns a party as it was declared before an entry of the log; now, if none is given."""
    query = select(PartyRow).where(PartyRow.name == name)
    if before is not None:
        query = query.where(PartyRow.place < before)
    row = session.scalar(query.order_by(PartyRow.place.desc()).limit(1))
    return None if row is None else _party_of(row)


def _party_of(row: PartyRow) -> Party:
    return Party(name=row.name, roles=tuple(row.roles.split()), key=row.key)


class _Lot(NamedTuple):
    """What is known of a chip, and the same of the chips that went its way with it."""

    state: str
    owner: str
    site: str
    chip_type: str
    maker: str
    since_s: int
    latest_s: int
    history: bytes


def _lots(session: Session, chips: Sequence[bytes]) -> dict[_Lot | None, list[bytes]]:
    """Returns the chips in lots of which the same is known; under None those of which nothing is."""
    columns = (getattr(ChipRow, name) for name in _Lot._fields)
    rows = session.execute(select(ChipRow.ueid, *columns).where(ChipRow.ueid.in_(chips)))
    known = {row[0]: _Lot(*row[1:]) for row in rows}
    lots: dict[_Lot | None, list[bytes]] = {}
    for ueid in chips:
        lots.setdefault(known.get(ueid), []).append(ueid)
    return lots


def _custody(lot: _Lot) -> Custody:
    return Custody(**{name: value for name, value in lot._asdict().items() if name != "history"})


def _insert(session: Session, ueids: Sequence[bytes], now: int) -> None:
    row = {
        "address": "", "prover_address": "", "owner": "", "site": "", "chip_type": "", "registered_at": rfc3339(now),
        "witnessed_size": 0, "witnessed_last": b"",
    }  # fmt: skip
    session.execute(insert(ChipRow), [{"ueid": ueid, **row} for ueid in ueids])


def _update(session: Session, ueids: Sequence[bytes], custody: Custody, history: bytes) -> None:
    session.execute(
        update(ChipRow)
        .where(ChipRow.ueid.in_(ueids))
        .values(
            state=custody.state,
            owner=custody.owner,
            site=custody.site,
            chip_type=custody.chip_type,
            maker=custody.maker,
            since_s=custody.since_s,
            latest_s=custody.latest_s,
            history=history,
        )
        .execution_options(synchronize_session=False)
    )


def _contradict(session: Session, ueids: Sequence[bytes], wrong: Sequence[Contradiction]) -> None:
    rows = [
        {"ueid": ueid, "place": each.index, "reason": each.reason, "expected": each.expected, "found": each.found}
        for ueid in ueids
        for each in wrong
    ]
    if rows:
        session.execute(insert(ContradictionRow), rows)
