"""Was the transcript's draft fixed on the chip before the snapshot that it explains?"""

from __future__ import annotations

from verifier.model import sessions
from verifier.model.facts import SnapshotFacts
from weighbridge.core.errors import Finding, WeighbridgeError

EVENT = sessions.DRAFT
"""Name of the chip's log event that carries the draft's digest."""


def check(snapshot: SnapshotFacts) -> list[Finding]:
    """Looks for the draft's digest among the events that the chip logged before the snapshot.

    Without it the Prover could have written a transcript to order, once it knew what the snapshot shows.
    """
    if snapshot.transcript is None or isinstance(snapshot.transcript.opened, WeighbridgeError):
        return []
    draft = snapshot.transcript.opened.draft_digest
    if any(digest == draft for _, digest in snapshot.drafts):
        return []
    return [
        Finding(
            id="transcript.commitment.missing",
            message="the chip logged no commitment to this transcript's draft before the snapshot",
            expected=f"a {EVENT} event with {draft.hex()} before entry {snapshot.index}",
            found=", ".join(digest.hex() for _, digest in snapshot.drafts[-4:]) or f"no {EVENT} event",
            subject=f"transcript {snapshot.transcript.id} on chip {snapshot.chip.ueid.hex()}",
        )
    ]
