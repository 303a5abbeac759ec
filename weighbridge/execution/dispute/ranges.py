"""Courses of long trainings: the digests of all states in ranges, of which one is shown.

A course of a million steps has 64 MB, more than a referee takes in one message. So a course of more than `BY_RANGES`
steps has one digest for `RANGE` steps. The first range that differs is shown by both parties, and names the step. That
is a tree with two levels: no party answers more than one further question, however long the training is.

The digest of a range is made of two: that of all its states, and its last state. A party that shows the first of these
two shows the state with which a range ends that both parties named alike, which is the state before the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weighbridge.core.digests import DIGEST_SIZE, record_digest
from weighbridge.execution.dispute.asking import split
from weighbridge.execution.dispute.leaves import NO_INPUT, first_difference
from weighbridge.execution.dispute.messages import RANGE, Course, DisputeError, Range
from weighbridge.transcript.state import state_digest

BY_RANGES = 1 << 16
"""Courses of more steps are sent by ranges."""
MOST_NAMED = BY_RANGES
"""Most steps whose states a referee takes one by one."""


@dataclass(frozen=True)
class Parting:
    """Where two courses part.

    Attributes:
        step: The first step after which their states differ.
        before: The state before it (32 bytes).
        input: What both have it begin with (32 bytes).
        left: The state after it in the challenger's course and in the defender's (32 bytes each).
    """

    step: int
    before: bytes
    input: bytes
    left: tuple[bytes, bytes]


def by_ranges(course: Course) -> Course:
    """Returns a course by ranges; as it is, if it is one already."""
    if course.count:
        return course
    states, inputs = split(course.states), split(course.inputs)
    begins = range(0, len(states), RANGE)
    return replace(
        course, count=len(states), states=b"".join(_named(states[at : at + RANGE]) for at in begins),
        inputs=b"".join(_inputs(inputs[at : at + RANGE]) for at in begins),
    )  # fmt: skip


def spoken(course: Course) -> Course:
    """Returns a course as a party sends it: by ranges, if it is long."""
    return by_ranges(course) if len(course.states) > BY_RANGES * DIGEST_SIZE else course


def require_spoken(course: Course) -> None:
    """Raises if a long course is not by ranges: a referee holds none that is larger than it has to be.

    Raises:
        DisputeError: It has a digest for each of more than `MOST_NAMED` steps.
    """
    if not course.count and len(course.states) > MOST_NAMED * DIGEST_SIZE:
        raise DisputeError(f"A course of more than {MOST_NAMED:,} steps is named by ranges.")


def range_of(course: Course, at: int) -> Range:
    """Returns what a party shows of a range of its course.

    Args:
        course: The course, with the digests of all states.
        at: Which range.
    """
    states, inputs, begin = split(course.states), split(course.inputs), at * RANGE
    before = states[begin - RANGE : begin] if at else ()
    return Range(
        before=_all(before) + before[-1] if at else b"", states=b"".join(states[begin : begin + RANGE]),
        inputs=b"".join(inputs[begin : begin + RANGE]),
    )  # fmt: skip


def apart(one: Course, other: Course) -> int | None:
    """Returns the first range in which two courses by ranges differ; None if there is none, or their terms differ."""
    if one.terms != other.terms:
        return None
    found = first_difference(split(one.states), split(other.states))
    return None if found is None or found >= min(len(one.states), len(other.states)) // DIGEST_SIZE else found


def fits(course: Course, at: int, shown: Range) -> bool:
    """Whether what is shown is that range of a course by ranges, and the state before it.

    Args:
        course: The course.
        at: Which range.
        shown: What is shown of it.
    """
    states, named, inputs = split(shown.states), split(course.states), split(course.inputs)
    if len(states) != min(RANGE, course.count - at * RANGE) or len(shown.before) != (2 * DIGEST_SIZE if at else 0):
        return False
    if at and _joined(shown.before[:DIGEST_SIZE], shown.before[DIGEST_SIZE:]) != named[at - 1]:
        return False
    return (_named(states), _inputs(split(shown.inputs))) == (named[at], inputs[at])


def parting(one: Course | Range, other: Course | Range, begin: int = 0) -> Parting | None:
    """Returns where two courses part, or two ranges of them that begin with the same step.

    Returns:
        None if they do not part; if one ends before they do; if they part in their terms or in what the step begins
        with; or if that cannot be disputed.
    """
    if isinstance(one, Course) and isinstance(other, Course) and one.terms != other.terms:
        return None
    mine, yours = split(one.states), split(other.states)
    at = first_difference(mine, yours)
    if at is None or at >= min(len(mine), len(yours)):
        return None
    entered = split(one.inputs)[at]
    if entered != split(other.inputs)[at] or entered == NO_INPUT:
        return None
    shown = one.before[DIGEST_SIZE:] if isinstance(one, Range) else b""
    before = mine[at - 1] if at else shown or state_digest({}, {})
    return Parting(begin + at, before, entered, (mine[at], yours[at]))


def _named(states: Sequence[bytes]) -> bytes:
    return _joined(_all(states), states[-1])


def _joined(states: bytes, last: bytes) -> bytes:
    return record_digest("dispute-range/1", [states, last])


def _all(states: Sequence[bytes]) -> bytes:
    return record_digest("dispute-states/1", b"".join(states))


def _inputs(inputs: Sequence[bytes]) -> bytes:
    return record_digest("dispute-inputs/1", b"".join(inputs))
