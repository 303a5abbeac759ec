"""How large rounding errors are in each coordinate of a gradient, from samples of those before it.

A weight's gradient is a product of gradients and inputs, summed over rows of a batch. The error that each row brings
differs by orders of magnitude, and so do the errors of the elements of the sum, in no pattern of rows and columns. So
variances are carried through the product: squares times squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weighbridge.numerics.schemas import bind
from weighbridge.program.operands import resolve

Tensor = torch.Tensor

MOVES = frozenset({"_to_copy", "clone", "copy_", "t", "view", "transpose", "permute", "reshape", "detach", "alias"})
"""Operations by which a weight comes to the product that it is in."""

_PRODUCTS = {"mm.default": 0, "bmm.default": 0, "addmm.default": 1, "baddbmm.default": 1}
_CONVOLUTION = "convolution.default"
_FEW = 8


def unit(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to a type."""
    return float(torch.finfo(dtype).eps) / 2


def alike(sample: Tensor) -> Tensor:
    """Returns the root mean square of the samples around each: of its row and column, or of all if there are no rows.

    Args:
        sample: Absolute errors (float64).
    """
    square = sample.square()
    shape = [n for n in sample.shape if n > 1]
    if len(shape) < 2 or sample.numel() == 0:
        return square.mean().sqrt().expand_as(sample) if sample.numel() else sample
    table = square.reshape(shape[0], -1)
    mean = table.mean()
    if not float(mean):
        return sample
    # Of a few samples, the mean says little; then it is that of all.
    rows = table.mean(1, keepdim=True) if table.shape[1] >= _FEW else mean
    columns = table.mean(0, keepdim=True) if table.shape[0] >= _FEW else mean
    return (rows * columns / mean).expand_as(table).sqrt().reshape(sample.shape)


def product_variance(
    operation: str, arguments: Sequence[Any], keywords: dict[str, Any], sample: Tensor, operand: int
) -> Tensor | None:
    """Returns the variance of the errors of an operand's gradient (float32, of its shape).

    Args:
        operation: A node's name.
        arguments: What it is called with, recorded.
        keywords: The same by keyword.
        sample: Absolute errors of its result's gradient (float64).
        operand: Number of the operand among the tensors.

    Returns:
        None for an operation that is no product.
    """
    scale = float(sample.max()) if sample.numel() else 0.0
    if not 0 < scale < float("inf") or keywords:
        return None
    errors = torch.maximum(sample, alike(sample)).div_(scale).float().square_()
    first = _PRODUCTS.get(operation)
    if first is not None and len(arguments) == first + 2 and all(isinstance(a, Tensor) for a in arguments):
        if operand < first:
            return errors.sum_to_size(arguments[0].shape).mul_(scale**2)
        other, size = _squared(arguments[first + 1 - (operand - first)])
        made = errors @ other.transpose(-1, -2) if operand == first else other.transpose(-1, -2) @ errors
        return made.mul_((scale * size) ** 2)
    if operation == _CONVOLUTION and operand in (1, 2):
        bound = bind(resolve(operation), tuple(arguments), keywords)
        other, size = _squared(bound["input"])
        weight = bound["weight"].float()
        made = torch.ops.aten.convolution_backward(
            errors, other, weight, None, bound["stride"], bound["padding"], bound["dilation"], bound["transposed"],
            bound["output_padding"], bound["groups"], [False, operand == 1, False],
        )[1] if operand == 1 else errors.sum([n for n in range(errors.dim()) if n != 1])  # fmt: skip
        return made.mul_((scale * (size if operand == 1 else 1.0)) ** 2)
    return None


def _squared(t: Tensor) -> tuple[Tensor, float]:
    """The squares of a tensor over that of its largest element, and this element."""
    size = float(t.abs().max()) if t.numel() else 0.0
    if not 0 < size < float("inf"):
        return torch.zeros_like(t, dtype=torch.float32), 0.0
    return (t.float() / size).square_(), size
