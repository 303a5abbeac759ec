"""Did the chip do more work than the transcript accounts for?

Memory shows what a chip holds at the moment of a snapshot. Who learns of an interrupt may still have some kernels in
which to hide another model; the work that it did on that model stays in the chip's counter.
"""

from __future__ import annotations

from verifier.checks.memory import begins_from_given, replayed
from verifier.model.facts import SnapshotFacts, number
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED, SnapshotPolicy
from weighbridge.core.errors import Finding


def check(snapshot: SnapshotFacts, policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> list[Finding]:
    """Compares the chip's FLOPs since the workload was attached with those of the transcript up to the position.

    A model that was made or loaded without being recorded took some, what a framework does for itself takes a few, and
    so does recording itself, of results in 16 bits. Fewer are no fault: a recording that was resumed is attached again.
    Work beside the transcript need not be a violation (evaluation is such work), so this is a warning: ask what it was.
    """
    result = replayed(snapshot)
    if result is None or result.flops is None:
        return []
    done = number(snapshot.verified.token, "flops")
    before = policy.setup_flops if begins_from_given(snapshot) else policy.work_flops
    recording = policy.recording_flops * result.narrow
    if done <= before + recording + result.flops * (1 + policy.work_share):
        return []
    return [
        Finding(
            id="snapshot.work.unexplained",
            message="the chip did more work than the transcript accounts for; ask what it was",
            expected=f"about {result.flops} FLOPs up to this position",
            found=f"{done} FLOPs since the workload was attached",
            subject=snapshot.subject,
            severity="warning",
            evidence={"chip_flops": done, "transcript_flops": result.flops},
        )
    ]
