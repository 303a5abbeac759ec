"""What the programs of a transcript say about themselves: findings over all its tapes, whether or not it replays.

Replay shows that these programs made this state. Here it is asked whether they are the declared ones
(`tape.undeclared`), whether something entered them that nobody can check (`tape.free_input`), whether one of them puts
other content in the place of trained state (`tape.overwrite`), and whether weights change around the loss
(`tape.no_gradient`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weighbridge.dataflow import Flow, Overwrite, flow
from weighbridge.digests import DIGEST_SIZE
from weighbridge.errors import Finding, Severity, TapeError, WeighbridgeError
from weighbridge.gradients import Gradients
from weighbridge.origins import SCALAR_BYTES, TapeValues, analyse
from weighbridge.tape import Tape
from weighbridge.tapepolicy import AS_DESIGNED, TapePolicy
from weighbridge.transcript import Transcript

RARE = 100
"""Without declared programs, a tape that ran in fewer than one of so many steps is pointed out."""

FEW_NUMBERS = 16
"""A reset: state replaced by what so few numbers of the program make (zeros, ones, an identity matrix)."""

_SHOWN = 20


@dataclass(slots=True)
class Programs:
    """All that was found out about a transcript's tapes.

    Attributes:
        values: What entered each tape, by digest in order of first use.
        flows: Where data go in each.
        trained: Names of state that some step trains.
    """

    values: dict[bytes, TapeValues]
    flows: dict[bytes, Flow]
    trained: set[str]


def examine(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> Programs:
    """Analyses every tape of a transcript; executes nothing.

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.

    Raises:
        TapeError: A tape or formula breaks the rules.
    """
    values = analyse(transcript, tapes)
    flows = {digest: flow(tapes(digest)) for digest in values}
    trained = {name for d, f in flows.items() if values[d].kind != "init" for name in f.trained}
    return Programs(values, flows, trained)


def check(
    transcript: Transcript, tapes: Callable[[bytes], Tape], policy: TapePolicy = AS_DESIGNED
) -> tuple[dict[bytes, TapeValues], list[Finding]]:
    """Checks all tapes of a transcript.

    Returns:
        What entered each tape (empty if that could not be found out), and the findings.
    """
    try:
        programs = examine(transcript, tapes)
        return programs.values, [
            *_declared(transcript, programs, policy),
            *_free(programs, policy),
            *_overwritten(programs, tapes, policy),
            *_around(transcript, programs, tapes, policy),
        ]
    except WeighbridgeError as error:
        return {}, [error.finding(subject=f"transcript {transcript.digest}")]


def declared_programs(transcript: Transcript) -> set[bytes] | None:
    """Returns the digests of the programs that the draft declares; None if it declares none.

    Raises:
        TapeError: What it declares are no digests.
    """
    declared = transcript.draft.get("programs")
    if declared is None:
        return None
    if type(declared) is not list or not all(type(d) is bytes and len(d) == DIGEST_SIZE for d in declared):
        raise TapeError("the draft's programs are no list of digests; ask for the run to be recorded again")
    return set(declared)


def _declared(transcript: Transcript, programs: Programs, policy: TapePolicy) -> list[Finding]:
    declared = declared_programs(transcript)
    total = sum(found.steps for found in programs.values.values())
    findings = []
    for digest, found in programs.values.items():
        if declared is not None and digest not in declared:
            message = "a program ran that the draft does not declare; ask what it does, and why it ran"
            findings.append(_finding("tape.undeclared", message, found, policy.undeclared, "a declared program"))
        elif declared is None and found.kind != "init" and found.steps * RARE < total and found.first > 1:
            message = "a program ran in few steps, and the draft declares no programs; look at what it does"
            findings.append(_finding("tape.undeclared", message, found, "info", "programs declared in the draft"))
    return findings


def _free(programs: Programs, policy: TapePolicy) -> list[Finding]:
    findings = []
    everything = list(programs.values.values())
    trains = [found for found in everything if found.kind != "init"]
    tensors = [found for found in trains if found.free_tensors]
    if sum(found.free_bytes for found in tensors) > policy.free_tensors:
        findings += [_free_tensors(found, policy.free_input) for found in tensors]
    findings += [_free_tensors(found, "info") for found in everything if found.kind == "init" and found.free_tensors]
    if sum(found.free_values for found in everything) > policy.free_values:
        for found in everything:
            if found.free_values:
                unexplained = sum(name is None for name in found.changing.values())
                message = (
                    f"{unexplained} values change from step to step and follow from no declared formula; "
                    "declare them with Recorder(formulas=...)"
                )
                expected = f"at most {policy.free_values} free values in all steps"
                findings.append(
                    _finding(
                        "tape.free_input", message, found, policy.free_value, expected,
                        f"{found.free_values} free values", values=unexplained,
                    )
                )  # fmt: skip
    for found in everything:
        if found.once_bytes > policy.once_bytes:
            message = "a program that ran once holds so many constants that they may be anything"
            expected = f"at most {policy.once_bytes} bytes"
            findings.append(
                _finding(
                    "tape.free_input", message, found, policy.free_value, expected, f"{found.once_bytes} bytes",
                    bytes=found.once_bytes,
                )
            )  # fmt: skip
    return findings


def _free_tensors(found: TapeValues, severity: Severity) -> Finding:
    message = (
        "tensors entered that are neither batch nor state; pass them to step() as the batch, "
        "or to attach() if they outlive steps"
    )
    if found.kind == "init":
        message = "the initialisation took tensors from outside; ask where that model came from"
    return _finding(
        "tape.free_input", message, found, severity, "no tensors without an origin",
        f"{found.free_bytes} bytes in {len(found.free_tensors)} tensors", bytes=found.free_bytes,
    )  # fmt: skip


def _overwritten(programs: Programs, tapes: Callable[[bytes], Tape], policy: TapePolicy) -> list[Finding]:
    findings = []
    follows = _Follows(programs, tapes)
    for digest, found in programs.values.items():
        if found.kind == "init":
            continue
        accused = [(o, why) for o in programs.flows[digest].overwrites if (why := follows.accusation(digest, o))]
        if accused:
            first, why = accused[0]
            names = sorted({o.name for o, _ in accused})
            message = f"state that training changes was replaced by {why}; ask where that content came from"
            findings.append(
                _finding(
                    "tape.overwrite", message, found, policy.overwrite, "state that depends on its old value",
                    ", ".join(names[:_SHOWN])[:1000] + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""),
                    op=first.op, storages=len(names),
                )
            )  # fmt: skip
    return findings


def _around(
    transcript: Transcript, programs: Programs, tapes: Callable[[bytes], Tape], policy: TapePolicy
) -> list[Finding]:
    if transcript.notes is None:
        return []
    flows = {digest: f for digest, f in programs.flows.items() if programs.values[digest].kind != "init"}
    follows = _Follows(programs, tapes)
    gradients = Gradients(flows, tapes, set(transcript.notes.weights), programs.trained)
    findings = []
    for digest in flows:
        around = gradients.around(digest)
        for replaced in flows[digest].overwrites:
            if follows.accusation(digest, replaced):
                around.pop(replaced.name, None)  # that is `tape.overwrite`
        if around:
            names = sorted(around)
            kinds = " and ".join(sorted({kind for each in around.values() for kind in each.split(" and ")}))
            message = f"weights were changed by {kinds}, which is no gradient; ask what that training is"
            findings.append(
                _finding(
                    "tape.no_gradient", message, programs.values[digest], policy.no_gradient,
                    "weights that change through a loss of the batch only",
                    ", ".join(names[:_SHOWN])[:1000] + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""),
                    storages=len(names),
                )
            )  # fmt: skip
    return findings


class _Follows:
    """Judges overwrites: what follows from trained state (averages, gradients, targets) is nobody else's content."""

    def __init__(self, programs: Programs, tapes: Callable[[bytes], Tape]) -> None:
        self._programs, self._tapes = programs, tapes
        self._kept: set[str] = set()
        before = -1
        while len(self._kept) != before:  # what was kept may come from what was kept before
            before = len(self._kept)
            for digest, where in programs.flows.items():
                if programs.values[digest].kind != "init":
                    self._kept |= {
                        name[3:] for name, s in where.reaches.items()
                        if name.startswith("~0/") and self._follows(digest, s, "")
                    }  # fmt: skip

    def _follows(self, digest: bytes, sources: int, but: str) -> bool:
        """Whether something depends on trained state other than `but`."""
        return any(
            sources >> i & 1
            and item.name != but
            and (
                item.name in self._programs.trained
                or (item.name.startswith(("~", "kept/")) and item.name.rpartition("/")[2] in self._kept)
            )
            for i, item in enumerate(self._tapes(digest).inputs)
            if item.origin == "state"
        )

    def accusation(self, digest: bytes, overwrite: Overwrite) -> str:
        """Says what replaced trained state, or nothing if that is how training goes."""
        if overwrite.name not in self._programs.trained or self._follows(digest, overwrite.sources, overwrite.name):
            return ""
        inputs = self._tapes(digest).inputs
        if all(item.bytes <= SCALAR_BYTES for item in inputs if item.name == overwrite.name):
            return ""  # a counter; what it may have been set to is one number
        kinds = Counter(item.origin for i, item in enumerate(inputs) if overwrite.sources >> i & 1)
        parts = [
            text
            for origin, text in (
                ("free", "a free tensor"),
                ("batch", "the batch"),
                ("state", "state that no step trains"),
            )
            if kinds[origin]
        ]
        if overwrite.sources >> len(inputs):
            parts.append("random numbers")
        if not parts and overwrite.numbers > FEW_NUMBERS:
            parts.append("constants of the program")
        return " and ".join(parts)


def _finding(
    identifier: str, message: str, found: TapeValues, severity: Severity, expected: str, what: str = "", **evidence: Any
) -> Finding:
    return Finding(
        id=identifier,
        message=message,
        expected=expected,
        found=what or f"ran {found.steps} times, first in step {found.first}",
        subject=f"tape {found.digest.hex()}",
        severity=severity,
        evidence={"kind": found.kind, "steps": found.steps, "first": found.first, **evidence},
    )
