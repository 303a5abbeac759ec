"""Is the transcript whole, and are its batches the data that was committed to?"""

from __future__ import annotations

from dataclasses import replace

from verifier.model.facts import TranscriptFacts
from weighbridge.core.errors import Finding, WeighbridgeError


def check(transcript: TranscriptFacts) -> list[Finding]:
    """Reports why a transcript cannot be used, or what its data commitment does not cover."""
    subject = f"transcript {transcript.id}"
    if isinstance(transcript.opened, WeighbridgeError):
        return [transcript.opened.finding(subject=subject)]
    try:
        found = transcript.opened.check_data()
    except WeighbridgeError as error:
        return [error.finding(subject=subject)]
    return [
        replace(finding, subject=f"{subject}: {finding.subject}" if finding.subject else subject) for finding in found
    ]
