"""What one run of a straight-line program has: storages, operands, numbers, and where results are compared or noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.program.operands import Operands
from weighbridge.transcript.tape import Node

Tensor = torch.Tensor


class Line(NamedTuple):
    """One operation of a list, of which the loop gives a checksum, reads a number, or does neither.

    Attributes:
        op: Its place on the tape.
        node: The operation.
        reads: Whether it reads a number.
        checked: Whether its result has a checksum.
    """

    op: int
    node: Node
    reads: bool
    checked: bool


class Taker(Protocol):
    """What a context has beside `Context` if it takes results that are made in other ways than one by one."""

    def begin(self, op: int, node: Node) -> None:
        """Starts operation number `op`."""

    def wants_bounds(self, outputs: int, *, small: bool) -> bool:
        """Whether the bounds of the next operation are needed.

        Args:
            outputs: How many outputs it rounds.
            small: Whether it rounds any to 16 bits.
        """
        ...

    def take_rounded(self, results: Sequence[tuple[Tensor, int]], wide: torch.dtype) -> bool:
        """Takes all rounded outputs of one operation with their checksums; False if it takes none of them.

        Then the operation has to be evaluated by its rule, with its bounds.

        Args:
            results: The outputs, in order.
            wide: The type that they were computed in.
        """
        ...

    def take_listed(self, lines: Sequence[Line], sums: npt.NDArray[np.uint64], reads: npt.NDArray[np.float64]) -> None:
        """Takes the results of a list of operations, in order: checksums, and numbers that were read."""


@dataclass(slots=True)
class Frame:
    """One run.

    Attributes:
        device: Where it computes.
        slots: Storages by slot: any tensor on each.
        operands: The tensors of references.
        values: The step's values.
        context: What its operations are evaluated in.
        release: Lets go of the storage of a slot.
        reached: Called where a program with safepoints has completed so many operations, if anyone asked for that.
    """

    device: torch.device
    slots: dict[int, Tensor]
    operands: Operands
    values: list[Any]
    context: Any
    release: Callable[[int], None]
    reached: Callable[[int], None] | None = None

    def born(self, reference: int, slot: int, result: Tensor) -> None:
        """Takes in a result that is a storage of its own, exactly as its reference says."""
        self.slots[slot] = result
        self.operands.know(reference, slot, result)
