"""Did Provers commit in time to the logs that were due while their runs went on, and hand out those and no others?

A machine that broke explains a commitment that is late or missing, and so does a Prover who committed to what it did
not compute. So that is a warning, and nothing of it counts as verified. Two different logs of one segment, one in the
chip's log and one handed out, no machine explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from verifier.model.repeat_facts import Repeat, RunRepeats, State
from weighbridge.core.errors import Finding, Severity, WeighbridgeError

UNCOUNTED = "its steps do not count as verified, nor does its chip"


def check(runs: Iterable[RunRepeats]) -> list[Finding]:
    """Says what is wrong with the segments of each run that declares repeats."""
    return [finding for run in runs for finding in _of_run(run)]


def _of_run(run: RunRepeats) -> Iterator[Finding]:
    subject = f"transcript {run.transcript}"
    if isinstance(run.declared, WeighbridgeError):
        yield Finding(
            id="transcript.repeat.malformed",
            message=f"what the draft declares of repeats cannot be read: {run.declared.message[:500]}",
            subject=subject,
        )
        return
    if not run.known:
        yield Finding(
            id="transcript.repeat.beacon",
            message="the run lets a beacon name segments to repeat while it goes on, and this Verifier has another "
            "beacon or none: whether it repeated them was not looked at; give the Verifier that beacon (--beacon)",
            expected="the beacon that the draft names",
            found=f"beacon {run.declared.beacon.hex()} named",
            subject=subject,
            severity="warning",
        )
        return
    for ueid, index in run.abandoned:
        yield Finding(
            id="transcript.repeat.abandoned",
            message="the chip logged the end of a segment that the transcript does not have: the run was taken back "
            "and recorded otherwise, perhaps because the logs of that segment were due; ask what happened to it",
            expected="the end of a segment of the transcript",
            found=f"another one in entry {index}",
            subject=f"{subject} on chip {ueid.hex()} entry {index}",
            severity="warning",
        )
    for segment in run.unrepeated:
        yield _of_segment(run, segment, subject)


def _of_segment(run: RunRepeats, segment: Repeat, subject: str) -> Finding:
    identifier, say, severity = _FINDINGS[segment.state]
    message, expected, found = say(segment)
    return Finding(
        id=identifier,
        message=f"{message}; {UNCOUNTED}",
        expected=expected,
        found=found,
        subject=f"{subject}: steps {segment.begin} to {segment.end - 1}",
        severity=severity,
        evidence={
            "begin": segment.begin, "end": segment.end, "round": segment.round, "entry": segment.index,
            "by_ms": segment.by_ms, "came_ms": segment.came_ms, "chips": [ueid.hex() for ueid in run.chips],
        },
    )  # fmt: skip


Said = tuple[str, str, str]
_IN_TIME = "a commitment to its logs, at the witness in time"


def _unlogged(segment: Repeat) -> Said:
    message = "no chip that was drawn logged the end of the segment, so it could never become due"
    return message, "an event `segment` with its running head", "none"


def _unwitnessed(segment: Repeat) -> Said:
    message = (
        "by the chip's clock its witness did not have the end of the segment within the declared delay, so it became "
        "due too late or not at all; see that the chip reaches its witness"
    )
    return message, "a contact within the declared delay", f"entry {segment.index} later, or never"


def _unvalued(segment: Repeat) -> Said:
    message = (
        "whether the segment was due is not known, as the beacon's value is not here or does not verify; put it into "
        "the beacon's directory and inspect again"
    )
    return message, f"the value of round {segment.round}", "none"


def _missing(segment: Repeat) -> Said:
    message = (
        f"the logs of the segment were due while the run went on, by round {segment.round}, and the witness never had "
        "a commitment to them; ask why the machine that had just recorded it could not repeat it"
    )
    return message, _IN_TIME, "none"


def _late(segment: Repeat) -> Said:
    assert segment.by_ms is not None
    assert segment.came_ms is not None
    message = (
        f"the logs of the segment were due while the run went on, by round {segment.round}, and the commitment to them "
        "came later than declared; ask why"
    )
    return message, _IN_TIME, f"one that came {(segment.came_ms - segment.by_ms) / 1000:g} s late"


def _unanswered(segment: Repeat) -> Said:
    message = (
        "the Prover committed to the logs of the segment while the run went on, so it had them, and does not hand them "
        "out now; ask for its RUN.supplements, from a backup if need be"
    )
    return message, "the logs that were committed to", "none"


def _differs(segment: Repeat) -> Said:
    assert segment.told is not None
    message = (
        "the Prover hands out other logs of the segment than those it committed to while the run went on; one of the "
        "two was made up, and both are signed: the Prover must explain this"
    )
    return message, " or ".join(each.hex() for each in segment.committed[:4]), segment.told.hex()


_FINDINGS: dict[State, tuple[str, Callable[[Repeat], Said], Severity]] = {
    "unlogged": ("transcript.repeat.unlogged", _unlogged, "warning"),
    "unwitnessed": ("transcript.repeat.unwitnessed", _unwitnessed, "warning"),
    "unvalued": ("transcript.repeat.value", _unvalued, "warning"),
    "missing": ("transcript.repeat.missing", _missing, "warning"),
    "late": ("transcript.repeat.late", _late, "warning"),
    "unanswered": ("transcript.repeat.unanswered", _unanswered, "warning"),
    "differs": ("transcript.repeat.differs", _differs, "violation"),
}
