"""Are the transcript's programs the declared ones, and did only what can be checked enter them?

The worker that replayed the transcript looked at its tapes too; the Verifier's own process reads none of them.
"""

from __future__ import annotations

from dataclasses import replace

from verifier.checks.replay_outcome import within
from verifier.model.facts import SnapshotFacts
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.program import tape_policy


def check(snapshot: SnapshotFacts) -> list[Finding]:
    """Passes on what the worker says of the programs. It stands beside the replay: both may be true of one run."""
    result = snapshot.replayed
    if result is None or isinstance(result, WeighbridgeError) or snapshot.transcript is None:
        return []
    subject = f"transcript {snapshot.transcript.id}"
    return [
        replace(finding, subject=within(subject, finding.subject))
        for finding in result.findings
        if finding.id in tape_policy.IDS
    ]
