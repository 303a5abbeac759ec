"""What an audit came to: a pure function of its statements, the beacon's values and the referee's replays.

So any reader can recompute a verdict from the files, and need take on trust no more than the referee's replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from analysis.confidence import clopper_pearson, hypergeometric_bounds
from analysis.coverage import least_union
from analysis.domain import DetectionDomainError
from verifier.auditing.case import Case
from verifier.auditing.claims import Claim, commitment, commitments_of, opened_of
from verifier.auditing.delivery import Deliver, Delivered, compare
from verifier.auditing.plan import Assignment, Planted, assignment, referee_share, segment_key, value
from verifier.auditing.statements import AuditError, Statement
from weighbridge.attest.beacon import Beacon
from weighbridge.core.errors import Finding, Severity

CONFIDENCE = 0.95
"""Of the bounds on what was not looked at."""

Replays = Callable[[int, bytes], Claim | None]
"""Replays the segment of a number under a key; None if the referee cannot."""


@dataclass(kw_only=True)
class Judged:
    """An audit as far as it was judged.

    Attributes:
        assigned: Who had to replay what.
        claims: Of each drawn segment, the claims that count, by auditor.
        replayed: What the referee found; None where it could not replay.
        share: The segments that it replayed whatever was found.
        false: Segments of which an auditor's claim is refuted, with these auditors.
        findings: What is wrong.
    """

    assigned: Assignment
    claims: dict[int, dict[int, Claim]]
    replayed: dict[int, Claim | None] = field(default_factory=dict)
    share: list[int] = field(default_factory=list)
    false: dict[int, set[int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def note(self, code: str, message: str, subject: str, severity: Severity = "violation") -> None:
        """Adds a finding."""
        self.findings.append(Finding(id=code, message=message, subject=subject, severity=severity))


def judge(
    case: Case, beacon: Beacon, planted: Planted, replay: Replays, deliver: Deliver = lambda _: None
) -> dict[str, Any]:
    """Returns what the verdict of an audit says.

    Args:
        case: Its statements.
        beacon: Has the values of its three rounds.
        planted: What was planted.
        replay: Replays a segment; called for the referee's share of all drawn segments, those of silent auditors too,
            and for each other one whose claims differ or are not all `match`.
        deliver: Says what an ordered transcript says of itself.

    Raises:
        AuditError: The commitments were not closed, or what was planted is not what the plan says.
        UsageError: A round has no value yet.
        BeaconError: A value is not the beacon's.
    """
    plan = case.plan
    closing = case.one("closing")
    if closing is None:
        raise AuditError("The commitments of this audit were not closed; have its coordinator close them.")
    if planted.commitment() != plan.planted:
        raise AuditError("What was planted is not what the plan says; give the file that was made with it.")
    drawn, keyed, shared = (value(beacon, plan, number) for number in plan.rounds)
    judged = Judged(assigned=assignment(plan, case.digest, drawn), claims={})
    openings = _claims(case, closing, judged)
    judged.share = referee_share(plan, closing.digest, shared, judged.assigned)
    for segment in judged.assigned:
        said = list(judged.claims[segment].values())
        if segment in judged.share or any(each != said[0] or each.verdict != "match" for each in said):
            judged.replayed[segment] = replay(segment, segment_key(plan, case.digest, keyed, segment))
            _compare(case, judged, planted, segment)
    came = {digest: deliver(digest) for digest in plan.ordered}
    for digest, order in plan.ordered.items():
        judged.findings += compare(order, came[digest], digest)
    return {
        "plan": case.digest.hex(),
        "closing": closing.digest.hex(),
        "openings": [[plan.auditors[number][1], each.digest.hex()] for number, each in sorted(openings.items())],
        "planted": asdict(planted),
        "replayed": [
            [segment, None if found is None else found.to_json()] for segment, found in sorted(judged.replayed.items())
        ],
        "auditors": [_auditor(case, judged, planted, number) for number in range(len(plan.auditors))],
        "work": _work(case, judged, planted),
        **({"delivered": [[digest, each and each.to_json()] for digest, each in came.items()]} if came else {}),
        "findings": [each.to_json() for each in judged.findings],
    }


def judge_again(case: Case, beacon: Beacon) -> tuple[Statement, bool]:
    """Recomputes the verdict of an audit, with the referee's replays as it signed them.

    Args:
        case: The audit.
        beacon: Has the values of its rounds.

    Returns:
        The verdict's statement, and whether the files give that verdict.

    Raises:
        AuditError: There is no verdict, or it is malformed.
    """
    statement = case.one("verdict")
    if statement is None:
        raise AuditError("This audit has no verdict yet; have its referee make one.")
    try:
        planted = Planted.from_json(statement.predicate["planted"])
        said = {
            int(segment): None if claim is None else Claim.from_json(claim)
            for segment, claim in statement.predicate["replayed"]
        }
        came = {
            digest: None if each is None else Delivered.from_json(each)
            for digest, each in statement.predicate.get("delivered", ())
        }
        made = judge(case, beacon, planted, lambda segment, _: said[segment], lambda digest: came[digest])
    except (KeyError, TypeError, ValueError):
        return statement, False
    return statement, made == statement.predicate


def _claims(case: Case, closing: Statement, judged: Judged) -> Mapping[int, Statement]:
    """Fills in the claims that count; returns the openings that do."""
    plan = case.plan
    enrolled, wrong = case.all("enrolment")
    committed, more = case.all("commitments")
    opened, most = case.all("openings")
    judged.findings += wrong + more + most
    listed = dict(_pairs(closing.predicate.get("commitments")))
    judged.claims = {segment: {} for segment in judged.assigned}
    counted: dict[int, Statement] = {}
    for number, (name, key) in enumerate(plan.auditors):
        mine = [segment for segment, who in judged.assigned.items() if number in who]
        said, shown = committed.get(number), opened.get(number)
        if number not in enrolled:
            judged.note("audit.silent", f"{name} did not enrol, so that none of its claims counts", name, "warning")
            continue
        if said is None or listed.get(key) != said.digest.hex():
            late = "none that is in the closing" if said is not None else "none"
            judged.note("audit.silent", f"{name} has made no commitments, or {late}", name, "warning")
            continue
        if shown is None:
            judged.note("audit.silent", f"{name} committed, and did not open", name, "warning")
            continue
        if shown.predicate.get("closing") != closing.digest.hex():
            judged.note("audit.closing", f"{name} opened to another closing than this one", name)
            continue
        try:
            hidden = commitments_of(said.predicate.get("commitments"))
            claims = opened_of(shown.predicate.get("claims"))
        except AuditError as error:
            judged.findings.append(error.finding(subject=name))
            continue
        counted[number] = shown
        silent = [segment for segment in mine if segment not in claims]
        if silent:
            judged.note("audit.silent", f"{name} says nothing of {len(silent)} of its segments", name, "warning")
        for segment in mine:
            if segment not in claims:
                continue
            r, claim = claims[segment]
            if hidden.get(segment) == commitment(case.digest, segment, case.keys[number], r, claim):
                judged.claims[segment][number] = claim
            else:
                judged.note(
                    "audit.opening", f"{name} opened something else of segment {segment} than it committed to", name
                )
    return counted


def _pairs(raw: Any) -> Iterator[tuple[str, str]]:
    for each in raw if isinstance(raw, list) else ():
        match each:
            case [str(key), str(digest)]:
                yield key, digest


def _compare(case: Case, judged: Judged, planted: Planted, segment: int) -> None:
    """Compares the claims about a segment with the referee's replay, or notes that they differ."""
    plan, truth, claims = case.plan, judged.replayed[segment], judged.claims[segment]
    source, begin, end = plan.segments[segment]
    where = f"steps {begin}:{end} of {source.name}"
    if truth is None or truth.verdict == "inconclusive":
        if len(set(claims.values())) > 1:
            judged.note(
                "audit.differs", f"auditors differ about {where}, and the referee cannot say", source.digest, "warning"
            )
        return
    if truth.verdict == "mismatch" and source.digest not in planted.steps:
        judged.note("audit.segment", f"{where} do not match: step {truth.step}, operation {truth.op}", source.digest)
    for number, claim in claims.items():
        # In a segment that does not match, devices of two kinds may find the first difference at two places.
        if claim.verdict != "inconclusive" and (
            claim.verdict != truth.verdict or (claim != truth and claim.verdict == "match")
        ):
            judged.false.setdefault(segment, set()).add(number)
            name = plan.auditors[number][0]
            what = "with another digest of the work" if claim.verdict == truth.verdict else f"not {truth.verdict!r}"
            judged.note("audit.false", f"{name} says {claim.verdict!r} of {where}, {what}", name)


