"""Did the segments that were replayed whole come out as the transcript says?"""

from __future__ import annotations

from dataclasses import replace

from verifier.checks.replay_outcome import UNDECIDED, mismatch, within
from verifier.model.segments import Replayed
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.program.tape_policy import IDS, INSENSITIVE


def check(replayed: Replayed) -> list[Finding]:
    """Passes on what the replays of one transcript's segments found, except about its programs and its data as a whole.

    These are judged with the snapshots, whichever segments were chosen. How steps respond each segment says itself.
    """
    findings: list[Finding] = []
    subject = f"transcript {replayed.selection.transcript}"
    for chosen in replayed.selection.chosen:
        result = replayed.results.get(chosen.begin)
        if result is None:
            continue
        if isinstance(result, WeighbridgeError):
            finding = result.finding(subject=subject)
            findings.append(replace(finding, severity="warning") if finding.id in UNDECIDED else finding)
            continue
        own = [f for f in result.findings if f.id == INSENSITIVE or (not f.id.startswith("data.") and f.id not in IDS)]
        findings += [replace(f, subject=within(subject, f.subject)) for f in own]
        if result.verdict == "mismatch" and not any(f.severity == "violation" for f in own):
            findings.append(mismatch(subject, result.first_difference))
    return findings
