"""What each party of an audit does in its turn. Who signs a statement looks at its own clock first.

The order of an audit rests on that: an honest auditor's enrolment says that the plan was there before the draw, and its
opening that the commitments were closed before it showed anything, and before the referee's share was out.
"""

from __future__ import annotations

from collections.abc import Callable

from verifier.auditing.case import Case
from verifier.auditing.claims import Claim, Opened, blinding, commitment, opened_to_json
from verifier.auditing.plan import Plan, assignment, segment_key, value
from verifier.auditing.statements import AuditError
from weighbridge.attest.beacon import Beacon, BeaconInfo
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import UsageError

Replay = Callable[[int, bytes], Claim | None]
"""Replays the segment of a number under a key; None if that is not possible here."""


def enrol(case: Case, key: SigningKey, info: BeaconInfo, now_ms: int) -> None:
    """Enrols an auditor.

    Args:
        case: The audit.
        key: The auditor's.
        info: The beacon.
        now_ms: The auditor's time, in milliseconds since 1970.

    Raises:
        UsageError: The key is no auditor's, or enrolled already.
        AuditError: The draw may be out (`audit.order`), or the beacon is another one.
    """
    case.auditor(key.public)
    _require_before(case.plan, info, 0, now_ms, "the draw is out, so that the plan could have been made for it")
    case.put("enrolment", {}, key)


def commit(case: Case, key: SigningKey, beacon: Beacon, replay: Replay, keep: Callable[[Opened], None]) -> Opened:
    """Replays the segments of an auditor and commits to what was found.

    Args:
        case: The audit.
        key: The auditor's.
        beacon: Has the values of draw and key.
        replay: Replays a segment.
        keep: Keeps the claims secret until they are opened; called before the commitments can be seen.

    Returns:
        The claims; those that could not be made are missing.

    Raises:
        UsageError: The commitments are closed, the auditor has committed, or a round has no value yet.
        AuditError: A statement does not verify.
    """
    number = case.auditor(key.public)
    if case.one("closing") is not None:
        raise UsageError("the commitments are closed; what you commit to now would not count")
    if case.by("commitments", number) is not None:
        raise UsageError("you have committed in this audit; a second commitment would contradict the first")
    drawn, keyed = (value(beacon, case.plan, each) for each in case.plan.rounds[:2])
    opened: Opened = {}
    for segment, who in assignment(case.plan, case.digest, drawn).items():
        if number in who:
            claim = replay(segment, segment_key(case.plan, case.digest, keyed, segment))
            if claim is not None:
                opened[segment] = blinding(), claim
    keep(opened)
    said = [[at, commitment(case.digest, at, key.public, r, claim)] for at, (r, claim) in sorted(opened.items())]
    case.put("commitments", {"commitments": said}, key)
    return opened


def close(case: Case, key: SigningKey, info: BeaconInfo, now_ms: int) -> list[str]:
    """Closes the commitments; returns the names of those whose commitments are in the closing.

    Args:
        case: The audit.
        key: The coordinator's.
        info: The beacon.
        now_ms: The coordinator's time.

    Raises:
        UsageError: It is another key, or they are closed already.
        AuditError: The referee's share may be out (`audit.order`), or the beacon is another one.
    """
    if key.public != case.coordinator:
        raise UsageError("the commitments are closed by the coordinator, who signed the plan; give that key")
    _require_before(case.plan, info, 2, now_ms, "the referee's share is out, so that commitments could follow it")
    there, _ = case.all("commitments")
    case.put("closing", {"commitments": [[case.keys[at].hex(), each.digest.hex()] for at, each in there.items()]}, key)
    return [case.plan.auditors[number][0] for number in there]


def open_claims(case: Case, key: SigningKey, info: BeaconInfo, now_ms: int, opened: Opened) -> None:
    """Opens the commitments of an auditor, if none can be made any more.

    Args:
        case: The audit.
        key: The auditor's.
        info: The beacon.
        now_ms: The auditor's time.
        opened: What it committed to.

    Raises:
        UsageError: They are not closed, or the closing leaves this auditor out.
        AuditError: The referee's share may be out (`audit.order`), or the beacon is another one.
    """
    closing, mine = case.one("closing"), case.by("commitments", case.auditor(key.public))
    if closing is None:
        raise UsageError("the commitments are not closed yet; an auditor could copy what you open now")
    listed = closing.predicate.get("commitments")
    if mine is None or not isinstance(listed, list) or [key.public.hex(), mine.digest.hex()] not in listed:
        raise UsageError("your commitments are not in the closing; ask the coordinator why, and keep the closing")
    _require_before(case.plan, info, 2, now_ms, "the referee's share is out, so that the closing could follow it")
    case.put("openings", {"closing": closing.digest.hex(), "claims": opened_to_json(opened)}, key)


def _require_before(plan: Plan, info: BeaconInfo, place: int, now_ms: int, why: str) -> None:
    if info.chain.hex() != plan.beacon:
        raise AuditError("The beacon is not the one that the plan names; give that one.")
    if now_ms >= info.time_ms(plan.rounds[place]):
        raise AuditError(f"It is too late: {why}.", code="audit.order")
