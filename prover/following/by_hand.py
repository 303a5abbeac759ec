"""Batches that a program makes by hand: slices of its data, arrays, what an environment says.

A program without a loader does not say what its batches are. So what a step takes from outside is its batch: declared
and stored like one that a loader gave, and held to a data commitment if there is one. Its tensors are named by numbers
in the order of their first use; those that are used after a backward pass are of the next micro-batch. What an
operation writes into a model or an optimizer is no batch, and neither is what an evaluation made.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prover.following.notes import NUMBER_BYTES, Notes
from prover.following.segments import SegmentRecorder
from weighbridge.numerics.schemas import Op

aten = torch.ops.aten

_SELECTIONS = frozenset({aten.index, aten.index_select, aten.gather, aten.take, aten.masked_select, aten.embedding})
"""Operations that take some of the elements of their first operand."""


def selects(func: Op, operands: list[Tensor], outside: set[int]) -> bool:
    """True if an operation picks records from data outside, by numbers that may be recorded.

    Args:
        func: The operation.
        operands: Its tensors.
        outside: Addresses of the memory that is neither recorded nor state.
    """
    if func.overloadpacket not in _SELECTIONS or not operands:
        return False
    data, *numbers = operands
    whole = all(not t.dtype.is_floating_point for t in numbers)
    return whole and data.untyped_storage()._cdata in outside


class ByHand:
    """Enters what is made by hand."""

    def __init__(self, recorder: SegmentRecorder, notes: Notes) -> None:
        """Prepares; nothing has entered yet.

        Args:
            recorder: Records.
            notes: Takes down where it came in.
        """
        self._recorder, self._notes = recorder, notes
        self._count = 0
        self._went_back = False
        self.ever = False
        """Whether anything has entered by hand so far."""

    def begin(self) -> None:
        """To be called when a segment begins."""
        self._count, self._went_back = 0, False

    def operation(self) -> None:
        """To be called at every recorded operation."""
        if _in_backward():
            self._went_back = True

    def wants(self, t: Tensor) -> bool:
        """True if a tensor is data that nothing recorded has yet; numbers of the program are none."""
        some = t.dim() > 0 or t.untyped_storage().nbytes() > NUMBER_BYTES
        return some and t.device.type != "meta" and self._recorder.lacks(t)

    def enter(self, t: Tensor) -> None:
        """Takes a tensor in as part of the batch, just before it is used first."""
        joins = self._count > 0 and (_in_backward() or not self._went_back)
        if not joins:
            self._count, self._went_back = 0, False
        name = str(self._count)
        if self._recorder.on_chip:
            self._recorder.data_memory.add((t,))
        self._recorder.enter({name: t}, joins=joins, by_hand=True)
        self._notes.by_hand(self._recorder, t, name)
        self._count += 1
        self.ever = True


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
