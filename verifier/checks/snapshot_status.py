"""What becomes of a snapshot, by what the checks found about it."""

from __future__ import annotations

from verifier.checks import memory
from verifier.model.check_runner import Judgement
from verifier.model.facts import SnapshotFacts, Status
from verifier.model.policies import SnapshotPolicy
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.given_terms import GIVEN


def status(snapshot: SnapshotFacts, found: Judgement, policy: SnapshotPolicy) -> Status:
    """Returns what became of a snapshot.

    Args:
        snapshot: With its explanation, opening and replay.
        found: What the checks of `verifier.checks.SNAPSHOT` found.
        policy: The plan's.
    """
    if snapshot.explanation is None:
        return "unexplained" if found.violated else "unverified"
    if isinstance(snapshot.explanation, WeighbridgeError) or snapshot.replayed is None:
        return "mismatch" if found.violated and snapshot.transcript is not None else "unverified"
    if isinstance(snapshot.replayed, WeighbridgeError):
        return "unverified"
    if found.violated:
        return "mismatch"
    accounted = memory.accounting(snapshot, policy)
    if accounted is None or accounted.temporary or found.not_sampled:
        return "unverified"
    return "explained given collectives" if snapshot.replayed.verdict == GIVEN else "explained"
