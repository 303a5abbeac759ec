"""Listing chips: what the registry itself says of a chip, for chips whose history it was not told.

The registry's word stands until a party makes a statement about the chip. From then on it may change nothing but the
addresses at which the chip and its Prover answer, and the chip's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from verifier.registry.entries import Addressed, Listing, addressed_entries, listed_entries
from verifier.registry.log import Log
from verifier.registry.transitions import STATES
from verifier.store.tables import ChipRow
from weighbridge.attest.custody_statements import MAX_TEXT, UEID_SIZES
from weighbridge.core.errors import UsageError

PLACE_BYTES = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"[A-Za-z0-9._\-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:]{2,39}\]:[0-9]{1,5}")


def packed(index: int) -> bytes:
    """Returns the index of a log entry as `ChipRow.history` has it."""
    return index.to_bytes(PLACE_BYTES)


def unpacked(history: bytes) -> list[int]:
    """Returns the indices in `ChipRow.history`."""
    return [int.from_bytes(history[at : at + PLACE_BYTES]) for at in range(0, len(history), PLACE_BYTES)]


def rfc3339(seconds: float) -> str:
    """Returns a time as the tables have it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check(chip: Listing) -> None:
    """Checks that a chip can be listed as this.

    Raises:
        UsageError: Its UEID, an address, a text or its state is none.
    """
    least, most = UEID_SIZES
    if not least <= len(chip.ueid) <= most:
        raise UsageError(f"a UEID has {least} to {most} bytes, not {len(chip.ueid)}; pass the chip's own")
    if chip.address and not _ADDRESS.fullmatch(chip.address):
        raise UsageError("the chip's address is not of the form host:port")
    if chip.prover_address and not _ADDRESS.fullmatch(chip.prover_address):
        raise UsageError("the Prover's address is not of the form host:port; leave it empty if there is none")
    for name in ("owner", "site", "chip_type"):
        text = getattr(chip, name)
        if len(text) > MAX_TEXT or not text.isprintable():
            raise UsageError(f"{name} must be at most {MAX_TEXT} printable characters on one line")
    if chip.name and not _NAME.fullmatch(chip.name):
        raise UsageError(
            f"{chip.name[:80]!r} cannot name a chip; use up to 63 letters, digits, dots, hyphens, underscores"
        )
    if chip.state not in STATES:
        raise UsageError(f"there is no state {chip.state!r}; use one of {', '.join(STATES)}")


@dataclass(slots=True)
class Lister:
    """Lists chips within one transaction, a few at a time.

    Attributes:
        session: The transaction, which holds the log's lock.
        log: The registry's log.
        size: Entries of the log so far.
        now: Seconds since 1970.
    """

    session: Session
    log: Log
    size: int
    now: int
    _first: int = field(init=False)
    _left: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._first = self.size

    def add(self, chips: Sequence[Listing]) -> list[tuple[int, str]]:
        """Lists chips.

        Args:
            chips: At most a few hundred, each with a good form (see `check`).

        Returns:
            (index in `chips`, what is wrong) of those that cannot be listed.
        """
        rows = self.session.execute(select(*_COLUMNS).where(ChipRow.ueid.in_([chip.ueid for chip in chips])))
        known = {row[0]: row for row in rows}
        wrong, here = list[tuple[int, str]](), set[bytes]()
        new, changed, addressed = list[Listing](), list[Listing](), list[Addressed]()
        for index, chip in enumerate(chips):
            row = known.get(chip.ueid)
            again = row is not None and max(unpacked(row.history), default=-1) >= self._first
            if again or chip.ueid in here or chip.ueid in self._left:
                wrong.append((index, f"chip {chip.ueid.hex()} occurs twice; name each chip once"))
                continue
            here.add(chip.ueid)
            if row is None:
                new.append(chip)
                continue
            same = tuple(row[:8]) == _values(chip)
            if row.latest_s == 0 and not same:
                changed.append(chip)
                continue
            self._left.add(chip.ueid)
            if same:
                continue
            if tuple(row[1:5]) != _values(chip)[1:5]:
                what = f"{row.state}, with {row.owner}, {row.site or 'at no site'}, {row.chip_type or 'of no type'}"
                wrong.append(
                    (index, f"statements say of chip {chip.ueid.hex()} that it is {what}; have parties say more")
                )
                continue
            addressed.append(
                Addressed(ueid=chip.ueid, address=chip.address, prover_address=chip.prover_address, name=chip.name)
            )
        self._list(new, known=False)
        self.relist(changed)
        self._address(addressed)
        return wrong

    def relist(self, chips: Sequence[Listing]) -> None:
        """Lists known chips anew, of which parties have said nothing."""
        self._list(chips, known=True)

    def _list(self, chips: Sequence[Listing], *, known: bool) -> None:
        for entry, part in listed_entries(self.now, chips):
            index, self.size = self.size, self.log.append(self.session, self.size, [entry])
            rows = [
                {
                    "ueid": chip.ueid,
                    "state": chip.state,
                    "owner": chip.owner,
                    "site": chip.site,
                    "chip_type": chip.chip_type,
                    "address": chip.address,
                    "prover_address": chip.prover_address,
                    "name": chip.name,
                    "since_s": self.now,
                    "history": packed(index),  # a new listing takes the place of one before
                }
                for chip in part
            ]
            if known:
                self.session.execute(update(ChipRow), rows)
            else:
                stamp = {"registered_at": rfc3339(self.now)}
                self.session.execute(insert(ChipRow), [row | stamp for row in rows])

    def _address(self, chips: list[Addressed]) -> None:
        for entry, part in addressed_entries(self.now, chips):
            self.size = self.log.append(self.session, self.size, [entry])
            rows = [
                {
                    "ueid": chip.ueid,
                    "address": chip.address,
                    "prover_address": chip.prover_address,
                    "name": chip.name,
                }
                for chip in part
            ]
            self.session.execute(update(ChipRow), rows)


_COLUMNS = (
    ChipRow.ueid, ChipRow.state, ChipRow.owner, ChipRow.site, ChipRow.chip_type, ChipRow.address,
    ChipRow.prover_address, ChipRow.name, ChipRow.latest_s, ChipRow.history,
)  # fmt: skip


def _values(chip: Listing) -> tuple[object, ...]:
    """Returns a chip's values in the order of `_COLUMNS`."""
    return (
        chip.ueid, chip.state, chip.owner, chip.site, chip.chip_type, chip.address, chip.prover_address, chip.name,
    )  # fmt: skip
