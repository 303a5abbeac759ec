"""A tape as a straight-line program: a list of calls that were resolved once, and of the moments at which storages die.

A program is made of a tape that was executed completely, operation by operation, so everything that only the tape
decides was checked. What a step's content decides is checked each time: indices, numbers, and every result. Storages
that die within a run of operations that one loop does die at its end; such runs are cut where that would keep more than
`HELD` bytes longer.
"""

from __future__ import annotations

from collections.abc import Callable

from weighbridge.core.errors import RefusedOperationError, TapeError, UnknownOperationError
from weighbridge.execution.straight_line import rounded
from weighbridge.execution.straight_line.frame import Frame
from weighbridge.execution.straight_line.general import Exchanged, General, Reached, Release
from weighbridge.execution.straight_line.listing import Entry, entry
from weighbridge.execution.straight_line.rounded import Rounded
from weighbridge.execution.straight_line.sequence import Sequence
from weighbridge.numerics.rule_table import Kind, settled
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import RESIZE, Node, Tape

HELD = 4 << 20
"""Bytes that a run of operations makes at most, and of what dies within it."""

Instruction = Callable[[Frame], None]


class Program:
    """Such a program.

    Attributes:
        operations: Operations of the tape that compute something.
        listed: How many of them one loop does with others.
        widened: How many may be rounded without their bounds.
    """

    def __init__(self, tape: Tape, longest: int | None = None) -> None:
        """Makes a program.

        Args:
            tape: The tape.
            longest: Most operations of a list; a moment between two operations, at which the storages that live are
                those of the tape, is then reported after each list and each operation that is in none. By default
                lists have any length, and nothing is reported.
        """
        self._longest = longest
        self.operations = self.listed = self.widened = 0
        self._nodes = tape.nodes
        self._tape = tape
        self._instructions: list[Instruction] = []
        self._members: list[tuple[int, Node, Entry]] = []
        self._dead: list[int] = []
        self._held = 0
        sizes = {item.slot: item.bytes for item in tape.inputs}
        frees: dict[int, list[int]] = {}
        for at, slot in tape.frees:
            frees.setdefault(at, []).append(slot)
        for number, node in enumerate(tape.nodes):
            sizes.update(node.births)
            self._add(number, node, frees.get(number, []), sizes)
        self._cut(len(tape.nodes))

    def _add(self, number: int, node: Node, dead: list[int], sizes: dict[int, int]) -> None:
        rule = settled(resolve(node.op))
        if rule is not None and rule.kind is Kind.COLLECTIVE:
            self._cut(number)
            self._release(dead)
            self.operations += 1
            self._instructions.append(Exchanged(number, node))
            self._report(number + 1)
            return
        listed = None if rule is None else entry(node, self._tape)
        view = rule is not None and rule.kind is Kind.VIEW
        grows = sum(sizes.get(slot, 0) for slot in dead) + sum(size for _, size in node.births)
        full = self._longest is not None and len(self._members) >= self._longest
        if (listed is None and not view) or self._held + grows > HELD or (full and listed is not None):
            self._cut(number)
        if not self._members:
            self._release(dead)
        else:
            self._dead += dead
        if view:
            return
        self.operations += 1
        self._held += grows
        if listed is not None:
            self._members.append((number, node, listed))
            self.listed += 1
        elif rounded.covers(node, self._tape):
            self._instructions.append(Rounded(number, node, self._tape))
            self.widened += 1
        else:
            self._instructions.append(General(number, node, self._tape))
        if listed is None:
            self._report(number + 1)

    def _cut(self, number: int) -> None:
        """Ends a run of operations, before operation `number`."""
        if self._members:
            self._instructions.append(Sequence(self._members, self._tape))
        self._release(self._dead)
        if self._members:
            self._report(number)
        self._members, self._dead, self._held = [], [], 0

    def _release(self, dead: list[int]) -> None:
        if dead:
            self._instructions.append(Release(list(dead)))

    def _report(self, complete: int) -> None:
        if self._longest is not None:
            self._instructions.append(Reached(complete))

    def run(self, frame: Frame, step: int) -> None:
        """Executes all operations.

        Raises:
            WeighbridgeError: As the Executor does, about the first operation that differs.
        """
        try:
            for instruction in self._instructions:
                instruction(frame)
        except (RefusedOperationError, UnknownOperationError) as error:
            op = frame.context.op
            raise TapeError(
                f"step {step}, operation {op}: {error.message}", code="tape.forbidden", operation=self._nodes[op].op
            ) from None


def straight(tape: Tape) -> bool:
    """True if a tape has no operation that a program cannot have: one that resizes a storage.

    Args:
        tape: The tape.
    """
    return all(node.op != RESIZE for node in tape.nodes)
