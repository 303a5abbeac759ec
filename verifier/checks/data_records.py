"""Are the records that the Verifier asked to see those that were committed to before training?"""

from __future__ import annotations

from verifier.model.opened_records import RecordFacts
from weighbridge.core.errors import Finding, FormatError, ProofError, WeighbridgeError
from weighbridge.transcript.record_opening import verify


def check(facts: RecordFacts) -> list[Finding]:
    """Checks every opened record against the root in the draft, and that every record that was used was opened.

    A record that no step used need not be there any more: the commitment holds the Prover to its digest only.
    """
    subject = f"transcript {facts.id}"
    if isinstance(facts.opened, WeighbridgeError):
        return [facts.opened.finding(subject=subject)]
    findings = []
    for each in facts.opened:
        try:
            verify(each, facts.root, facts.count)
        except (FormatError, ProofError) as error:
            findings.append(
                Finding(
                    id="data.record.differs",
                    message=f"The record that was opened as number {each.record} is not the one that was committed to: "
                    f"{error.message}",
                    expected=f"record {each.record} under the root {facts.root.hex()}",
                    found=f"{len(each.content)} bytes",
                    subject=f"{subject}: record {each.record}",
                )
            )
    hidden = sorted(facts.used - {each.record for each in facts.opened})
    if hidden:
        findings.append(
            Finding(
                id="data.record.unopened",
                message="the Prover does not open records that its transcript used; demand them",
                expected=f"{len(facts.used)} records that were used",
                found=f"{len(hidden)} of them missing, such as {', '.join(map(str, hidden[:8]))}",
                subject=subject,
                severity="warning",
                evidence={"records": hidden[:100]},
            )
        )
    return findings
