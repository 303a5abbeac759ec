"""What the replay up to the snapshot's position found."""

from __future__ import annotations

from dataclasses import replace

from verifier.model.facts import MATCHES, SnapshotFacts, digest
from weighbridge.attest.tokens import shown
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.program import tape_policy

UNDECIDED = ("replay.worker", "replay.rules.unknown", "replay.calibration.unknown", "device.arithmetic")
"""Why there was no replay, without anything said about the Prover: the snapshot counts as not verified."""


def check(snapshot: SnapshotFacts) -> list[Finding]:
    """Passes on the replay's findings; a running digest that differs from the chip's is one more."""
    result = snapshot.replayed
    if result is None or snapshot.transcript is None:
        return []
    subject = f"transcript {snapshot.transcript.id}"
    if isinstance(result, WeighbridgeError):
        finding = result.finding(subject=subject)
        return [replace(finding, severity="warning") if finding.id in UNDECIDED else finding]
    findings = [
        replace(finding, subject=within(subject, finding.subject))
        for finding in result.findings
        if finding.id not in tape_policy.IDS  # see `tapes`
    ]
    if result.verdict == "mismatch" and not any(finding.severity == "violation" for finding in findings):
        findings.append(mismatch(subject, result.first_difference))
    token = snapshot.verified.token
    if result.verdict in MATCHES and shown(token)["safepoint"] and result.running is not None:
        signed = digest(token, "running")
        if signed.hex() != result.running:
            findings.append(
                Finding(
                    id="snapshot.running.mismatch",
                    message="the chip was told of other operations in this step than the transcript holds",
                    expected=signed.hex(),
                    found=result.running,
                    subject=snapshot.subject,
                )
            )
    return findings


def within(subject: str, inner: str) -> str:
    """Names a finding's subject inside its transcript."""
    return subject if not inner or inner in subject else f"{subject}: {inner}"


def mismatch(subject: str, difference: object) -> Finding:
    """The worker's answer is not trusted to be complete: a mismatch is never silent."""
    place = difference if isinstance(difference, dict) else {}
    return Finding(
        id="replay.mismatch",
        message="the replay does not reproduce what the transcript says",
        expected=str(place.get("expected", "")),
        found=str(place.get("found", "")),
        subject=subject,
        evidence={name: value for name, value in place.items() if isinstance(value, (str, int))},
    )
