"""The derivative of matrix products, which needs no product to be taken again: most of a step's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor

_PRODUCTS = {"mm.default": 0, "bmm.default": 0, "addmm.default": 1, "baddbmm.default": 1}
"""Operations by the place of the first factor among their operands."""


def gradients(
    operation: str, arguments: Sequence[Any], keywords: dict[str, Any], gradient: Tensor, wanted: Sequence[int]
) -> list[Tensor] | None:
    """Returns the gradients of a product's operands; None of what is no product with all its operands tensors.

    Args:
        operation: Name of the node.
        arguments: What it is called with.
        keywords: The same by keyword.
        gradient: That of its result.
        wanted: Places of the operands.
    """
    first = _PRODUCTS.get(operation)
    if first is None or keywords or len(arguments) != first + 2 or not all(isinstance(a, Tensor) for a in arguments):
        return None
    a, b = arguments[first], arguments[first + 1]
    g = gradient.to(a.dtype)
    made: list[Callable[[], Tensor]] = [lambda: g @ b.transpose(-1, -2), lambda: a.transpose(-1, -2) @ g]
    if first:
        made.insert(0, lambda: g.sum_to_size(arguments[0].shape))
    return [made[number]() for number in wanted]
