"""What the programs of a transcript say about themselves: findings over all its tapes, whether or not it replays.

Replay shows that these programs made this state. Here it is asked whether they are the declared ones
(`tape.undeclared`), whether something entered them that cannot be checked (`tape.free_input`), whether one of them puts
other content in the place of trained state (`tape.overwrite`), whether weights change around the loss
(`tape.no_gradient`), and whether the declared weights are all that are trained (`tape.weights.undeclared`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import Finding, Severity, TapeError, WeighbridgeError
from weighbridge.program import gradients
from weighbridge.program.brought_state import beside_training, brought
from weighbridge.program.content import PERHAPS, Roles
from weighbridge.program.dataflow import Flow, flow
from weighbridge.program.entering_tensors import entering, values_entering
from weighbridge.program.idle_inputs import idle_leftovers, idle_names
from weighbridge.program.origins import SCALAR_BYTES, TapeValues, analyse
from weighbridge.program.own_tensors import returned
from weighbridge.program.roles import roles
from weighbridge.program.tape_policy import AS_DESIGNED, TapePolicy
from weighbridge.program.whole_run import Course, Followed, follow
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

RARE = 100
"""Without declared programs, a tape that ran in fewer than one of so many steps is pointed out."""

_SHOWN = 20


@dataclass(slots=True)
class Programs:
    """All that was found out about a transcript's tapes.

    Attributes:
        values: What entered each tape, by digest in order of first use.
        flows: Where data go in each.
        own: By tape and name of an undeclared tensor, the state of an earlier step that it holds.
        roles: What the state of the run is for.
        followed: What the run did to its state, over all steps.
        course: The steps.
    """

    values: dict[bytes, TapeValues]
    flows: dict[bytes, Flow]
    own: dict[bytes, dict[str, set[str]]]
    roles: Roles
    followed: Followed
    course: Course

    def brought(self, transcript: Transcript, tapes: Callable[[bytes], Tape], step: int) -> set[str]:
        """Returns the names of state before a step that the run did not make: it was given, or nothing but looked at.

        Args:
            transcript: The transcript.
            tapes: Returns the tape of a digest.
            step: The step.

        Raises:
            TapeError: A tape is malformed, or too large to follow.
        """
        return brought(self.course, tapes, self.roles, step) | idle_leftovers(transcript, tapes)

    def beside_training(self, tapes: Callable[[bytes], Tape]) -> Callable[[str], bool]:
        """Returns a test of state by its name: whether it holds neither weights nor what follows from them alone.

        Args:
            tapes: Returns the tape of a digest.

        Raises:
            TapeError: A tape is malformed.
        """
        return beside_training(self.course, tapes, self.roles)


def examine(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> Programs:
    """Analyses every tape of a transcript; executes nothing.

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.

    Raises:
        TapeError: A tape or formula breaks the rules.
    """
    values = analyse(transcript, tapes)
    course = Course.of(transcript.records(), tapes)
    course.returned = returned(transcript)
    own = course.came_back()
    flows = {digest: flow(tapes(digest), own.get(digest, {})) for digest in values}
    later = {ran.tape for ran in course.steps if not ran.init}
    training = {digest: each for digest, each in flows.items() if digest in later}
    declared = () if transcript.notes is None else transcript.notes.weights
    found = roles(course, tapes, training, declared)
    return Programs(values, flows, own, found, follow(course, tapes, found), course)


def check(
    transcript: Transcript,
    tapes: Callable[[bytes], Tape],
    policy: TapePolicy = AS_DESIGNED,
    examined: Programs | None = None,
) -> tuple[dict[bytes, TapeValues], list[Finding]]:
    """Checks all tapes of a transcript.

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.
        policy: What is allowed.
        examined: What `examine` returned for them, if that is known.

    Returns:
        What entered each tape (empty if that could not be found out), and the findings.
    """
    try:
        programs = examine(transcript, tapes) if examined is None else examined
        return programs.values, [
            *_declared(transcript, programs, policy),
            *_undeclared(transcript, programs, tapes, policy),
            *_overwritten(programs, policy),
            *_around(transcript, programs, policy),
            *_incomplete(transcript, programs, tapes, policy),
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


def _undeclared(
    transcript: Transcript, programs: Programs, tapes: Callable[[bytes], Tape], policy: TapePolicy
) -> list[Finding]:
    findings = []

    def tensors_of(found: TapeValues, severity: Severity) -> Finding:
        named = entering(tapes(found.digest), transcript.entered, found)
        return _undeclared_tensors(found, severity, named, policy.free_tensors)

    everything = list(programs.values.values())
    trains = [found for found in everything if found.kind != "init"]
    tensors = [found for found in trains if found.undeclared_tensors]
    many = sum(found.undeclared_bytes for found in tensors) > policy.free_tensors
    findings += [tensors_of(found, policy.free_input if many else "info") for found in tensors]
    for found in everything:
        if found.kind == "init" and found.undeclared_tensors.keys() - idle_names(transcript, tapes):
            findings.append(tensors_of(found, "info"))
    budget = policy.budgets.get("values", math.inf)
    if sum(found.undeclared_values for found in everything) > policy.free_values:
        chosen = math.fsum(bits for found in everything for bits in found.value_bits.values())
        for found in everything:
            if found.undeclared_values:
                findings.append(_undeclared_values(found, tapes(found.digest), chosen, budget, policy))
    beside = [found for found in everything if found.value_bits and not found.undeclared_values]
    bits = {found.digest: math.fsum(found.value_bits.values()) for found in beside}
    if math.fsum(bits.values()) > budget:
        found = max(beside, key=lambda each: bits[each.digest])
        step = max(found.value_bits, key=lambda each: (found.value_bits[each], -each))
        message = (
            f"values lie beside the formulas that explain them, most in step {step}; all such values together may be "
            "weights made elsewhere. A Recorder of this version executes with the formulas' own values"
        )
        findings.append(
            _finding(
                "tape.free_input", message, found, policy.free_value, f"at most {budget:,.0f} bits of values",
                f"{math.fsum(bits.values()):,.0f} bits", bits=math.fsum(bits.values()), step=step,
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


def _undeclared_values(found: TapeValues, tape: Tape, chosen: float, budget: float, policy: TapePolicy) -> Finding:
    """Accuses no Prover while all values of a run together bring in too little to be weights."""
    unexplained = [position for position, name in sorted(found.changing.items()) if name is None]
    message = (
        f"{len(unexplained)} values change from step to step and follow from no declared formula. If they are rates "
        "or the like, have the run declare how they follow from the step: follow(formulas=...) or "
        "Recorder(formulas=...), or a scheduler of torch.optim, whose formulas are read"
    )
    return _finding(
        "tape.free_input", message, found, policy.free_value if chosen > budget else "info",
        f"at most {policy.free_values} undeclared values in all steps",
        f"{found.undeclared_values} undeclared values: {'; '.join(values_entering(tape, unexplained, found))}; all "
        f"values of the run chose {chosen:,.0f} bits, and {budget:,.0f} accuse no party", values=len(unexplained),
    )  # fmt: skip


def _undeclared_tensors(found: TapeValues, severity: Severity, named: list[str], allowed: int) -> Finding:
    message = (
        "tensors entered that are neither batch nor state; pass them to step() as the batch, "
        "or to attach() if they outlive steps"
    )
    if found.kind == "init":
        message = "the initialisation took tensors from outside; ask where that model came from"
        if all(size <= SCALAR_BYTES * steps for steps, size in found.undeclared_tensors.values()):
            message = "the initialisation took single numbers from outside, as modules' counters are"
    return _finding(
        "tape.free_input", message, found, severity, f"at most {allowed} bytes without an origin in all steps",
        f"{found.undeclared_bytes} bytes in {len(found.undeclared_tensors)} tensors: {'; '.join(named)}",
        bytes=found.undeclared_bytes,
    )  # fmt: skip


def _overwritten(programs: Programs, policy: TapePolicy) -> list[Finding]:
    findings = []
    for digest, replaced in programs.followed.replaced.items():
        for perhaps in (False, True):
            accused = [each for each in replaced.values() if each.why() and bool(each.foreign & PERHAPS) is perhaps]
            if not accused:
                continue
            first = min(accused, key=lambda each: (each.op, each.name))
            message = f"state that training changes was replaced by {first.why()}; ask where that content came from"
            if perhaps:
                message = (
                    f"weights were written to by index or mask, perhaps everywhere, from {first.why()}; look at where, "
                    "and ask where that content came from"
                )
            findings.append(
                _finding(
                    "tape.overwrite", message, programs.values[digest],
                    policy.perhaps_overwritten if perhaps else policy.overwrite, "state that depends on its old value",
                    _listed({each.name for each in accused}), op=first.op, storages=len(accused),
                )
            )  # fmt: skip
    return findings


def _around(transcript: Transcript, programs: Programs, policy: TapePolicy) -> list[Finding]:
    findings = []
    declared = () if transcript.notes is None else transcript.notes.weights
    for digest, writes in programs.followed.writes.items():
        replaced = programs.followed.replaced.get(digest, {})
        around = {name: why for name, why in gradients.around(writes, declared).items() if name not in replaced}
        if around:
            kinds = " and ".join(sorted({kind for each in around.values() for kind in each.split(" and ")}))
            message = f"weights were changed by {kinds}, which is no gradient; ask what that training is"
            findings.append(
                _finding(
                    "tape.no_gradient", message, programs.values[digest], policy.no_gradient,
                    "weights that change through a loss of the batch only", _listed(set(around)), storages=len(around),
                )
            )  # fmt: skip
    return findings


def _incomplete(
    transcript: Transcript, programs: Programs, tapes: Callable[[bytes], Tape], policy: TapePolicy
) -> list[Finding]:
    if transcript.notes is None:
        return []
    sizes = {
        item.name: item.bytes for digest in programs.values for item in tapes(digest).inputs if item.origin == "state"
    }
    names, none = gradients.undeclared(
        transcript.notes.weights,
        programs.roles,
        sizes,
        {digest: programs.own.get(digest, {}) for digest in programs.flows},
        tapes,
    )
    size = sum(sizes[name] for name in names)
    if size <= policy.undeclared_weights:
        return []
    message = (
        "the run trains by gradients, and declares no weights to its chip; ask for their declaration"
        if none
        else "state beside the declared weights is trained by gradients and not declared; declare it as a parameter"
    )
    return [
        Finding(
            id="tape.weights.undeclared",
            message=message,
            expected="all state that is trained by gradients among the declared weights",
            found=_listed(names),
            subject=f"transcript {transcript.digest}",
            severity=policy.no_weights if none else policy.fewer_weights,
            evidence={"storages": len(names), "bytes": size},
        )
    ]


def _listed(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:_SHOWN])[:1000] + (f" and {len(shown) - _SHOWN} more" if shown[_SHOWN:] else "")


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
