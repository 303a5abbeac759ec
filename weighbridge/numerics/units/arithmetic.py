"""What a model of a unit's arithmetic is."""

from __future__ import annotations

from typing import Protocol

import torch

from weighbridge.numerics.units.formats import Operand


class Arithmetic(Protocol):
    """The arithmetic of one block: an addend and a fixed number of products become the next addend."""

    @property
    def products(self) -> int:
        """How many products a block has."""

    @property
    def nan(self) -> int | None:
        """The bits of every NaN that comes out, in the accumulator's type; None if operands decide."""

    def step(self, a: Operand, b: Operand, c: torch.Tensor) -> torch.Tensor:
        """Returns c + sum over the last dimension of a * b, as the unit computes it.

        Args:
            a: Operand of shape (..., products).
            b: Likewise; the leading dimensions of all three broadcast.
            c: Addend (...), float64 that holds values of the accumulator's type.

        Returns:
            float64 that holds values of the accumulator's type.
        """
