"""Are results of collectives that a rank's replay took as given what all ranks contributed to them?"""

from __future__ import annotations

from dataclasses import replace

from verifier.model.facts import SnapshotFacts
from weighbridge.core.errors import Finding, WeighbridgeError

TAIL = "job.tail"
"""A crash of another rank cut off what would be needed."""


def check(snapshot: SnapshotFacts) -> list[Finding]:
    """Passes on what the check of opened chunks found, or why the results are not there."""
    cell = snapshot.cell
    if cell is None:
        return []
    if isinstance(cell, WeighbridgeError):
        finding = cell.finding(subject=snapshot.subject)
        return [replace(finding, severity="info") if finding.id == TAIL else finding]
    return cell.findings
