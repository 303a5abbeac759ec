"""FLOPs of a tape, from shapes alone, as a chip counts them (`weighbridge.numerics.flops`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weighbridge.core.errors import TapeError
from weighbridge.numerics.flops.counts import count
from weighbridge.numerics.flops.formulas import Shape
from weighbridge.numerics.rounding.formats import NARROW
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import DTYPE_NAMES, Node, Tape


def flops(tape: Tape) -> list[int]:
    """Counts the FLOPs of every operation.

    A matrix product of m x k by k x n counts 2mkn, a function of n elements n, a sum over n elements n, a copy nothing.

    Args:
        tape: A decoded tape. Nothing of it is executed: the formulas see shapes.

    Returns:
        One number for each operation.

    Raises:
        TapeError: An operation is not allowed, or its operands have shapes that do not fit it.
    """
    shapes = [Shape(size) for _, _, size, _, _ in tape.refs]
    return [_operation(shapes, index, node) for index, node in enumerate(tape.nodes)]


def narrow(tape: Tape, counted: Sequence[int]) -> list[int]:
    """Counts the elements in 16 bits that every operation computes.

    A Recorder does some work of its own for each, to find out whether its rounding is contested.

    Args:
        tape: A decoded tape.
        counted: FLOPs of its operations: what took none moved its elements only.

    Returns:
        One number for each operation.
    """
    names = {DTYPE_NAMES[dtype] for dtype in NARROW}
    sizes = [math.prod(size) if dtype in names else 0 for _, dtype, size, _, _ in tape.refs]
    return [
        sum(sizes[o] for o in node.outputs if o is not None) if done else 0
        for node, done in zip(tape.nodes, counted, strict=True)
    ]


def _operation(shapes: list[Shape], index: int, node: Node) -> int:
    op = resolve(node.op)
    try:
        results = [None if o is None else shapes[o] for o in node.outputs]
        args = [_operand(shapes, a) for a in node.args]
        kwargs = {name: _operand(shapes, a) for name, a in node.kwargs.items()}
        found = count(op, args, kwargs, results)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise TapeError(f"operation {index} ({node.op}) has operands that do not fit it ({error})") from None
    if not 0 <= found < 1 << 100:
        raise TapeError(f"operation {index} ({node.op}) has operands of impossible sizes")
    return found


def _operand(shapes: list[Shape], value: Any) -> Any:
    match value:
        case ("t", int(index)):
            return shapes[index]
        case ("l", tuple(items)):
            return [_operand(shapes, v) for v in items]
        case tuple():
            return None  # dtypes, devices, texts, values: no formula looks at them
    return value
