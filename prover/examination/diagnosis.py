"""Turns what an examination has seen into findings, each with its line and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prover.examination.costs import costs
from prover.examination.examine import Evidence
from weighbridge.core.errors import Finding, Severity
from weighbridge.program.tape_policy import FREE_TENSORS

REFUSED, REPORTED, SLOW, NOTE = "refused", "reported", "slow", "note"
KINDS = (REFUSED, REPORTED, SLOW, NOTE)
"""What would end a recording, what a Verifier would report, what takes long, and what is worth knowing."""

REMEDIES = {
    "unknown": "let the data set return it with the batch, or make it by recorded operations",
    "before": "make it in the script, before the first batch is fetched",
    "array": "let the data set return it with the batch; if it never changes, make it a buffer of the trained "
    "model (model.register_buffer(...)) before the first batch is fetched",
    "number": "make it a buffer of the trained model (model.register_buffer(...)) before the first batch is fetched; "
    "if it changes, let the data set return it",
    "file": "load it into the model before the first batch is fetched",
    "loader": "use it in the step that fetched it, or keep a copy (.clone())",
    "evaluation": "record evaluations too: --evaluation recorded",
}
"""What to do about a tensor without an origin, by where it came from (`entry_notes.CAUSES`), in a followed script."""

_WORTH_KNOWING: tuple[str, Severity] = NOTE, "info"
_HELD_AGAINST: tuple[str, Severity] = REPORTED, "violation"
_OF_STEPS = "set it by a scheduler of PyTorch's, or declare it: prover.follow(..., formulas=...), see prover.formulas"
_OF_LINES = "compute it by tensor operations from what is recorded, or declare it by follow(..., formulas=...)"
_SHARE = 0.1
"""A line that takes this part of a recorded step is told of as slow."""


@dataclass(slots=True)
class Diagnosis:
    """What was found out about a script.

    Attributes:
        script: Its path.
        steps: How many steps were recorded.
        ended: `enough` after the steps that were asked for, `itself`, or `failed`; None if it never answered.
        findings: What was found; `evidence` has `kind` (one of `KINDS`), `remedy` and what else is known.
        costs: What recording costs (`prover.examination.costs`).
        arithmetic: By device: what is wrong with it, None if it conforms.
        verdict: Of the replay of these steps; None if there was none.
        replay_seconds: How long the replay took, its start included.
        output: The last lines of a script that failed.
    """

    script: str
    steps: int
    ended: str | None
    findings: list[Finding] = field(default_factory=list)
    costs: dict[str, Any] = field(default_factory=dict)
    arithmetic: dict[str, str | None] = field(default_factory=dict)
    verdict: str | None = None
    replay_seconds: float = 0.0
    output: list[str] = field(default_factory=list)

    @property
    def clear(self) -> bool:
        """Whether nothing stands in the way of a recording."""
        return all(finding.severity == "info" for finding in self.findings)


def diagnose(seen: Evidence) -> Diagnosis:
    """Returns what an examination shows."""
    answers = seen.followed.answers
    first: dict[str, Any] = answers[0] if answers else {}
    found = Diagnosis(
        str(seen.request.script),
        min((answer.get("steps", 0) for answer in answers), default=0),
        first.get("ended"),
        costs=costs(seen),
        verdict=seen.verdict,
        replay_seconds=seen.replay_seconds,
    )
    for answer in answers:
        found.arithmetic |= answer["devices"]
    found.findings = _once(
        [
            *_arithmetic(found),
            *_obstacles(answers),
            *_failures(seen, found),
            *_replayed(seen, answers),
            *_undeclared(answers),
            *_slow(seen, found),
            *_notes(answers),
        ]
    )
    return found


def _finding(
    kind: str, identifier: str, message: str, remedy: str = "", line: str = "", severity: Severity = "violation",
    **evidence: Any,
) -> Finding:  # fmt: skip
    told = {key: value for key, value in evidence.items() if value not in (None, "")}
    return Finding(
        id=identifier, message=message, subject=line, severity=severity,
        evidence={"kind": kind, "remedy": remedy, **told},
    )  # fmt: skip


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Leaves out what another rank said too."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.id, finding.message, finding.subject), finding)
    return sorted(kept.values(), key=lambda finding: KINDS.index(finding.evidence["kind"]))


def _arithmetic(found: Diagnosis) -> Iterator[Finding]:
    for device, fault in found.arithmetic.items():
        if fault is not None:
            what, _, remedy = fault.partition("; ")
            yield _finding(REFUSED, "device.arithmetic", what, remedy, device=device)


def _obstacles(answers: list[dict[str, Any]]) -> Iterator[Finding]:
    for answer in answers:
        for each in answer["obstacles"]:
            yield _finding(
                REFUSED, each["id"], each["what"], each["remedy"], each["line"], module=each["module"],
                operation=each["operation"], steps=each["steps"],
            )  # fmt: skip


def _failures(seen: Evidence, found: Diagnosis) -> Iterator[Finding]:
    """What is wrong with the script as a whole."""
    followed, plain = seen.followed, seen.plain
    if seen.arrays is not None:
        message = "an array on recorded memory is written to, which no replay could repeat: it is read-only then"
        remedy = "write to a copy (.numpy().copy()), or change the tensor by PyTorch's operations under no_grad()"
        yield _finding(REFUSED, "record.script.differs", message, remedy, seen.arrays["line"])
    if followed.timed_out:
        message = f"the script had not ended {seen.request.steps} steps after {seen.request.seconds:.0f} s"
        yield _finding(REFUSED, "record.script.failed", message, "allow more with --seconds, or ask for fewer --steps")
        return
    if len(followed.answers) < seen.request.ranks:
        found.output = followed.output
        message = "the script's process ended at once, without an exception"
        yield _finding(REFUSED, "record.script.failed", message, "run the script without Weighbridge first")
        return
    failure = next((answer["failure"] for answer in followed.answers if answer["failure"] is not None), None)
    if failure is None:
        return
    found.output = followed.output
    by_itself = plain is not None and any(answer["failure"] is not None for answer in plain.answers)
    if by_itself:
        message, remedy = f"the script fails by itself: {failure['what']}", "make it run without Weighbridge first"
        yield _finding(REFUSED, "record.script.failed", message, remedy, failure["line"])
        return
    message = f"the script fails only while it is recorded: {failure['what']}"
    remedy = "write this line in another way"
    if failure["ours"]:
        remedy = "this is a fault of Weighbridge's; report it with the output above"
    yield _finding(REFUSED, "record.script.differs", message, remedy, failure["line"])


def _replayed(seen: Evidence, answers: list[dict[str, Any]]) -> Iterator[Finding]:
    """What a Verifier says of the steps that were recorded."""
    refused = any(answer["obstacles"] for answer in answers)
    lines = {digest: each for answer in answers for digest, each in answer.get("values", {}).items()}
    if seen.fault is not None:
        yield _finding(REPORTED, seen.fault.reason, seen.fault.message, "report this: it is a fault of Weighbridge's")
    for result in seen.replays:
        for finding in result.findings:
            if finding.id == "tape.free_input" and "bytes" in finding.evidence:
                continue  # said by line, in `_undeclared`
            if finding.id == "tape.free_input" and "values" in finding.evidence:
                yield from _values(finding, lines.get(finding.subject.rpartition(" ")[2], []))
            elif not (refused and finding.id.startswith("tape.")) and finding.severity != "info":
                what, _, remedy = finding.message.partition("; ")
                yield _finding(REPORTED, finding.id, what, remedy, severity=finding.severity, found=finding.found)
        if result.verdict != "match":
            where = result.first_difference or {}
            message = f"the recorded steps replay as {result.verdict}"
            yield _finding(
                REPORTED, "replay.mismatch", message, "report this: it is a fault of Weighbridge's",
                operation=where.get("operation"), step=where.get("step"),
            )  # fmt: skip


def _values(finding: Finding, lines: list[str]) -> Iterator[Finding]:
    """Numbers that change from step to step, by line."""
    for line in lines:
        message = "a number that changes from step to step follows from no declared formula"
        remedy = _OF_STEPS if ".step(" in line else _OF_LINES
        yield _finding(REPORTED, finding.id, message, remedy, line, finding.severity)


def _undeclared(answers: list[dict[str, Any]]) -> Iterator[Finding]:
    """Tensors without an origin, by line."""
    entering = [each for answer in answers for each in answer.get("undeclared", ())]
    small = sum(each["bytes"] for each in entering if each["step"]) <= FREE_TENSORS
    for answer in answers:
        lines: dict[str, list[dict[str, Any]]] = {}
        for each in answer.get("undeclared", ()):
            lines.setdefault(each["line"], []).append(each)
        for line, entered in lines.items():
            first = min(entered, key=lambda each: (each["step"] == 0, each["step"]))
            tensor = f"a tensor ({first['dtype'].removeprefix('torch.')}, shape {tuple(first['shape'])})"
            others = f", and {len(entered) - 1} more," if len(entered) > 1 else ""
            facts = {"module": first["module"], "steps": sorted({each["step"] for each in entered})}
            if first["step"] == 0:
                message = f"{tensor}{others} entered the initialisation from outside: {first['cause']}"
                yield _finding(NOTE, "tape.free_input", message, "", line, "info", **facts)
            else:
                message = f"{tensor}{others} enters the training undeclared: {first['cause']}"
                few = small and len(facts["steps"]) == 1  # what enters in every step is much in the end
                kind, grave = _WORTH_KNOWING if few else _HELD_AGAINST
                yield _finding(kind, "tape.free_input", message, REMEDIES[first["source"]], line, grave, **facts)


def _slow(seen: Evidence, found: Diagnosis) -> Iterator[Finding]:
    """Where a recorded step spends its time, if it spends much more than the plain one."""
    recorded = found.costs.get("lines", [])
    whole = sum(line["seconds"] for line in recorded)
    for line in recorded:
        if whole and line["seconds"] >= _SHARE * whole and line["line"]:
            plain = "" if line["plain_seconds"] is None else f", {1e3 * line['plain_seconds']:.1f} ms unrecorded"
            message = (
                f"{1e3 * line['seconds']:.1f} ms of a recorded step's {1e3 * whole:.1f} ms of operations{plain}; most "
                f"of it in {line['operation']}"
            )
            yield _finding(SLOW, "record.script.slow", message, "", line["line"], "info", calls=line["calls"])
    keeping, step = found.costs.get("keeping_seconds"), found.costs.get("step_seconds")
    if keeping and step and keeping > 0.5 * step:
        message = f"{1e3 * keeping:.1f} ms of a recorded step's {1e3 * step:.1f} ms go into hashing and writing it"
        remedy = "this matters less the more a step computes; verify_state=False of prover.follow leaves some of it out"
        yield _finding(SLOW, "record.script.slow", message, remedy, "", "info")
    yield from _programs(seen, found)


def _programs(seen: Evidence, found: Diagnosis) -> Iterator[Finding]:
    """Whether every step has a program of its own, as far as nothing was refused in them."""
    programs = found.costs.get("programs", 0)
    if found.steps <= 3 or programs < found.steps or any(answer["obstacles"] for answer in seen.followed.answers):
        return
    message = f"each of the {found.steps} steps consists of other operations than those before it"
    structure = seen.replays[0].chosen.get("structure") if seen.replays else None
    if structure is not None and structure["budget"] and structure["bits"]:
        most = int(structure["budget"] * programs / structure["bits"])
        message += (
            f"; if that goes on, the bits that a Verifier lets programs choose are used up after some {most:,} steps, "
            "and then it reports transcript.chosen_bits"
        )
    remedy = "keep numbers (.item()) and not tensors of earlier steps, such as losses for a log"
    if found.costs["batches"] > 1:
        remedy = "pad batches to a few lengths, so that steps share their programs"
    yield _finding(SLOW, "record.script.slow", message, remedy, "", "info")


def _notes(answers: list[dict[str, Any]]) -> Iterator[Finding]:
    for answer in answers:
        for what, line in answer["notes"]:
            yield _finding(NOTE, "record.script.noted", what, "", line, "info")
        for each in answer.get("taken", ()):
            tensor = f"a tensor ({each['dtype'].removeprefix('torch.')}, shape {tuple(each['shape'])})"
            message = f"{tensor} is taken for part of the batch, since the script fetches none"
            remedy = "nothing to do if it is data"
            yield _finding(NOTE, "record.script.noted", message, remedy, each["line"], "info", name=each["name"])
