"""The gradient of an embedding, without the rows that no index looked up.

A vocabulary has tens of thousands of rows, and a batch uses some hundreds of them. The other rows of the gradient are
zero under every conforming algorithm; nothing is widened, bounded or rounded for them.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def used_rows(operands: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...]]:
    """Reduces a call of `embedding_dense_backward` to the rows that it uses.

    Args:
        operands: Its operands by schema name; `grad_output` of shape (*indices, D).

    Returns:
        The rows that are used, ascending, shape (K,), int64; and the operands of a call whose result has only these
        rows, shape (K, D), in this order.
    """
    index: Tensor = operands["indices"].reshape(-1)
    gradient: Tensor = operands["grad_output"].reshape(index.numel(), operands["grad_output"].shape[-1])
    # Padding gets no gradient; as the kernel does, a negative number names none.
    kept = (index != operands["padding_idx"]).nonzero().view(-1)
    if kept.numel() < index.numel():
        index, gradient = index[kept], gradient[kept]
    rows, places = torch.unique(index, return_inverse=True)
    return rows.to(torch.int64), (gradient, places, rows.numel(), -1, operands["scale_grad_by_freq"])


def spread(compact: Tensor, rows: Tensor, count: int) -> Tensor:
    """Returns the whole gradient, shape (count, D): `compact` in its rows, zero elsewhere."""
    whole = compact.new_zeros(count, compact.shape[-1])
    whole[rows] = compact
    return whole
