"""What events do to a chip's custody: who answers for it, where it is, and what is wrong with its history.

Three rules. Responsibility moves only with its holder's signature: a statement by another party changes nothing and is
a finding, so no party can move other parties' chips out of the registry or into it. The events of a chip count in the
order in which they happened, not in which they arrived: so a missing link that comes late heals the gap. What
the registry listed without being told how it came about is taken as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weighbridge.attest.custody_statements import HAND_OVERS, Kind

STATES = ("made", "tested", "shipped", "sold", "installed", "damaged", "lost", "scrapped")
"""What a chip can be: its last event, where `moved` leaves it installed and `resold` makes it sold."""
DRAWN = ("installed", "damaged")
"""In these states a chip can be drawn: a broken one until an inspector has seen it scrapped."""

_HELD = ("made", "tested", "shipped", "sold", "installed")
_BEFORE: Mapping[Kind, tuple[str, ...]] = {
    "tested": ("made", "tested", "shipped", "sold", "installed", "damaged"),
    "shipped": ("tested", "shipped", "sold", "installed", "damaged"),
    "sold": ("tested", "shipped", "sold"),
    "resold": ("shipped", "sold", "installed", "damaged"),
    "installed": ("tested", "shipped", "sold", "damaged", "lost"),
    "moved": ("installed",),
    "damaged": (*_HELD, "damaged"),
    "lost": (*_HELD, "damaged"),
    "scrapped": (*_HELD, "damaged", "lost"),
}
"""In which states each event is possible; `made` only where there is no chip yet."""

_BY_INSPECTORS: tuple[Kind, ...] = ("tested", "damaged", "lost")
_ROLES: Mapping[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "made": (("manufacturer",), ()),
    "tested": (("manufacturer", "inspector"), ()),
    "shipped": (("manufacturer", "owner"), ("manufacturer", "owner")),
    "sold": (("manufacturer", "owner"), ("manufacturer", "owner")),
    "resold": (("manufacturer", "owner"), ("manufacturer", "owner")),
    "installed": (("manufacturer", "owner"), ()),
    "moved": (("manufacturer", "owner"), ()),
    "damaged": (("manufacturer", "owner", "inspector"), ()),
    "lost": (("manufacturer", "owner", "inspector"), ()),
    "scrapped": (("manufacturer", "owner"), ("inspector",)),
}


def roles_for(kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns (roles of which the maker of a statement needs one, those of which the other party needs one)."""
    return _ROLES[kind]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event, as it concerns a single chip.

    Attributes:
        index: Of its entry in the registry's log.
        kind: What happened.
        by: Who says so.
        to: The other party, or empty.
        time_s: When, in seconds since 1970.
        site: For `installed` and `moved`.
        chip_type: For `made`.
        inspector: Whether `by` was an inspector then.
    """

    index: int
    kind: Kind
    by: str
    to: str
    time_s: int
    site: str
    chip_type: str
    inspector: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Custody:
    """Where a chip's events have led.

    Attributes:
        state: One of `STATES`.
        owner: Who answers for it: its most recent holder.
        site: Where it was installed; empty once it was handed over.
        chip_type: Its model.
        maker: The party that made it; empty if no such statement is known.
        since_s: Time of the last event that changed anything, or of the listing; seconds since 1970.
        latest_s: Time of the latest event, whether or not it changed anything; 0 if there was none.
    """

    state: str
    owner: str
    site: str = ""
    chip_type: str = ""
    maker: str = ""
    since_s: int = 0
    latest_s: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Contradiction:
    """Something in a chip's history that cannot be.

    Attributes:
        index: Of the entry of the log that does not fit.
        reason: Identifier of the finding.
        expected: What would have fitted.
        found: What is there.
    """

    index: int
    reason: str
    expected: str
    found: str


def step(before: Custody | None, event: Event) -> tuple[Custody, tuple[Contradiction, ...]]:
    """Returns a chip's custody after an event, and what about the event cannot be.

    Args:
        before: None if nothing is known of the chip.
        event: Not earlier than those that led there.
    """
    after, wrong = _step(before, event)
    return replace(after, latest_s=event.time_s), wrong


def _step(before: Custody | None, event: Event) -> tuple[Custody, tuple[Contradiction, ...]]:
    if event.kind == "made":
        return _made(before, event)
    if before is None:
        expected, found = "a statement that the chip was made", f"{event.by} says it was {event.kind}, as its first"
        before = Custody(state="made", owner=event.by)
        return _after(before, event), (_contradiction(event, "registry.gap", expected, found),)
    tester = event.kind == "tested" and event.by == before.maker
    if event.by != before.owner and not tester and not (event.inspector and event.kind in _BY_INSPECTORS):
        expected = f"a statement by {before.owner or 'its owner'}, who has the chip"
        found = f"{event.by} says it was {event.kind}"
        return before, (_contradiction(event, "registry.gap", expected, found),)
    wrong: tuple[Contradiction, ...] = ()
    if before.state not in _BEFORE[event.kind]:
        expected = " or ".join(_BEFORE[event.kind])
        wrong = (_contradiction(event, "registry.order", expected, f"{event.kind} after {before.state}"),)
    elif before.state == "lost" and event.kind == "installed":
        wrong = (_contradiction(event, "registry.reappeared", "nothing more of a lost chip", f"{event.kind} again"),)
    return _after(before, event), wrong


def fold(listed: Custody | None, events: Iterable[Event]) -> tuple[Custody | None, tuple[Contradiction, ...]]:
    """Returns where all events of a chip lead, and everything about them that cannot be.

    Args:
        listed: What the registry listed it as; None if it never did.
        events: In any order.
    """
    custody, wrong = listed, list[Contradiction]()
    for event in sorted(events, key=lambda event: (event.time_s, event.index)):
        custody, more = step(custody, event)
        wrong += more
    return custody, tuple(wrong)


def _made(before: Custody | None, event: Event) -> tuple[Custody, tuple[Contradiction, ...]]:
    if before is None:
        made = Custody(state="made", owner=event.by, chip_type=event.chip_type, maker=event.by, since_s=event.time_s)
        return made, ()
    if before.maker:
        expected, found = f"one chip of this identity, made by {before.maker}", f"{event.by} says it made another"
        return before, (_contradiction(event, "registry.duplicate", expected, found),)
    # Listed, or seen at work, before its history came: its maker is known now, and nothing else changes.
    return replace(before, maker=event.by, chip_type=before.chip_type or event.chip_type), ()


def _after(before: Custody, event: Event) -> Custody:
    kind = event.kind
    if kind == "tested":
        return replace(before, state="tested", since_s=event.time_s) if before.state == "made" else before
    if kind == "moved":
        return replace(before, state="installed", site=event.site, since_s=event.time_s)
    if kind in HAND_OVERS:
        state = "shipped" if kind == "shipped" else "sold"
        return replace(before, state=state, owner=event.to, site="", since_s=event.time_s)
    return replace(before, state=kind, site=event.site or before.site, since_s=event.time_s)


def _contradiction(event: Event, reason: str, expected: str, found: str) -> Contradiction:
    return Contradiction(index=event.index, reason=reason, expected=expected, found=found)
