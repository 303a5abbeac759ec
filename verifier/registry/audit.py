"""The audit of the registry: what in the histories of chips cannot be, or should not be, by a policy.

Contradictions were kept when statements came in; the rest is counted in the tables. A finding names the statement or
the holder that has to be explained. That a chip cannot be found is known only to who looked for it; its registered
holder answers for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import case, func, select

from verifier.registry.directory import Registry
from verifier.registry.transitions import Contradiction
from verifier.store.tables import ChipRow, ContradictionRow
from weighbridge.core.errors import Finding, Severity, UsageError

DAY_S = 86_400
_NAMED = 5
_MESSAGES: Mapping[str, str] = {
    "registry.gap": "a statement about chips by a party that did not hold them; ask for the hand-over that is missing",
    "registry.order": "something was said of chips that cannot follow on what was said before; ask what happened",
    "registry.duplicate": "chips of one identity were made twice; inspect both",
    "registry.reappeared": "chips that were lost are at work again; read their logs of the time between",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPolicy:
    """What an audit takes for normal.

    Attributes:
        lost_days: Losses of so many days are counted together.
        lost_share: Share of a holder's chips that may be lost in that time.
        lost_least: So many losses are no mass loss whatever the share.
        uninstalled_days: How long chips may lie about before they are installed.
        severities: Of findings, by identifier; violations otherwise.
    """

    lost_days: float = 365.0
    lost_share: float = 0.01
    lost_least: int = 4
    uninstalled_days: float = 90.0
    severities: Mapping[str, Severity] = field(
        default_factory=lambda: {"registry.uninstalled": "warning", "registry.reappeared": "info"}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.lost_share <= 1 or self.lost_days <= 0 or self.uninstalled_days <= 0 or self.lost_least < 0:
            raise UsageError(
                "an audit needs a share from 0 to 1, days above 0 and a number of chips; correct the policy"
            )


def audit(registry: Registry, policy: AuditPolicy | None = None) -> list[Finding]:
    """Returns what is wrong with the histories of chips, in the order of the log, then by holder."""
    policy = policy or AuditPolicy()
    return [*_contradictions(registry, policy), *_losses(registry, policy), *_uninstalled(registry, policy)]


def missing(registry: Registry, ueids: Iterable[bytes]) -> list[Finding]:
    """Returns who answers for chips that could not be found: their most recent holders.

    Args:
        registry: The registry.
        ueids: Chips that were looked for in vain.

    Raises:
        UsageError: One is not registered.
    """
    findings = []
    for ueid in ueids:
        chip = registry.chip(ueid)
        findings.append(
            Finding(
                id="registry.missing",
                message="a chip cannot be found; its most recent holder has to produce it, or show who has it",
                expected=f"{chip.state}{f' at {chip.site}' if chip.site else ''}, with {chip.owner or 'no holder'}",
                found="nothing there",
                subject=f"chip {ueid.hex()}",
                evidence={"holder": chip.owner, "history": registry.history(ueid)},
            )
        )
    return findings


def contradiction(each: Contradiction, subject: str, evidence: dict[str, Any], policy: AuditPolicy) -> Finding:
    """Returns a contradiction as a finding about a chip, or about all those that one statement is about."""
    return Finding(
        id=each.reason,
        message=_MESSAGES[each.reason],
        expected=each.expected,
        found=each.found,
        subject=subject,
        severity=policy.severities.get(each.reason, "violation"),
        evidence=evidence,
    )


def _contradictions(registry: Registry, policy: AuditPolicy) -> list[Finding]:
    row = ContradictionRow
    query = (
        select(row.place, row.reason, row.expected, row.found, func.count(), func.min(row.ueid))
        .group_by(row.place, row.reason, row.expected, row.found)
        .order_by(row.place, row.reason, row.expected)
    )
    findings = []
    with registry.session() as session:
        for index, reason, expected, found, count, _ in session.execute(query):
            chips = select(row.ueid).where(row.place == index, row.reason == reason, row.expected == expected)
            first = session.scalars(chips.order_by(row.ueid).limit(_NAMED))
            each = Contradiction(index=index, reason=reason, expected=expected, found=found)
            evidence = {"place": index, "chips": count, "first": [ueid.hex() for ueid in first]}
            subject = f"{count} chips in entry {index} of the registry's log"
            findings.append(contradiction(each, subject, evidence, policy))
    return findings


def _losses(registry: Registry, policy: AuditPolicy) -> list[Finding]:
    since = registry.now() - policy.lost_days * DAY_S
    lost = func.sum(case(((ChipRow.state == "lost") & (ChipRow.since_s >= since), 1), else_=0))
    query = select(ChipRow.owner, func.count(), lost).group_by(ChipRow.owner).order_by(ChipRow.owner)
    with registry.session() as session:
        rows = session.execute(query).all()
    return [
        Finding(
            id="registry.loss.mass",
            message="a holder lost more chips than chance explains; investigate where they are",
            expected=f"at most {policy.lost_share:.1%} of its chips lost in {policy.lost_days:g} days",
            found=f"{count} of {total}",
            subject=f"holder {owner}",
            severity=policy.severities.get("registry.loss.mass", "violation"),
            evidence={"lost": int(count), "chips": total},
        )
        for owner, total, count in rows
        if count > policy.lost_least and count > policy.lost_share * total
    ]


def _uninstalled(registry: Registry, policy: AuditPolicy) -> list[Finding]:
    before = registry.now() - policy.uninstalled_days * DAY_S
    query = (
        select(ChipRow.owner, ChipRow.state, func.count(), func.min(ChipRow.since_s))
        .where(ChipRow.state.in_(("made", "tested", "shipped", "sold")), ChipRow.since_s < before)
        .group_by(ChipRow.owner, ChipRow.state)
        .order_by(ChipRow.owner, ChipRow.state)
    )
    with registry.session() as session:
        rows = session.execute(query).all()
    return [
        Finding(
            id="registry.uninstalled",
            message="chips were never installed since their holder got them; ask where they are, and see some",
            expected=f"installed within {policy.uninstalled_days:g} days",
            found=f"{count} chips {state}, the first {(registry.now() - first) // DAY_S} days ago",
            subject=f"holder {owner}",
            severity=policy.severities.get("registry.uninstalled", "violation"),
            evidence={"chips": count, "state": state},
        )
        for owner, state, count, first in rows
    ]
