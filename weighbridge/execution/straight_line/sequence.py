"""A run of operations that one loop does: their memory is made first, and results are compared when all are done."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch

from weighbridge.execution.straight_line.frame import Frame, Line
from weighbridge.execution.straight_line.general import General
from weighbridge.execution.straight_line.listing import Entry, is_number
from weighbridge.numerics.operations import sequences
from weighbridge.program.operands import UNFIT, unfit
from weighbridge.transcript.tape import DTYPES, Node, Tape


class Sequence:
    """Such operations, neighbours on their tape but for views."""

    __slots__ = ("_born", "_generals", "_lines", "_listed", "_numbers", "_reads", "_references", "_sums")

    def __init__(self, members: Many[tuple[int, Node, Entry]], tape: Tape) -> None:
        """Makes the list.

        Args:
            members: (place on the tape, operation, what the loop is told of it), in order.
            tape: The tape.
        """
        places: dict[int, int] = {}
        numbers: list[tuple[int | None, float | None]] = []
        rows, sums, reads = [], 0, 0
        checked = [each.form not in (sequences.READ, sequences.CAST) for _, _, each in members]
        nowhere = sum(checked)  # where what has no checksum leaves one
        for (_, _, each), counts in zip(members, checked, strict=True):
            out, first, second, third = (places.setdefault(r, len(places)) for r in each.operands)
            at = -1
            if each.number is not None or each.constant is not None:
                at = len(numbers)
                numbers.append((each.number, each.constant))
            isread = each.form == sequences.READ
            three = each.form < sequences.ADD_SCALED
            other = second | third << 32 if three else second | second << 32 if each.form < sequences.SQRT else second
            to = reads if isread else sums if counts else nowhere
            rows.append((each.form, each.elements, out, first, other, at, to, each.formats))
            reads, sums = reads + isread, sums + counts
        self._listed = np.array(rows, dtype=np.int64)
        self._references, self._numbers, self._sums, self._reads = list(places), numbers, sums, reads
        self._lines = [
            Line(number, node, each.form == sequences.READ, counts)
            for (number, node, each), counts in zip(members, checked, strict=True)
        ]
        self._generals = [General(number, node, tape) for number, node, _ in members]
        self._born = [(each.operands[0], each.born, tape.refs[each.operands[0]]) for _, _, each in members
                      if each.born is not None]  # fmt: skip

    def __call__(self, frame: Frame) -> None:
        """Executes the operations.

        Raises:
            WeighbridgeError: As the Executor does, about the first operation that differs.
        """
        values = frame.values
        numbers = [constant if place is None else values[place] for place, constant in self._numbers]
        if not all([is_number(value) for value in numbers]):
            for general in self._generals:
                general(frame)
            return
        first = self._lines[0]
        frame.context.begin(first.op, first.node)
        try:
            for reference, slot, ref in self._born:
                assert slot is not None
                frame.born(reference, slot, torch.empty_strided(ref[2], ref[3], dtype=DTYPES[ref[1]]))
        except UNFIT as error:
            raise unfit(f"operation {first.op} ({first.node.op})", error) from None
        tensor = frame.operands.tensor
        addresses = np.array([tensor(reference).data_ptr() for reference in self._references], dtype=np.int64)
        sums, reads = np.empty(self._sums + 1, dtype=np.uint64), np.empty(self._reads)
        sequences.run(self._listed, addresses, np.array(numbers, dtype=np.float32), sums, reads)
        frame.context.take_listed(self._lines, sums[:-1], reads)
