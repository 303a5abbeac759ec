"""The registry's log as any reader can check it: every signature, and each chip's custody worked out anew.

This needs nothing of the registry but its log. So a reader with a copy can tell whether the registry took in only what
it may take in, and whether what it says of chips follows from what was said to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sqlalchemy import select

from verifier.registry.directory import Registry
from verifier.registry.entries import Addressed, Listing, Opened, Party, decode
from verifier.registry.statements import check_statement, event_of, listed_custody
from verifier.registry.transitions import Contradiction, Custody, Event, fold
from verifier.store.tables import ContradictionRow
from weighbridge.attest.custody_statements import CustodyError, Signed
from weighbridge.core.errors import Finding, WeighbridgeError


@dataclass(slots=True)
class Replayed:
    """What follows from a log.

    Attributes:
        name: The registry's name; empty if the log does not say.
        key: Its Ed25519 key, 32 bytes; empty likewise.
        parties: As they are declared at the end, by name.
        listed: What the registry listed chips as, by UEID.
        events: What parties said of chips, by UEID, in the log's order.
        findings: Entries that a registry must not take in.
    """

    name: str = ""
    key: bytes = b""
    parties: dict[str, Party] = field(default_factory=dict)
    listed: dict[bytes, Custody] = field(default_factory=dict)
    events: dict[bytes, list[Event]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _seen: set[bytes] = field(default_factory=set)

    def chips(self) -> Iterator[tuple[bytes, Custody, tuple[Contradiction, ...]]]:
        """Yields (UEID, custody, contradictions) of every chip, sorted by UEID."""
        for ueid in sorted(self.listed.keys() | self.events.keys()):
            custody, wrong = fold(self.listed.get(ueid), self.events.get(ueid, ()))
            assert custody is not None  # it is listed, or there is an event
            yield ueid, custody, wrong

    def take(self, index: int, entry: bytes) -> None:
        """Reads the next entry; one that the registry must not have taken in is a finding and changes nothing."""
        try:
            at_s, content = decode(entry)
            if isinstance(content, Signed):
                self._statement(index, at_s, content)
            elif isinstance(content, Party):
                self.parties[content.name] = content
            elif isinstance(content, Opened):
                if self.name:
                    raise CustodyError("The registry was opened before; it has one key.")
                self.name, self.key = content.name, content.key
            else:
                self._list(at_s, content)
        except WeighbridgeError as error:
            self.findings.append(
                Finding(
                    id="registry.log.entry",
                    message="the registry logged what it must not take in; ask it for the reason",
                    expected="an entry of a good form, new, and signed by whom it concerns",
                    found=str(error),
                    subject=f"entry {index} of the registry's log",
                    evidence={"place": index, "reason": error.reason},
                )
            )

    def _statement(self, index: int, at_s: int, signed: Signed) -> None:
        if signed.digest in self._seen:
            raise CustodyError("The same statement was logged before.", code="registry.replayed")
        check_statement(signed, self.name, at_s, self.parties.get)
        self._seen.add(signed.digest)
        statement = signed.statement
        event = event_of(index, statement, inspector="inspector" in self.parties[statement.by].roles)
        for ueid in statement.chips:
            self.events.setdefault(ueid, []).append(event)

    def _list(self, at_s: int, rows: tuple[Listing, ...] | tuple[Addressed, ...]) -> None:
        for row in rows:
            if isinstance(row, Listing):
                if row.ueid in self.events:
                    raise CustodyError("The registry listed a chip of which parties had spoken.")
                self.listed[row.ueid] = listed_custody(at_s, row)
            elif row.ueid not in self.events and row.ueid not in self.listed:
                raise CustodyError("The registry corrected the address of a chip that it does not know.")


def replay_log(entries: Iterable[bytes]) -> Replayed:
    """Reads a whole log; hundreds of bytes of memory for each chip."""
    replayed = Replayed()
    for index, entry in enumerate(entries):
        replayed.take(index, entry)
    return replayed


def compare(registry: Registry, replayed: Replayed) -> list[Finding]:
    """Compares the registry's tables with what follows from its log: someone may have written to the tables.

    Args:
        registry: The registry.
        replayed: Its log as it is now.

    Returns:
        A finding for each chip of which the tables say something else.
    """
    recorded: dict[bytes, set[tuple[int, str, str, str]]] = {}
    with registry.session() as session:
        for row in session.scalars(select(ContradictionRow)):
            recorded.setdefault(row.ueid, set()).add((row.place, row.reason, row.expected, row.found))
    due = {ueid: (custody, wrong) for ueid, custody, wrong in replayed.chips()}
    findings = []
    for chip in registry.everything():
        custody, wrong = due.pop(chip.ueid, (None, ()))
        says = (
            None if custody is None else (custody.state, custody.owner, custody.site, custody.chip_type, custody.maker)
        )
        has = (chip.state, chip.owner, chip.site, chip.chip_type, chip.maker)
        kept = recorded.get(chip.ueid, set())
        if says != has or kept != {(each.index, each.reason, each.expected, each.found) for each in wrong}:
            findings.append(_differs(chip.ueid, str(says), str(has)))
    findings += [_differs(ueid, str(custody), "no such chip") for ueid, (custody, _) in due.items()]
    return findings


def _differs(ueid: bytes, expected: str, found: str) -> Finding:
    return Finding(
        id="registry.log.differs",
        message="the registry's tables say something else of a chip than follows from its log; do not use them",
        expected=expected,
        found=found,
        subject=f"chip {ueid.hex()}",
    )
