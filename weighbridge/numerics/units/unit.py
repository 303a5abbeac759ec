"""A matrix unit: which products of blocks it computes, and products of whole matrices that are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from weighbridge.core.errors import UsageError
from weighbridge.numerics.units.arithmetic import Arithmetic
from weighbridge.numerics.units.formats import Format, Operand
from weighbridge.numerics.units.order import IN_ORDER, Order

Tensor = torch.Tensor

Evidence = Literal["hardware", "simulator", "documents"]
"""What a model was compared with: what such a unit computed; MMA-Sim, whose authors did that; or nothing, its source
being the manufacturer's text."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a unit does with operands of some formats.

    Attributes:
        formats: The formats of operands, in any combination.
        accumulator: Type of addend and result, float32 or float16.
        arithmetic: Of one block.
        evidence: What the model was compared with.
    """

    formats: tuple[Format, ...]
    accumulator: torch.dtype
    arithmetic: Arithmetic
    evidence: Evidence

    def takes(self, *dtypes: torch.dtype) -> bool:
        """Says whether tensors of these types can be operands."""
        return {*dtypes} <= {each.dtype for each in self.formats}

    def operand(self, x: Tensor) -> Operand:
        """Returns a tensor, of a type that this operation takes, as an operand."""
        return next(each for each in self.formats if each.dtype == x.dtype).operand(x)


@dataclass(frozen=True, slots=True)
class Unit:
    """A matrix unit as it is declared.

    Attributes:
        name: For `units.named`.
        title: What it is and where.
        operations: What it computes.
        aliases: Other names of it.
    """

    name: str
    title: str
    operations: tuple[Operation, ...]
    aliases: tuple[str, ...] = ()

    def operation(self, a: torch.dtype, b: torch.dtype, accumulator: torch.dtype = torch.float32) -> Operation:
        """Returns what the unit does with operands of two types.

        Raises:
            UsageError: It has no such operation.
        """
        for each in self.operations:
            if each.accumulator == accumulator and each.takes(a, b):
                return each
        known = "; ".join(
            f"{', '.join(str(format.dtype) for format in each.formats)} into {each.accumulator}"
            for each in self.operations
        )
        raise UsageError(f"unit {self.name!r} does not multiply {a} by {b} into {accumulator}; it takes {known}")

    def multiply_accumulate(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Returns a @ b + c as one instruction on one block computes it.

        Args:
            a: (m, k), k being the block's: `Operation.arithmetic.products`. Any m and n will do.
            b: (k, n).
            c: (m, n), float32 or float16.

        Returns:
            (m, n), of the type of `c`.

        Raises:
            UsageError: The unit has no such operation, or its blocks have another k.
        """
        block = self.operation(a.dtype, b.dtype, c.dtype).arithmetic.products
        if a.shape[-1] != block:
            raise UsageError(f"a block of unit {self.name!r} has {block} products, not {a.shape[-1]}; use `product`")
        return self.product(a, b, c)

    def product(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        order: Order = IN_ORDER,
        accumulator: torch.dtype = torch.float32,
    ) -> Tensor:
        """Returns a @ b + bias as a kernel computes it that feeds a unit with blocks along K.

        Args:
            a: (M, K).
            b: (K, N).
            bias: Broadcasts to (M, N); its type is the accumulator's.
            order: The order of blocks.
            accumulator: Type of the result if there is no bias.

        Returns:
            (M, N) accumulators, not rounded to the type of the operands.

        Raises:
            UsageError: The unit has no such operation, or the shapes or the order do not fit.
        """
        if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
            raise UsageError(f"cannot multiply shapes {tuple(a.shape)} and {tuple(b.shape)}; give (M, K) and (K, N)")
        if bias is None:
            bias = torch.zeros((), dtype=accumulator, device=a.device)
        return self.dot(a[:, None, :], b.T[None, :, :], bias, order)

    def dot(self, a: Tensor, b: Tensor, c: Tensor, order: Order = IN_ORDER) -> Tensor:
        """Returns c + sum over k of a[..., k] * b[..., k], for many sums that have nothing else in common.

        Args:
            a: (..., K); K need not be a multiple of the block's, zeros being appended.
            b: (..., K).
            c: (...); its type is the accumulator's. Leading dimensions broadcast.
            order: The order of blocks.

        Raises:
            UsageError: As of `product`.
        """
        operation = self.operation(a.dtype, b.dtype, c.dtype)
        arithmetic = operation.arithmetic
        block, length = arithmetic.products, a.shape[-1]
        if b.shape[-1] != length:
            raise UsageError(f"operands have {length} and {b.shape[-1]} products; give as many of each")
        if order.chain is not None and (order.chain < 1 or order.chain % block):
            raise UsageError(f"a chain of unit {self.name!r} has a multiple of {block} products, not {order.chain}")
        if order != IN_ORDER and c.dtype != torch.float32:
            raise UsageError("chains add up in float32; in float16 there is one, which begins at the bias")
        x, y = operation.operand(a), operation.operand(b)

        def chain(start: int, end: int, total: Tensor) -> Tensor:
            for k in range(start, end, block):
                total = arithmetic.step(x.block(k, block), y.block(k, block), total)
            return total

        shape = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1], c.shape)  # type: ignore[no-untyped-call]
        total = order.accumulate(length, c.to(torch.float64).expand(shape), chain)
        return _held(total, operation)


def _held(total: Tensor, operation: Operation) -> Tensor:
    """Returns accumulators in their type, every NaN as the unit has it."""
    result = total.to(operation.accumulator)
    bits = operation.arithmetic.nan
    if bits is None:
        return result
    integer = torch.int16 if operation.accumulator == torch.float16 else torch.int32
    nan = torch.tensor(bits, dtype=integer, device=total.device).view(operation.accumulator)
    return torch.where(torch.isnan(result), nan, result)
