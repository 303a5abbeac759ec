"""From a full report to the record of an outcome: what a sealed worker does before anything leaves.

Nothing of a report's text, names, digests or exact amounts comes into the record: hours and
FLOPs become classes that were agreed on before, findings bits, and each snapshot a status.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verifier.report import outcome_figures
from verifier.report.earlier_reports import as_current
from verifier.report.extent import replayed_anything
from verifier.report.ledger import CATEGORIES
from verifier.report.published_findings import digest, place, published
from weighbridge.attest.outcome_terms import OutcomeError, OutcomeTerms
from weighbridge.attest.outcome_values import (
    NOT_STATED,
    SNAPSHOT_STATUSES,
    ChipOutcome,
    GroupOutcome,
    Outcome,
    RecordStatus,
    RuleOutcome,
    SnapshotStatus,
)

Missing = Mapping[tuple[str, int], SnapshotStatus]
"""By UEID in hexadecimal and entry: why a snapshot could not be verified, `withheld`, `late` or `aborted`."""

STATUS_FINDINGS: Mapping[str, str] = {
    "withheld": "outcome.withheld",
    "late": "outcome.late",
    "aborted": "outcome.aborted",
}
SILENT = ("withheld", "late", "aborted")
HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """What a record is bound to.

    Attributes:
        terms: What both parties agreed on.
        nonce: Of this start.
        key: The worker's public key.
        sealed: The commitment to the sealed report.
    """

    terms: OutcomeTerms
    nonce: bytes
    key: bytes
    sealed: bytes


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is known of a drawn chip before any replay.

    Attributes:
        certain: Whether it was drawn with certainty.
        snapshots: How many snapshots its log has.
    """

    certain: bool
    snapshots: int


def of_report(report: Mapping[str, Any], bound: Bound, missing: Missing | None = None) -> Outcome:
    """Returns the record of an inspection that came to its end.

    Args:
        report: The content of the full report, which this Verifier's software made.
        bound: What the record is bound to.
        missing: Of snapshots that the report calls unverified: those whose inputs did not come, in time or at all.

    Raises:
        OutcomeError: The report is of another plan or other rules than the terms (`outcome.terms`), or has more of
            something than the size class has room for (`outcome.overfull`).
    """
    report, terms = as_current(report), bound.terms
    _check_terms(report, terms)
    missing = missing or {}
    certain = set(report["draw"].get("certain", ()))
    chips = tuple(_chip(each, each["ueid"] in certain, missing) for each in report["chips"])
    given, detection = report["probability"]["inputs"], report["draw"].get("detection")
    groups = tuple(_group(each, terms) for each in (detection or {}).get("groups", ()))
    found = {
        severity: {place(each["id"]) for each in report["findings"] if each["severity"] == severity}
        for severity in ("violation", "warning")
    }
    said = {each for chip in chips for each in chip.snapshots}
    violations, warnings = _with_silence(found["violation"], found["warning"], said)
    ledger, fleet = report["ledger"], report["ledger"]["fleet"]
    (chunks,) = (each["value"] for each in report["miss"]["terms"] if each["name"] == "chunks")
    rules = tuple(each["outcome"] for each in (report["rules"] or {"rules": ()})["rules"])
    shares = {
        "chunks": _percent(chunks),
        "unproven": _percent(report["probability"]["proven"]["unproven_share"]),
        "replayed": _replayed(report),
    }
    counts = {"population": given["C"], "drawn": given["s"], "unverified": given["w"]}
    work = (ledger["unexplained_flops"], ledger["remainder_flops"])
    derived = outcome_figures.derive(
        terms, groups=groups, chips=chips, findings=(len(violations), len(warnings)), rules=rules, **counts, **shares
    )
    hours = [_class(ledger["ms"][each] / HOUR_MS, terms.hours) for each in CATEGORIES]
    return Outcome(
        size=terms.size, nonce=bound.nonce, key=bound.key, sealed=bound.sealed, status="complete", groups=groups,
        chips=chips, violations=violations, warnings=warnings, rules=rules,
        hours=(hours[0], hours[1], hours[2], hours[3]),
        flops=(
            _class(work[0], terms.flops), _class(work[1], terms.flops),
            NOT_STATED if fleet is None else _class(fleet["unexplained_flops_at_most"], terms.flops),
        ),
        derived=derived, **counts, **shares,
    )  # fmt: skip


