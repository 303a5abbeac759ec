"""Floating-point operations of a tape, by the formulas of `torch.utils.flop_counter`, from shapes alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from weighbridge.core.errors import TapeError
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import DTYPES, Node, Tape


def flops(tape: Tape) -> list[int]:
    """Counts the FLOPs of every operation; those without a formula in PyTorch count zero.

    A matrix product of m x k by k x n counts 2mkn, as PyTorch's counter does; elementwise work counts nothing.

    Args:
        tape: A decoded tape. Nothing of it is executed: the formulas see shapes.

    Returns:
        One number for each operation.

    Raises:
        TapeError: An operation is not allowed, or its operands have shapes that do not fit it.
    """
    return [_operation(tape, index, node) for index, node in enumerate(tape.nodes)]


def _operation(tape: Tape, index: int, node: Node) -> int:
    formula = flop_registry.get(resolve(node.op).overloadpacket)
    if formula is None:
        return 0
    try:
        results = [None if o is None else _meta(tape, o) for o in node.outputs]
        args = [_operand(tape, a) for a in node.args]
        kwargs = {name: _operand(tape, a) for name, a in node.kwargs.items()}
        count = int(formula(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results)))
    except (AssertionError, AttributeError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise TapeError(f"operation {index} ({node.op}) has operands that do not fit it ({error})") from None
    if not 0 <= count < 1 << 100:
        raise TapeError(f"operation {index} ({node.op}) has operands of impossible sizes")
    return count


def _meta(tape: Tape, index: int) -> torch.Tensor:
    _, dtype, size, stride, _ = tape.refs[index]
    return torch.empty_strided(size, stride, dtype=DTYPES[dtype], device="meta")


def _operand(tape: Tape, value: Any) -> Any:
    match value:
        case ("t", int(index)):
            return _meta(tape, index)
        case ("l", tuple(items)):
            return [_operand(tape, v) for v in items]
        case tuple():
            return None  # dtypes, devices, texts, values: no formula looks at them
    return value