def _is_planted(case: Case, planted: Planted, segment: int) -> bool:
    source, begin, end = case.plan.segments[segment]
    return begin <= planted.steps.get(source.digest, -1) < end


def _sound(case: Case, judged: Judged, planted: Planted, segment: int) -> bool:
    """Whether the referee found a segment to match; one that was planted is no sign of anything."""
    truth = judged.replayed[segment]
    return truth is not None and (truth.verdict == "match" or case.plan.segments[segment][0].digest in planted.steps)


def _auditor(case: Case, judged: Judged, planted: Planted, number: int) -> dict[str, Any]:
    """Returns what is to be said of an auditor; notes planted segments that it took for true."""
    name, key = case.plan.auditors[number]
    mine = [segment for segment, who in judged.assigned.items() if number in who]
    answered = [segment for segment in mine if number in judged.claims[segment]]
    shown = [segment for segment in answered if _is_planted(case, planted, segment)]
    missed = [segment for segment in shown if judged.claims[segment][number].verdict == "match"]
    if missed:
        judged.note(
            "audit.planted", f"{name} says 'match' of {len(missed)} of {len(shown)} segments that were made false", name
        )
    bound = None
    if shown:
        most = clopper_pearson(found=len(missed), samples=len(shown), confidence=2 * CONFIDENCE - 1)[1]
        bound = round(float(most), 6)  # the last digits are not the same with every library
    false = [segment for segment in answered if number in judged.false.get(segment, ())]
    same = [segment for segment in answered if judged.replayed.get(segment) == judged.claims[segment][number]]
    return {
        "name": name, "key": key, "assigned": len(mine), "answered": len(answered), "confirmed": len(same),
        "false": len(false), "planted": len(shown), "missed": len(missed), "missed_at_most": bound,
    }  # fmt: skip


