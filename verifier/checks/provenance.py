"""Does the Prover's claim about a snapshot fit what the chip signed?"""

from __future__ import annotations

from verifier.facts import Explanation, SnapshotFacts
from weighbridge.errors import Finding, WeighbridgeError


def check(snapshot: SnapshotFacts) -> list[Finding]:
    """Checks that there is a claim, that its position is the one in the token, and that the running heads agree."""
    claim = snapshot.explanation
    if isinstance(claim, WeighbridgeError):
        return [claim.finding(subject=f"prover of chip {snapshot.chip.ueid.hex()}")]
    if claim is None:
        return [_unexplained(snapshot)]
    return [*_position(snapshot, claim), *_head(snapshot, claim)]


def _unexplained(snapshot: SnapshotFacts) -> Finding:
    body = snapshot.verified.token.body
    asked = "the Prover explains it by no transcript" if snapshot.chip.prover_address else "no Prover is declared for it"
    return Finding(
        id="snapshot.unexplained",
        message=f"the chip was at work and {asked}; demand the transcript of this run",
        expected="a transcript and a position",
        found=f"{body['bytes']} bytes in {body['leaves']} storages, root {_hex(body['root'])}",
        subject=snapshot.subject,
        evidence={"time_ms": snapshot.verified.token.time_ms, "safepoint": bool(body["safepoint"])},
    )


def _position(snapshot: SnapshotFacts, claim: Explanation) -> list[Finding]:
    body = snapshot.verified.token.body
    if not body["safepoint"] or (body["step"], body["op"]) == (claim.step, claim.op):
        return []
    return [
        Finding(
            id="snapshot.position.mismatch",
            message="the Prover claims another position than the workload claimed when the snapshot was taken",
            expected=f"step {body['step']} operation {body['op']}",
            found=f"step {claim.step} operation {claim.op}",
            subject=snapshot.subject,
        )
    ]


def _head(snapshot: SnapshotFacts, claim: Explanation) -> list[Finding]:
    if snapshot.transcript is None or isinstance(snapshot.transcript.opened, WeighbridgeError):
        return []
    transcript, body = snapshot.transcript.opened, snapshot.verified.token.body
    if not 0 <= claim.step < transcript.steps:
        return [
            Finding(
                id="snapshot.position.mismatch",
                message="the Prover claims a position that its transcript does not have",
                expected=f"a step below {transcript.steps}",
                found=f"step {claim.step}",
                subject=snapshot.subject,
            )
        ]
    head = transcript.head(claim.step - 1)
    if not body["safepoint"] or body["head"] == head:
        return []
    return [
        Finding(
            id="transcript.head.mismatch",
            message="the snapshot was taken in another history than this transcript tells up to that step",
            expected=_hex(body["head"]),
            found=head.hex(),
            subject=snapshot.subject,
            evidence={"transcript": claim.transcript_id, "step": claim.step},
        )
    ]


def _hex(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
