"""Do the snapshots of one chip follow each other as the steps of one run do?"""

from __future__ import annotations

from collections.abc import Iterable

from verifier.checks.provenance import is_tail
from verifier.model.facts import Explanation, SnapshotFacts
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED, SnapshotPolicy
from weighbridge.attest.tokens import shown
from weighbridge.core.errors import Finding, WeighbridgeError


def check(snapshots: Iterable[SnapshotFacts], policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> list[Finding]:
    """Checks the snapshots of one chip against each other.

    A run passes each position once. Who shows one and the same position at every interrupt may do anything in between.
    Steps that were recomputed after a crash may be seen again, but not time after time: a crash seldom falls between
    two snapshots of the same few steps. Snapshots off a safepoint are excepted, of which a long operation may see
    several.
    """
    snapshots = list(snapshots)
    findings: list[Finding] = _restarts(snapshots, policy)
    before: dict[str, SnapshotFacts] = {}
    tails: list[SnapshotFacts] = []
    for snapshot in sorted(snapshots, key=lambda each: each.index):
        if is_tail(snapshot):
            tails.append(snapshot)
        place = _recorded(snapshot)
        if place is None:
            continue
        identifier = place.transcript_id
        earlier = before.get(identifier)
        if earlier is not None and isinstance(earlier.explanation, Explanation):
            passed = (earlier.explanation.step, earlier.explanation.op)
            if (place.step, place.op) <= passed:
                findings.append(_repeated(earlier, snapshot, place))
        before[identifier] = snapshot
    if len(runs := {_draft(tail) for tail in tails}) > policy.tails:
        findings.append(
            Finding(
                id="snapshot.tail.many",
                message="run after run on this chip ended in a step with a snapshot, which cannot be replayed; ask why",
                expected=f"at most {policy.tails}",
                found=f"{len(runs)} runs that ended so, first at entry {tails[0].index}",
                subject=f"chip {tails[0].chip.ueid.hex()}",
                severity="warning",
            )
        )
    return findings


def _restarts(snapshots: list[SnapshotFacts], policy: SnapshotPolicy) -> list[Finding]:
    """Reports a chip whose runs go back again and again, each time by a crash that only their transcripts tell of."""
    passed: dict[bytes, tuple[int, int]] = {}
    placed, back = 0, list[SnapshotFacts]()
    for snapshot in sorted(snapshots, key=lambda each: each.index):
        place = _whole(snapshot)
        if place is None:
            continue
        placed, run, position = placed + 1, _draft(snapshot), (place.step, place.op)
        if run in passed and position <= passed[run]:
            back.append(snapshot)
        passed[run] = position
    if len(back) <= max(policy.restarts, policy.restarts_share * placed):
        return []
    return [
        Finding(
            id="snapshot.restarts",
            message="snapshot after snapshot on this chip shows steps that an earlier one had passed; ask why the runs "
            "crashed so often, and treat the time between them as unexplained",
            expected=f"at most {policy.restarts}, or {policy.restarts_share:.0%} of the snapshots",
            found=f"{len(back)} of {placed}, first at entry {back[0].index}",
            subject=f"chip {back[0].chip.ueid.hex()}",
            severity="warning",
        )
    ]


def _draft(snapshot: SnapshotFacts) -> bytes:
    """What names a run however far it had come when it was declared."""
    facts = snapshot.transcript
    return b"" if facts is None or isinstance(facts.opened, WeighbridgeError) else facts.opened.draft_digest


def _recorded(snapshot: SnapshotFacts) -> Explanation | None:
    """Returns the claim if it is a safepoint that a step's own record names, else None."""
    claim, facts = _whole(snapshot), snapshot.transcript
    if claim is None or facts is None or isinstance(facts.opened, WeighbridgeError):
        return None
    named = facts.opened.recorded(claim.step)
    return claim if (snapshot.chip.ueid, snapshot.index, claim.op) in named else None


def _whole(snapshot: SnapshotFacts) -> Explanation | None:
    """Returns the claim if it is a safepoint in a step that was finished, else None."""
    claim, facts = snapshot.explanation, snapshot.transcript
    if not isinstance(claim, Explanation) or facts is None or isinstance(facts.opened, WeighbridgeError):
        return None
    return claim if shown(snapshot.verified.token)["safepoint"] and 0 <= claim.step < facts.opened.steps else None


def _repeated(earlier: SnapshotFacts, snapshot: SnapshotFacts, place: Explanation) -> Finding:
    assert isinstance(earlier.explanation, Explanation)
    return Finding(
        id="snapshot.position.repeated",
        message="two snapshots of one run were taken at the same position, or the later one at an earlier position",
        expected=f"a position after step {earlier.explanation.step} operation {earlier.explanation.op}, "
        f"where entry {earlier.index} was taken",
        found=f"step {place.step} operation {place.op}",
        subject=snapshot.subject,
    )