def without_end(
    status: RecordStatus, bound: Bound, chips: Sequence[Drawn], *, population: int, groups: Sequence[GroupOutcome] = ()
) -> Outcome:
    """Returns the record of an inspection that did not come to its end: every chip counts as silent after the draw.

    It has the length of every other record under these terms, and says nothing that was not known before the start.

    Args:
        status: `withheld`, `late` or `aborted`.
        bound: What the record is bound to.
        chips: The drawn chips, in the order drawn.
        population: C.
        groups: Groups of the draw, as they were before any replay.

    Raises:
        OutcomeError: `status` is `complete`, or something has no room (`outcome.overfull`).
    """
    if status == "complete":
        raise OutcomeError("an inspection that came to its end has a report")
    terms = bound.terms
    own = tuple(ChipOutcome(False, False, each.certain, (status,) * each.snapshots) for each in chips)
    drawn = sum(not each.certain for each in chips)
    violations, warnings = _with_silence(set(), set(), {status})
    shares = {"chunks": 0, "unproven": 100, "replayed": 0}
    counts = {"population": population, "drawn": drawn, "unverified": drawn}
    undecided: RuleOutcome = "undecided"
    rules = (undecided,) * terms.rule_count
    silent = tuple(_silenced(each) for each in groups)
    return Outcome(
        size=terms.size, nonce=bound.nonce, key=bound.key, sealed=bound.sealed, status=status, groups=silent,
        chips=own, violations=violations, warnings=warnings, rules=rules, hours=(NOT_STATED,) * 4,
        flops=(NOT_STATED,) * 3,
        derived=outcome_figures.derive(
            terms, groups=silent, chips=own, findings=(len(violations), len(warnings)), rules=rules, **counts, **shares
        ),
        **counts, **shares,
    )  # fmt: skip


def _silenced(group: GroupOutcome) -> GroupOutcome:
    """Of a group drawn from nothing verified; one drawn with certainty was not looked at."""
    if group.kind == "random":
        return GroupOutcome("random", group.speed, group.chips, group.drawn, group.drawn)
    return GroupOutcome("silent", group.speed, group.chips, 0, 0)


def _check_terms(report: Mapping[str, Any], terms: OutcomeTerms) -> None:
    plan, rules = report["plan"], report["rules"]
    same = all(
        plan[name] == getattr(terms, name)
        for name in ("flops_threshold", "chip_flops_per_day", "period_days", "snapshot_rate_per_day")
    )
    ruled = (bytes.fromhex(rules["digest"]), len(rules["rules"])) if rules is not None else (b"", 0)
    if not same or ruled != (terms.rules, terms.rule_count):
        raise OutcomeError("the report is of another plan, or of other rules, than was agreed", code="outcome.terms")
    if (digest(), len(published())) != (terms.findings, terms.finding_count):
        raise OutcomeError(
            "the terms name another list of published findings than this version has", code="outcome.terms"
        )


def _chip(chip: Mapping[str, Any], certain: bool, missing: Missing) -> ChipOutcome:
    statuses = []
    for each in chip["snapshots"]:
        why = missing.get((chip["ueid"], each["index"]))
        if why is not None and (each["status"] != "unverified" or why not in SILENT):
            raise OutcomeError("a snapshot that could be verified is called withheld, late or aborted")
        status = each["status"] if why is None else why
        statuses.append(SNAPSHOT_STATUSES[SNAPSHOT_STATUSES.index(status)])
    return ChipOutcome(chip["reachable"] is True, chip["verified"] is True, certain, tuple(statuses))


def _group(group: Mapping[str, Any], terms: OutcomeTerms) -> GroupOutcome:
    try:
        speed = terms.speeds.index(float(group["chip_flops_per_day"]))
    except ValueError:
        raise OutcomeError("a group of the draw has a speed that the terms lack", code="outcome.terms") from None
    return GroupOutcome(group["kind"], speed, group["chips"], group["drawn"], group["unverified"])


def _with_silence(violations: set[int], warnings: set[int], said: set[Any]) -> tuple[frozenset[int], frozenset[int]]:
    """Adds what statuses say: withholding is a violation, and being late or stopped a warning."""
    worse = {place(STATUS_FINDINGS[each]) for each in said & {"withheld"}}
    odd = {place(STATUS_FINDINGS[each]) for each in said & {"late", "aborted"}}
    return frozenset(violations | worse), frozenset(warnings | odd)


def _class(value: float, edges: Sequence[float]) -> int:
    return bisect_left(edges, value)


def _percent(share: float) -> int:
    return min(100, max(0, math.ceil(share * 100 - 1e-9)))


def _replayed(report: Mapping[str, Any]) -> int:
    if not replayed_anything(report["chips"], report["replayed"]):
        return 0
    return 2 if report["replayed"] and all(each["whole"] for each in report["replayed"]) else 1
