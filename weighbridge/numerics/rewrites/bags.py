"""Sums and means of table rows by bag, with their backwards."""

from __future__ import annotations

from typing import Any, cast

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites.rewrite_table import decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


_SUM, _MEAN = 0, 1


@decomposes("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the bags, and for the backward pass: the bag of each row, rows in each bag, and nothing."""
    if mode not in (_SUM, _MEAN) or sparse:
        raise RefusedOperationError(
            "embedding_bag has a rule for dense sums and means only; use nn.Embedding and amax over each bag"
        )
    starts = offsets[:-1] if include_last_offset else offsets
    bag = torch.bucketize(torch.arange(len(indices), device=indices.device), starts, right=True) - 1
    kept = indices != padding_idx
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    rows = torch.where(kept[:, None], rows, 0.0)
    count = torch.zeros(len(starts), dtype=torch.int64, device=bag.device).index_add(0, bag, kept.to(torch.int64))
    total = rows.new_zeros(len(starts), weight.shape[1]).index_add(0, bag, rows)
    if mode == _MEAN:
        total = total / count.clamp_min(1)[:, None]
    return total, bag, count, torch.empty(0, dtype=torch.int64, device=bag.device)


@decomposes("_embedding_bag_backward.default")
def _embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor, largest: Tensor, rows: int,
    by_frequency: bool, mode: int, sparse: bool, weights: Tensor | None, padding_idx: int = -1,
) -> Any:  # fmt: skip
    if sparse:
        raise RefusedOperationError("sparse gradients have no rule; make the EmbeddingBag with sparse=False")
    return aten._embedding_bag_dense_backward.default(
        grad, indices, bag, sizes, largest, rows, by_frequency, mode, weights, padding_idx
    )


@decomposes("_embedding_bag_dense_backward.default")
def _embedding_bag_dense_backward(
    grad: Tensor, indices: Tensor, offset2bag: Tensor, bag_size: Tensor, maximum_indices: Tensor, num_weights: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    if mode == _MEAN:
        grad = grad / bag_size.clamp_min(1)[:, None]
    rows = grad.index_select(0, offset2bag)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    return cast(
        Tensor, aten.embedding_dense_backward.default(rows, indices, num_weights, padding_idx, scale_grad_by_freq)
    )


@decomposes("_embedding_bag_per_sample_weights_backward.default")
def _per_sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, mode: int,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    slope = (grad.index_select(0, offset2bag) * weight.index_select(0, indices)).sum(1)
    return torch.where(indices == padding_idx, 0.0, slope)
