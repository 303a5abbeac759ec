"""Is what each run's programs do to its weights recognised as training?

None of this accuses a party: honest programs train in ways that are not recognised, and a step that was not looked at
says nothing. Who wants it to count makes it a rule (`run.training`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from verifier.model.training import Training, reasons
from weighbridge.core.errors import Finding

_SHOWN = 6


def check(trainings: Iterable[Training]) -> list[Finding]:
    """Names the programs of each run that are not recognised, and those of which nothing is known."""
    return [finding for each in trainings for finding in (_none(each), _unknown(each)) if finding is not None]


def _none(training: Training) -> Finding | None:
    programs = [each for each in training.programs if each.outcome == "not recognised"]
    if not programs:
        return None
    steps = [step for each in programs for step in each.steps if step.known and not step.recognised]
    return _finding(
        training,
        "recognition.none",
        f"what {_few(len(programs))} of the run to weights is not recognised as training; read why, and what the "
        "program computes (`weighbridge tape show`)",
        "; ".join(reasons(steps)[:_SHOWN]),
        [each.digest for each in programs],
        sorted(step.step for step in steps),
    )


def _unknown(training: Training) -> Finding | None:
    programs = [each for each in training.programs if each.outcome == "not known"]
    if not programs and not training.failures:
        return None
    steps = [step for each in programs for step in each.steps if not step.known]
    why = [*training.failures, *reasons(steps)]
    why += [f"no step was looked at of {each.digest[:16]}" for each in programs if not each.steps]
    return _finding(
        training,
        "recognition.unknown",
        f"what {_few(len(programs))} of the run to weights is not known; have more steps looked at (`inspect start "
        "--recognise`), or more segments replayed",
        "; ".join(why[:_SHOWN]),
        [each.digest for each in programs],
        sorted(step.step for step in steps),
    )


def _few(count: int) -> str:
    return "a program does" if count == 1 else f"{count} programs do" if count else "further programs do"


def _finding(
    training: Training,
    identifier: Literal["recognition.none", "recognition.unknown"],
    message: str,
    found: str,
    programs: list[str],
    steps: list[int],
) -> Finding:
    return Finding(
        id=identifier,
        message=message,
        expected="the update of a known optimizer by the gradient of a loss",
        found=found,
        subject=f"transcript {training.transcript}",
        severity="info",
        evidence={
            "programs": ", ".join(each[:16] for each in programs[:_SHOWN]),
            "further_programs": max(0, len(programs) - _SHOWN),
            "steps": ", ".join(map(str, steps[:_SHOWN])),
            "looked_at": len(training.steps),
        },
    )
