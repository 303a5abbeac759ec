"""How much memory did the workload hold that no snapshot could show?

A snapshot covers the storages that a kernel has met. Free blocks of an allocator, the interpreter and arrays of other
libraries are memory too, and what lies in them is not known: a second model may be kept there, though not trained
unless its work shows in the chip's counters. Honest programs hold such memory as well, so this accuses no party: it
states how large a model could lie there.
"""

from __future__ import annotations

from verifier.model.facts import SnapshotFacts, number
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED, SnapshotPolicy
from weighbridge.attest.tokens import HiddenBody
from weighbridge.core.errors import Finding

_BYTES_OF_A_WEIGHT = 2


def check(snapshot: SnapshotFacts, policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> list[Finding]:
    """Compares the memory that could not be seen with what programs usually hold, and with what was seen."""
    token = snapshot.verified.token
    if isinstance(token.body, HiddenBody):
        return []
    unseen, seen = number(token, "unobserved"), number(token, "bytes")
    most = max(policy.unobserved_bytes, policy.unobserved_share * seen)
    if unseen <= most:
        return []
    return [
        Finding(
            id="snapshot.memory.unobserved",
            message="the workload held more memory that no snapshot can show than programs usually do; what lay in it "
            f"is not known, and a model of up to {unseen // _BYTES_OF_A_WEIGHT:.3g} weights in 16 bits could",
            expected=f"at most {most:.3g} bytes beside {seen} that were seen",
            found=f"{unseen} bytes",
            subject=snapshot.subject,
            severity="info",
            evidence={"unobserved": unseen, "bytes": seen},
        )
    ]
