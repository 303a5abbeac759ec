"""Numbers that a function reads from tensors while a step runs, and what computes them before the step begins.

What a function does after it has read a number may depend on that number, so a program of its tape is its step only
while it reads the same. The operations that lead to what is read are few as a rule: whether a mask is all ones, how
long a batch is. They are run on batch and state before the step, as a program of their own that leaves nothing behind.
A read of which that cannot be done is refused with its line: it waits for a change of state, for random numbers, or for
much of the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from prover.recording.compile_refusal import CompileError, refused
from prover.recording.program_run import PlacedOperands, ProgramRecording
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.straight_line.frame import Frame
from weighbridge.execution.straight_line.program import Program, straight
from weighbridge.numerics.schemas import bind, mutated
from weighbridge.program.flops import flops
from weighbridge.program.operands import resolve
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.steps import Scalar, same_scalar
from weighbridge.transcript.tape import Node, Tape, references

Tensor = torch.Tensor

SHARE = 4
"""What is read must follow from this part of a step's operations, and of its FLOPs, at most: a quarter."""


@dataclass(frozen=True, slots=True)
class Read:
    """A number that a step gave to its function, and not to an optimizer of PyTorch's.

    Attributes:
        host: Which of the step's host values it is.
        op: The operation that read it.
        value: What it was.
        line: Where in the program.
    """

    host: int
    op: int
    value: Scalar
    line: str

    def same(self, other: Read) -> bool:
        """Whether two steps read the same here."""
        return (self.host, self.op) == (other.host, other.op) and same_scalar(self.value, other.value)


@dataclass(slots=True)
class Reads:
    """All such numbers of a step, in order, and what computes them.

    Attributes:
        each: The numbers.
        tape: The operations that lead to them, on what enters the step; None if there are none or they are refused.
        refusal: Why they cannot be computed before the step.
    """

    each: list[Read] = field(default_factory=list)
    tape: Tape | None = None
    refusal: str | None = None
    _program: Program | None = None

    @classmethod
    def of(cls, tape: Tape, each: list[Read]) -> Reads:
        """Finds out how the reads of a complete tape can be foreseen."""
        if not each:
            return cls()
        try:
            return cls(each, leading_to(tape, each))
        except CompileError as error:  # kept as a text: it would keep the frames that it went through
            return cls(each, None, str(error.details["why"]))

    @property
    def operations(self) -> frozenset[int]:
        """The operations that read."""
        return frozenset(read.op for read in self.each)

    def same(self, other: Reads) -> bool:
        """Whether two steps read the same."""
        return len(self.each) == len(other.each) and all(map(Read.same, self.each, other.each))

    def among(self, counters: Sequence[Scalar]) -> list[Scalar]:
        """Returns a step's host values, given those that optimizers read; it reads what it read before."""
        hosts = list(counters)
        for read in self.each:
            hosts.insert(read.host, read.value)
        return hosts

    def differ(
        self,
        context: Callable[[], ProgramRecording],
        values: list[Any],
        slots: Callable[[int], Tensor],
        begins: Mapping[int, int],
    ) -> Read | None:
        """Computes what the next step will read; returns what it will read otherwise, or None.

        Args:
            context: Returns what operations are evaluated in.
            values: The step's values, if it reads the same.
            slots: Returns a tensor on the storage that enters as a slot.
            begins: At which byte of its storage the window of each slot of the batch begins.
        """
        if self.tape is None:
            return None
        if self._program is None:
            self._program = Program(self.tape)
        entering = {item.slot: slots(item.slot) for item in self.tape.inputs}
        operands, evaluated = PlacedOperands(self.tape, entering, values, begins), context()

        def release(slot: int) -> None:
            entering.pop(slot, None)
            operands.forget(slot)

        frame = Frame(torch.device("cpu"), entering, operands, values, evaluated, release)
        with suppress(WeighbridgeError):  # what it reads first may lead elsewhere, and the rest does not fit then
            self._program.run(frame, 0)
        found = evaluated.hosts
        for read, value in zip(self.each, found, strict=False):
            if not same_scalar(read.value, value):
                return read
        return None if len(found) == len(self.each) else self.each[len(found)]


def looked(line: str, what: str, why: str = "and what it does then may depend on that") -> str:
    """Returns why a function is refused that looks at a result."""
    return f"{line} looks at a result ({what}), {why}; return the tensor and look at it after the step"


def leading_to(tape: Tape, reads: Sequence[Read]) -> Tape:
    """Returns the operations that lead to what is read, and the reads, as a tape that changes nothing that enters.

    Raises:
        CompileError: They cannot be run before the step.
    """
    if not straight(tape):
        raise refused("it resizes memory, as FSDP2 does")
    made = {slot for node in tape.nodes for slot, _ in node.births}
    names = {item.slot: item.name for item in tape.inputs}
    reading = {read.op: read for read in reads}
    needed: dict[int, Read] = {}
    chosen: list[int] = []
    for number in range(max(reading), -1, -1):
        node, read = tape.nodes[number], reading.get(number)
        if read is None:
            changed = set(_changed(tape, node))
            read = next((needed[slot] for slot in {*changed, *_born(node)} if slot in needed), None)
            if read is None:
                continue
            if is_collective(node):
                raise _refused(read, number, node, "asks other ranks")
            others = sorted(changed - made)
            if others:
                raise _refused(read, number, node, f"changes {names.get(others[0], 'what entered')}")
            if node.draw is not None:
                raise _refused(read, number, node, "draws random numbers")
        chosen.append(number)
        for slot in _slots(tape, node):
            needed[slot] = read
    chosen.reverse()
    counted = flops(tape)
    work = sum(counted[number] for number in chosen)
    if len(chosen) * SHARE > len(tape.nodes) or work * SHARE > sum(counted):
        raise refused(
            looked(
                reads[-1].line, _READ,
                f"which takes {len(chosen)} of the step's {len(tape.nodes)} operations to compute ({work} of "
                f"{sum(counted)} FLOPs), too many to do twice",
            )
        )  # fmt: skip
    born = {slot for number in chosen for slot in _born(tape.nodes[number])}
    return replace(
        tape,
        inputs=[item for item in tape.inputs if item.slot in needed],
        nodes=[tape.nodes[number] for number in chosen],
        frees=[(bisect_left(chosen, at), slot) for at, slot in tape.frees if slot in born],
        survivors=[],
        hosts=len(reads),
    )


_READ = "a number that was read, as by item(), float() or `if`"


def _refused(read: Read, number: int, node: Node, what: str) -> CompileError:
    why = f"which follows from operation {number} ({node.op}), and that {what}"
    return refused(looked(read.line, _READ, why))


def _born(node: Node) -> Iterator[int]:
    return (slot for slot, _ in node.births)


def _slots(tape: Tape, node: Node) -> Iterator[int]:
    """Yields the slots of all operands."""
    return (tape.refs[index][0] for index in references((*node.args, *node.kwargs.values())))


def _changed(tape: Tape, node: Node) -> Iterator[int]:
    """Yields the slots of the operands that an operation changes."""
    op = resolve(node.op)
    names = mutated(op)
    if names:
        operands = bind(op, node.args, node.kwargs)
        for index in references(tuple([operands[name] for name in names])):
            yield tape.refs[index][0]