def _work(case: Case, judged: Judged, planted: Planted) -> dict[str, Any]:
    """Returns how much was replayed: counts, and one bound that follows from the referee's random share."""
    segments, auditors = case.plan.segments, len(case.plan.auditors)
    real = [number for number, (source, _, _) in enumerate(segments) if source.digest not in planted.steps]
    sizes = [end - begin for _, begin, end in segments]
    taken: list[set[int]] = [set() for _ in range(auditors)]
    by = [0] * (auditors + 1)
    for segment in real:
        false = judged.false.get(segment, set())
        sound = [n for n, c in judged.claims.get(segment, {}).items() if c.verdict == "match" and n not in false]
        by[len(sound)] += sizes[segment]
        for number in sound:
            taken[number].add(segment)
    least = [_least(taken, honest, sizes) for honest in range(1, auditors + 1)]
    bad = [segment for segment in judged.share if segment in judged.false or not _sound(case, judged, planted, segment)]
    unseen = None
    if judged.share:
        bounds = hypergeometric_bounds(
            found=len(bad), samples=len(judged.share), chips=len(judged.assigned), confidence=2 * CONFIDENCE - 1
        )
        unseen = int(bounds[1])
    return {
        "steps": sum(sizes[segment] for segment in real),
        "matching_by": by,
        "least_by_honest": least,
        "referee_steps": sum(sizes[segment] for segment in real if judged.replayed.get(segment) is not None),
        "drawn": len(judged.assigned),
        "share": len(judged.share),
        "share_false": len(bad),
        "false_at_most": unseen,
        "confidence": CONFIDENCE,
    }


def _least(taken: list[set[int]], honest: int, sizes: list[int]) -> int | None:
    try:
        return least_union(taken, honest, sizes)
    except DetectionDomainError:  # too many groups
        return None
