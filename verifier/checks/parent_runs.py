"""Did each run begin where it says: from a seed that was replayed, or from the state of a parent that held it?"""

from __future__ import annotations

from verifier.model.lineage import Lineage
from verifier.model.policies import TRANSCRIPTS_AS_DESIGNED, TranscriptPolicy
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.parentage import Parent, unexplained


def check(line: Lineage, policy: TranscriptPolicy = TRANSCRIPTS_AS_DESIGNED) -> list[Finding]:
    """Checks the beginning of one run."""
    if isinstance(line.parent, WeighbridgeError):
        return [line.parent.finding(subject=f"transcript {line.id}")]
    if line.parent is not None:
        return _declared(line, line.parent)
    if not line.entered:
        return []
    if line.elsewhere:
        return [_split(line)]
    if policy.origin == "accepted":
        return []
    return [
        Finding(
            id="transcript.origin.undeclared",
            message="the run began from content that no recorded program made, and declares no parent that held it; "
            "ask where it came from",
            expected="an initialisation that was recorded, or Recorder(parent=...)",
            found=f"{line.bytes} bytes in {line.entered.total()} storages",
            subject=f"transcript {line.id}",
            severity=policy.origin,
            evidence={"bytes": line.bytes},
        )
    ]


def _split(line: Lineage) -> Finding:
    parent, size = max(line.elsewhere.items(), key=lambda item: (item[1], item[0]))
    return Finding(
        id="transcript.run.split",
        message="the run goes on from what another run had trained, and does not declare it as its parent; count the "
        "two as one run",
        expected=f"the parent {parent} declared in the draft",
        found=f"{size} of the {line.bytes} bytes that it began from were made by that run",
        subject=f"transcript {line.id}",
        evidence={"transcripts": sorted(line.elsewhere), "bytes": size},
    )


def _declared(line: Lineage, parent: Parent) -> list[Finding]:
    if not isinstance(line.found, OpenedTranscript):
        why = line.found.message if isinstance(line.found, WeighbridgeError) else "no Prover was asked"
        return [
            Finding(
                id="transcript.parent.missing",
                message=f"the transcript that the run declares as its parent cannot be had ({why}); demand it",
                expected=parent.transcript,
                found="no transcript",
                subject=f"transcript {line.id}",
                severity="warning",
            )
        ]
    steps = line.found.steps
    named = line.found.state(parent.step - 1) if parent.step <= steps else b""
    if named != parent.state:
        return [
            _mismatch(
                line, parent, f"state {parent.state.hex()}", f"state {named.hex()}" if named else f"{steps} steps only"
            )
        ]
    if isinstance(line.held, WeighbridgeError):
        return [
            Finding(
                id="transcript.parent.unverified",
                message=f"what the parent held could not be recomputed here, so it was not compared: "
                f"{line.held.message}",
                expected=f"the state before step {parent.step} of {parent.transcript}",
                found=line.held.reason,
                subject=f"transcript {line.id}",
                severity="info",
            )
        ]
    foreign = 0 if line.held is None else unexplained(line.entered, line.held)
    if not foreign:
        return []
    return [_mismatch(line, parent, f"{line.bytes} bytes of that state", f"{foreign} bytes that it does not hold")]


def _mismatch(line: Lineage, parent: Parent, expected: str, found: str) -> Finding:
    return Finding(
        id="transcript.parent.mismatch",
        message="the run did not begin from the state that it declares as its parent",
        expected=expected,
        found=found,
        subject=f"transcript {line.id}",
        evidence={"parent": parent.transcript, "step": parent.step},
    )
