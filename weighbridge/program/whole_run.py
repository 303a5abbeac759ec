"""Data flow by name over a whole run, from every entry to every byte of state: nothing resets at a step's end.

State has *content*: what it depends on, over all steps since the initialisation; whether it follows from state that
training changes; and what entered those of its bytes that do not. One pass over the steps in order carries the content
of every name, through kept storages, frees, renames and edits. A program that runs again on content of the same kind
does the same, so each is walked through a few times, however long the run is.

Which state is trained and which holds weights is said by `roles`; what becomes of that, by `tape_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from weighbridge.core.errors import TapeError
from weighbridge.program.content import BATCH, FREE, NOTHING, STATE, WEIGHT, Content, Replacement, Roles
from weighbridge.program.effects import effects, telling
from weighbridge.program.origins import SCALAR_BYTES
from weighbridge.program.tape_walk import Outcome, Program, Walk, is_kept
from weighbridge.program.written_bytes import Coverage
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape, absolute_name

MOST_WALKS = 1 << 12
"""Times that programs are walked through, all together, because the state had content of another kind."""


@dataclass(slots=True)
class Followed:
    """What a run did to its state.

    Attributes:
        replaced: By tape: trained state that it replaced, in some step.
        writes: By tape and name of state that holds weights: what each write to it was made from, in some step.
    """

    replaced: dict[bytes, dict[str, Replacement]] = field(default_factory=dict)
    writes: dict[bytes, dict[str, set[int]]] = field(default_factory=dict)


class Ran(NamedTuple):
    """One step, as far as data flow asks."""

    step: int
    tape: bytes
    init: bool


@dataclass(slots=True)
class Course:
    """The steps of a run in order.

    Attributes:
        steps: The steps.
        returned: (Step, name of an undeclared tensor) to (earlier step, storage that it is of before that).
        zeros: By tape: positions of values that decide about replacements and were 0 in some step.
        ones: The same for 1.
    """

    steps: list[Ran] = field(default_factory=list)
    returned: Mapping[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    zeros: dict[bytes, frozenset[int]] = field(default_factory=dict)
    ones: dict[bytes, frozenset[int]] = field(default_factory=dict)

    def came_back(self) -> dict[bytes, dict[str, set[str]]]:
        """Returns, by tape and name of an undeclared tensor, the state whose earlier content it holds in some step."""
        tapes = {ran.step: ran.tape for ran in self.steps}
        found: dict[bytes, dict[str, set[str]]] = {}
        for (step, name), (_, storage) in self.returned.items():
            found.setdefault(tapes[step], {}).setdefault(name, set()).add(storage)
        return found

    @staticmethod
    def of(records: Iterable[StepRecord], tapes: Callable[[bytes], Tape]) -> Course:
        """Reads the records once.

        Raises:
            TapeError: A record does not fit its tape.
        """
        course, asked = Course(), dict[bytes, list[int]]()
        found: dict[tuple[bytes, int], set[int]] = {}
        for record in records:
            course.steps.append(Ran(record.step, record.tape, record.kind == "init"))
            if record.tape not in asked:
                asked[record.tape] = sorted(telling(tapes(record.tape)))
            for position in asked[record.tape]:
                if position >= len(record.values):
                    raise TapeError(f"step {record.step}: its tape has more values than its record")
                if record.values[position] in (0, 1):
                    found.setdefault((record.tape, int(record.values[position])), set()).add(position)
        for (digest, number), positions in found.items():
            (course.ones if number else course.zeros)[digest] = frozenset(positions)
        return course


def follow(course: Course, tapes: Callable[[bytes], Tape], roles: Roles) -> Followed:
    """Carries the content of all state through a run.

    Args:
        course: Its steps.
        tapes: Returns the tape of a digest.
        roles: What its state is for.

    Raises:
        TapeError: A tape names an operation or state that is not allowed, or the run is too large to look at.
    """
    run = _Run(course, tapes, roles)
    for ran in course.steps:
        run.step(ran)
    return run.found


class _Run:
    """State by name, from step to step."""

    def __init__(self, course: Course, tapes: Callable[[bytes], Tape], roles: Roles) -> None:
        self.found = Followed()
        self._course, self._tapes, self._roles = course, tapes, roles
        self._programs: dict[bytes, Program] = {}
        self._state: dict[str, Content] = {}
        self._sizes: dict[str, int] = {}
        self._ever: set[str] = set()
        self._parts: dict[str, Coverage] = {}
        self._earlier: dict[int, dict[str, Content]] = {before: {} for before, _ in course.returned.values()}
        self._walks = 0

    def step(self, ran: Ran) -> None:
        """Goes on by one step."""
        program = self._program(ran.tape)
        if ran.step in self._earlier:
            self._earlier[ran.step] = dict(self._state)
        names = [absolute_name(i.name, ran.step) if kept else i.name for i, kept in program.inputs]
        entering = tuple(
            self._entering(i.origin, i.bytes, n, ran.step) for (i, _), n in zip(program.inputs, names, strict=True)
        )
        again = tuple(name in self._ever for _, name in program.tape.survivors)
        key: tuple[object, ...] = (ran.init, *entering, *again)
        outcome = program.known.get(key)
        if outcome is None:
            self._walks += 1
            if self._walks > MOST_WALKS + len(self._programs):
                raise TapeError("the run has too many kinds of state to follow its data", code="tape.too_large")
            walk = Walk(program, entering, again, self._roles, judged=not ran.init)
            outcome = program.known[key] = walk.run()
        for item in program.attached:
            self._ever.add(item.name)
            self._sizes[item.name] = item.bytes
        for name in program.ends:
            self._state.pop(absolute_name(name, ran.step), None)
        for name, content in outcome.after:
            self._state[absolute_name(name, ran.step)] = content if not ran.init else self._first(name, content)
        self._ever.update(name for _, name in program.tape.survivors if not is_kept(name))
        if not ran.init:
            self._note(ran.tape, outcome)

    def _program(self, digest: bytes) -> Program:
        if digest not in self._programs:
            tape, nothing = self._tapes(digest), frozenset[int]()
            zeros, ones = self._course.zeros.get(digest, nothing), self._course.ones.get(digest, nothing)
            self._programs[digest] = Program(tape, effects(tape, zeros, ones))
        return self._programs[digest]

    def _entering(self, origin: str, size: int, name: str, step: int) -> Content:
        """What an input holds."""
        state = self._state
        if origin == "free" and (step, name) in self._course.returned:
            before, name = self._course.returned[step, name]
            origin, state = "state", self._earlier[before]
        if origin == "batch":
            return Content(BATCH, foreign=BATCH)
        if origin == "dropped" or size <= SCALAR_BYTES:
            return NOTHING
        if origin == "free":
            return Content(FREE, foreign=FREE)
        held = state.get(name)
        if held is None:
            held = self._first(name, NOTHING)
        if name in self._roles.weights:
            return Content(
                WEIGHT, follows=name in self._roles.trained, foreign=0 if name in self._roles.trained else STATE
            )
        return Content(held.kinds, follows=True) if name in self._roles.trained else held

    def _first(self, name: str, content: Content) -> Content:
        """What state holds before any step: what is not trained never follows from what is; a batch left its mark."""
        if name in self._roles.trained or name in self._roles.weights:
            return Content(content.kinds & BATCH)
        return Content(content.kinds | STATE, foreign=STATE)

    def _note(self, digest: bytes, outcome: Outcome) -> None:
        replaced = self.found.replaced.setdefault(digest, {})
        for each in outcome.replaced:
            replaced.setdefault(each.name, each)
        writes = self.found.writes.setdefault(digest, {})
        for name, kinds in outcome.writes:
            writes.setdefault(name, set()).add(kinds)
        for name, op, ref, content in outcome.parts:
            covered = self._parts.get(name)
            if covered is None:
                covered = self._parts[name] = Coverage(self._sizes[name])
            if covered.add(ref):
                replaced.setdefault(name, Replacement(name, op, content.foreign, content.numbers))
