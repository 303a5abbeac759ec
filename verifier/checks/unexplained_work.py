"""Did a chip do more work, over its whole log, than the transcripts that are shown for it account for?

The snapshots of a run are compared with its transcript by `session_work`. What a chip does in sessions that no snapshot
fell into leaves none; but its counters go on, so many short sessions that stay small on their own are large together.
Most chips do some work that no transcript explains, after their last snapshot for example. So this accuses only where
it adds up to the smallest run that the inspection is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from verifier.checks.memory import begins_from_given, replayed
from verifier.model.facts import Explanation, LogFacts, Plan, SnapshotFacts
from verifier.model.peak_flops import peak_by
from verifier.model.policies import SnapshotPolicy
from verifier.model.sessions import ATTACHED, tokens_of, work_of
from weighbridge.core.errors import Finding


def check(
    log: LogFacts, snapshots: Iterable[SnapshotFacts], plan: Plan, totals: Mapping[str, int] | None = None
) -> list[Finding]:
    """Compares a chip's counters with the transcripts of its snapshots.

    Args:
        log: The chip's log.
        snapshots: Its snapshots, once they were replayed.
        plan: Says what the smallest run is, and what may be unexplained. Where the chip's peak is not known, its FLOPs
            a day stand for it.
        totals: FLOPs of whole transcripts, by identifier: of one that was shown, the rest is explained too.
    """
    done = work_of(log)
    peak = peak_by(log.chip.chip_type, plan)
    explained = explained_flops(snapshots, plan.snapshots, totals or {})
    unexplained = done.flops_at_most(peak) - explained
    if unexplained < max(plan.flops_threshold, plan.snapshots.unexplained_flops):
        return []
    sessions = sum(token.kind == "event" and token.body["name"] == ATTACHED for token in tokens_of(log))
    busy_s, unknown_s = done.busy_ns / 1e9, done.unknown_ns / 1e9
    return [
        Finding(
            id="chip.work.unexplained",
            message="over all its sessions the chip did more work than the transcripts shown for it account for, and "
            "it adds up to a run that matters; ask what it was",
            expected=f"at most {explained:.3g} FLOPs, with what set-up and recording may take",
            found=f"up to {done.flops_at_most(peak):.3g} FLOPs in {sessions} sessions: {done.flops:.3g} counted, and "
            f"{unknown_s:.3g} s of unknown work at {peak:.3g} FLOPs a second; {busy_s:.3g} s in all",
            subject=f"chip {log.chip.ueid.hex()}",
            severity="warning",
            evidence={"unexplained_flops": unexplained, "explained_flops": explained, **done.to_json()},
        )
    ]


def explained_flops(snapshots: Iterable[SnapshotFacts], policy: SnapshotPolicy, totals: Mapping[str, int]) -> float:
    """Returns the FLOPs that transcripts explain, with what a policy allows beside them, each transcript once.

    Args:
        snapshots: The snapshots of one chip.
        policy: What it allows.
        totals: FLOPs of whole transcripts.
    """
    most: dict[str, float] = {}
    for snapshot in snapshots:
        result, claim = replayed(snapshot), snapshot.explanation
        if result is None or result.flops is None or not isinstance(claim, Explanation):
            continue
        flops = max(result.flops, totals.get(claim.transcript_id, 0))
        narrow = result.narrow * (flops / result.flops if result.flops else 1.0)
        setup = policy.setup_flops if begins_from_given(snapshot) else 0
        allowed = setup + policy.recording_flops * narrow + flops * (1 + policy.work_share)
        most[claim.transcript_id] = max(most.get(claim.transcript_id, 0.0), allowed)
    return sum(most.values())
