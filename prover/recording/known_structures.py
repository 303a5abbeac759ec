"""The steps of a function that were recorded, sorted by how they began and went on.

Calls that began alike go on alike, up to the first number that they read otherwise: then a function may do something
else, and the two are structures of their own. Those that part anywhere else decide by something that no look sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prover.capture.python_objects import Look
from prover.recording.foreseen_reads import looked
from prover.recording.known_values import KnownValues
from prover.recording.plain_arguments import Number, numbers_apart
from prover.recording.structure import Shown, Structure
from weighbridge.program.explanations import pattern
from weighbridge.transcript.steps import Scalar
from weighbridge.transcript.tape import Tape, references

MOST = 32
"""Most structures that are remembered: those of the numbers that take turns, and some others."""

VALUES = 3
"""From how many values on of one read it is refused, unless they come again: each costs a look before each call."""

NUMBERS = 16
"""How many values of one argument may take turns; from the next one on it is refused, unless they come again."""


class KnownStructures:
    """Such structures, of which those are forgotten that were not met for longest."""

    def __init__(self) -> None:
        self._all: list[Structure] = []
        self._newest: Structure | None = None

    def __iter__(self) -> Iterator[Structure]:
        return iter(self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def last(self) -> Shown:
        """What the step showed that began as no other had before."""
        assert self._newest is not None, "a step was recorded"
        return self._newest.shown

    def compile(self, structure: Structure) -> None:
        """Makes a structure's program, which those of one tape have in common."""
        programs = (each.program for each in self._all if each.shown.tape is structure.shown.tape)
        structure.compile(next((each for each in programs if each is not None), None))

    def met(self, structure: Structure) -> None:
        """Notes that a call was of a structure, which is then the last to be forgotten."""
        self._all = [*(each for each in self._all if each is not structure), structure]

    def alike(self, look: Look, arguments: list[Any]) -> list[Structure]:
        """Returns those that began as a call does."""
        return [
            each
            for each in self._all
            if each.shown.arguments == arguments  # which are few
            and each.shown.before.grads == look.grads
            and each.shown.before.found == look.found
        ]

    def learn(self, shown: Shown) -> tuple[Structure, str | None]:
        """Takes in a recorded step.

        Returns:
            Its structure, and why it could not have been run as a program of those before it, if it never can be.
        """
        structure = next((each for each in self._all if each.shown.alike(shown) and each.shown.same(shown)), None)
        others = [each for each in self._all if each is not structure and each.shown.begins_like(shown)]
        parted = [(each, part(each.shown, shown)) for each in others]
        apart = [each for each, where in parted if where is None]
        problem: str | None = None
        if apart:
            problem = "calls that began alike went on otherwise, so it decides by something that cannot be looked at"
            self._all = [each for each in self._all if each not in apart]
        if structure is not None:
            structure.show(shown)
            self.met(structure)
            return structure, problem
        at = max((where for _, where in parted if where is not None), default=None)
        if at is not None:  # what was read before that was read in other steps too
            values = {_bits(each.shown.reads.each[at].value) for each, where in parted if where == at}
            if len(values) >= VALUES - 1:
                line = shown.reads.each[at].line
                problem = problem or looked(line, "a number that was read", "which is another one in each call")
        problem = problem or self._counted(shown)
        shown.tape = next((each.shown.tape for each in self._all if each.shown.tape == shown.tape), shown.tape)
        structure = Structure(shown, KnownValues(shown.tape))
        self._all, self._newest = [*self._all[-MOST + 1 :], structure], structure
        return structure, problem

    def _counted(self, shown: Shown) -> str | None:
        """Returns why a step has too many like it that were given another number, if it has."""
        values: dict[int, set[Number]] = {}
        for each in self._all:
            one = each.shown
            if one.before.found == shown.before.found and one.before.grads == shown.before.grads:
                for at in numbers_apart(one.arguments, shown.arguments) or ():
                    values.setdefault(at, {shown.arguments[at]}).add(one.arguments[at])
        changing = next((at for at, found in values.items() if len(found) > NUMBERS), None)
        if changing is None:
            return None
        place = shown.arguments[changing].place
        return (
            f"its argument {place} is another number in each call, or one of more than {NUMBERS} that take turns, and "
            f"what it does may depend on that; pass a tensor that holds it, as torch.tensor({place}), which is an "
            "input of the step as the batch is. A rate of an optimizer belongs to a scheduler of PyTorch's that is "
            "attached"
        )


def part(one: Shown, other: Shown) -> int | None:
    """Returns which number is the first that two steps read otherwise which began alike, if nothing differs before."""
    for at, (mine, yours) in enumerate(zip(one.reads.each, other.reads.each, strict=False)):
        if not mine.same(yours):
            here = mine.op == yours.op and _until(one.tape, mine.op) == _until(other.tape, mine.op)
            return at if here else None
    return None


def _bits(value: Scalar) -> tuple[type, int]:
    return type(value), pattern(value) if isinstance(value, float) else int(value)


def _until(tape: Tape, op: int) -> Any:
    """Returns what a tape says until an operation is complete."""
    nodes = tape.nodes[: op + 1]
    used = [tape.refs[index] for node in nodes for index in references((*node.args, *node.kwargs.values()))]
    slots = {ref[0] for ref in used}
    inputs = [item for item in tape.inputs if item.slot in slots]
    return nodes, used, inputs, [each for each in tape.frees if each[0] <= op]
