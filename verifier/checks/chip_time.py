"""Is a chip's time claimed once only, and is there enough of it for the work that transcripts claim to have done?

A transcript claims the time between two snapshots of a chip that it explains. While a run is at work on a chip no
other run is: a workload has the chip to itself. So snapshots of another run between two of its own mean that one of
the two did not run there then, unless the run was cut off in between and resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from verifier.checks.memory import replayed
from verifier.model.facts import Explanation, SnapshotFacts
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript

TOLERANCE = 0.01
"""Share by which the chip's clock, and a peak that was rounded in a data sheet, may be off."""
SLACK_MS = 10


def check(snapshots: Iterable[SnapshotFacts], peak: float | None) -> list[Finding]:
    """Checks the claims on one chip's time against each other, and against what the chip can do.

    Args:
        snapshots: All snapshots of one chip.
        peak: The most FLOPs that it can do a second; None if that is not known.
    """
    ordered = [each for each in sorted(snapshots, key=lambda each: each.index) if _claim(each) is not None]
    return [*_twice(ordered), *([] if peak is None else _too_much(ordered, peak))]


def _claim(snapshot: SnapshotFacts) -> tuple[bytes, OpenedTranscript, Explanation] | None:
    """Returns run, transcript and position of a snapshot that a readable transcript explains, else None.

    A run is named by its draft: of one that goes on, a later transcript tells more.
    """
    claim, facts = snapshot.explanation, snapshot.transcript
    if not isinstance(claim, Explanation) or facts is None or isinstance(facts.opened, WeighbridgeError):
        return None
    return facts.opened.draft_digest, facts.opened, claim


def _pairs(ordered: list[SnapshotFacts]) -> Iterator[tuple[int, int]]:
    """Yields the places of two snapshots of one run between which there is none of it."""
    last: dict[bytes, int] = {}
    for place, snapshot in enumerate(ordered):
        found = _claim(snapshot)
        assert found is not None
        if found[0] in last:
            yield last[found[0]], place
        last[found[0]] = place


def _cut(transcript: OpenedTranscript, first: int, second: int) -> bool:
    """Whether the run was cut off and resumed between a position in step `first` and one in step `second`."""
    return any(r.step >= first and r.begin <= second for r in transcript.resumptions)


def _twice(ordered: list[SnapshotFacts]) -> list[Finding]:
    findings = []
    for one, other in _pairs(ordered):
        between = ordered[one + 1 : other]
        found, before = _claim(ordered[other]), _claim(ordered[one])
        assert found is not None
        assert before is not None
        if not between or _cut(found[1], before[2].step, found[2].step):
            continue
        strangers = sorted({each.transcript.id for each in between if each.transcript is not None})
        findings.append(
            Finding(
                id="chip.time.twice",
                message="two transcripts claim the same time of one chip, on which only one workload runs at a time",
                expected=f"no other run between entries {ordered[one].index} and {ordered[other].index}, both of run "
                f"{found[0].hex()[:16]}",
                found=f"entry {between[0].index} of transcript {strangers[0]}",
                subject=f"chip {ordered[other].chip.ueid.hex()}",
                evidence={"transcripts": [found[2].transcript_id, *strangers]},
            )
        )
    return findings


def _too_much(ordered: list[SnapshotFacts], peak: float) -> list[Finding]:
    """Compares the work between two positions of one run with what the chip can do between the two snapshots."""
    findings = []
    for one, other in _pairs(ordered):
        earlier, later = ordered[one], ordered[other]
        found, before = _claim(later), _claim(earlier)
        results = replayed(earlier), replayed(later)
        assert found is not None
        assert before is not None
        if results[0] is None or results[1] is None or results[0].flops is None or results[1].flops is None:
            continue
        if _cut(found[1], before[2].step, found[2].step):
            continue  # it may have gone on elsewhere meanwhile
        milliseconds = later.verified.token.time_ms - earlier.verified.token.time_ms
        claimed, most = results[1].flops - results[0].flops, peak * (milliseconds + SLACK_MS) / 1000 * (1 + TOLERANCE)
        if claimed > most:
            findings.append(
                Finding(
                    id="transcript.work.impossible",
                    message="the transcript claims more work between two snapshots than the chip can do in that time",
                    expected=f"at most {most:.3g} FLOPs in {milliseconds / 1000:.3f} s",
                    found=f"{claimed} FLOPs from step {before[2].step} to step {found[2].step}",
                    subject=f"transcript {found[2].transcript_id} on chip {later.chip.ueid.hex()}",
                    evidence={"entries": [earlier.index, later.index], "flops": claimed, "peak": peak},
                )
            )
    return findings
