"""State of a run that is no training's result: what its steps were given, and what they made of that directly.

A state holds more than what was trained: a batch that a variable still held, a buffer that a step filled. If another
run begins from such a state, that could be any tensor. A run whose batches are a model made elsewhere would vouch for
it otherwise. What follows from trained state alone, such as an average of weights in a dictionary, the run did make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from weighbridge.core.errors import TapeError
from weighbridge.program.content import Roles
from weighbridge.program.dataflow import flow
from weighbridge.program.whole_run import Course
from weighbridge.transcript.tape import Tape, absolute_name


class _Written(NamedTuple):
    """State that a tape writes to or leaves behind, and that no step trains.

    Attributes:
        name: As on the tape.
        given: Whether a batch, an undeclared tensor or another rank has bearing on it, other than by way of what is
            trained.
        sources: Other such state that has, as on the tape.
    """

    name: str
    given: bool
    sources: tuple[str, ...]


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
    for ran in course.steps:
        if ran.init or ran.step >= step:
            continue
        if ran.tape not in known:
            known[ran.tape] = _written(tapes(ran.tape), roles.trained | roles.weights)
        for each in known[ran.tape]:
            if each.given or any(absolute_name(source, ran.step) in found for source in each.sources):
                found.add(absolute_name(each.name, ran.step))
    return found


def _written(tape: Tape, trained: Collection[str]) -> list[_Written]:
    names = {name for _, name in tape.survivors} | {item.name for item in tape.inputs if item.origin == "state"}
    try:
        reaches = flow(tape, opaque=trained).reaches
    except TapeError:  # too large to follow
        return [_Written(name, True, ()) for name in names if name not in trained]
    sent = any("::" in node.op for node in tape.nodes)  # by another rank, or by an operation that may do anything
    found = []
    for name in reaches.keys() - trained:
        inputs = [item for index, item in enumerate(tape.inputs) if reaches[name] >> index & 1]
        given = sent or any(item.origin in ("batch", "free") for item in inputs)
        found.append(_Written(name, given, tuple(item.name for item in inputs if item.name not in trained)))
    return found
