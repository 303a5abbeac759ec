"""State of a run that is no training's result: what its steps were given, and what they made of that directly.

A state holds more than what was trained: a batch that a variable still held, a buffer that a step filled, a statistic
that steps add to. If another run's weights begin from such a state, that could be any tensor. A run whose batches are a
model made elsewhere would vouch for it otherwise. What follows from weights alone, such as an average of them, the run
did make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from weighbridge.core.errors import TapeError
from weighbridge.program.content import Roles
from weighbridge.program.dataflow import flow, others
from weighbridge.program.idle_inputs import hides_flow, names_on
from weighbridge.program.whole_run import Course
from weighbridge.transcript.tape import Tape, absolute_name


class _Written(NamedTuple):
    """State that a tape writes to or leaves behind, and that holds no weights.

    Attributes:
        name: As on the tape.
        given: Whether a batch, an undeclared tensor that is never state of an earlier step, or another rank has bearing
            on it, other than by way of weights.
        sources: Other such state that has, as on the tape.
        returned: Names of undeclared tensors that have and that are state of an earlier step at some time.
    """

    name: str
    given: bool
    sources: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


def brought(course: Course, tapes: Callable[[bytes], Tape], roles: Roles, step: int) -> set[str]:
    """Returns the names of state before a step that steps made of what they were given, or ever did.

    What the initialisation was given is not looked at.

    Args:
        course: The steps of the run.
        tapes: Returns the tape of a digest.
        roles: What its state is for.
        step: The state before which is asked about.

    Raises:
        TapeError: A tape names state that cannot be.
    """
    found: set[str] = set()
    known: dict[bytes, list[_Written]] = {}
    own = course.came_back()

    def foreign(name: str, at: int) -> bool:
        before = course.returned.get((at, name))
        return before is None or (before[1] in found and before[1] not in roles.weights)

    for ran in course.steps:
        if ran.init or ran.step >= step:
            continue
        if ran.tape not in known:
            known[ran.tape] = _written(tapes(ran.tape), roles.weights, own.get(ran.tape, {}))
        for each in known[ran.tape]:
            if (
                each.given
                or any(absolute_name(source, ran.step) in found for source in each.sources)
                or any(foreign(name, ran.step) for name in each.returned)
            ):
                found.add(absolute_name(each.name, ran.step))
    return found


def beside_training(course: Course, tapes: Callable[[bytes], Tape], roles: Roles) -> Callable[[str], bool]:
    """Returns a test of state by its name: whether it holds neither weights nor what follows from them alone.

    Such state is what no step trains, such as a frozen layer, and statistics of batches.

    Args, Raises: As for `brought`.
    """
    given = brought(course, tapes, roles, len(course.steps))
    return lambda name: name not in roles.weights and (name not in roles.trained or name in given)


def beside_inputs(tape: Tape, beside: Callable[[str], bool]) -> frozenset[str]:
    """Returns the names of what an initialisation was given and from which nothing reaches any but `beside` state.

    Args:
        tape: The tape of step 0.
        beside: Tests state by its name.
    """
    if hides_flow(tape):
        return frozenset()
    try:
        reaches = flow(tape, by_host=True).reaches
    except TapeError:  # too large to follow
        return frozenset()
    reached = 0
    for name, bits in reaches.items():
        reached |= 0 if beside(absolute_name(name, 0)) else bits
    return names_on(tape, {item.slot for index, item in enumerate(tape.inputs) if not reached >> index & 1})


def _written(tape: Tape, weights: Collection[str], returned: Collection[str]) -> list[_Written]:
    names = {name for _, name in tape.survivors} | {item.name for item in tape.inputs if item.origin == "state"}
    try:
        reaches = flow(tape, opaque=weights).reaches
    except TapeError:  # too large to follow
        return [_Written(name, True) for name in names if name not in weights]
    found = []
    for name in reaches.keys() - weights:
        inputs = [item for index, item in enumerate(tape.inputs) if reaches[name] >> index & 1]
        outside = [item for item in inputs if item.origin in ("batch", "free")]
        back = tuple(item.name for item in outside if item.origin == "free" and item.name in returned)
        sources = tuple(i.name for i in inputs if i.origin not in ("batch", "free") and i.name not in weights)
        given = len(outside) > len(back) or bool(reaches[name] & others(tape))
        found.append(_Written(name, given, sources, back))
    return found
