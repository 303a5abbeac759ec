"""Margin losses and choices with their backwards, rewritten into operations that have rules."""

from __future__ import annotations

import math
from typing import Any

import torch

from weighbridge.errors import RefusedOperationError
from weighbridge.numerics.rewriting import decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.unsqueeze(0)


# --- margins --------------------------------------------------------------------------------------------------------


@decomposes("multi_margin_loss.default")
def _multi_margin(
    x: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    rows, chosen = _rows(x), target.reshape(-1, 1)
    terms = (rows - rows.gather(1, chosen) + margin).clamp_min(0)
    terms = terms if p == 1 else terms * terms
    if weight is not None:
        terms = terms * weight[chosen]
    columns = torch.arange(rows.shape[1], device=x.device)
    losses = torch.where(columns == chosen, 0.0, terms).sum(1) / rows.shape[1]
    if reduction == 0:
        return losses if x.dim() == 2 else losses.squeeze(0)
    return losses.sum() if reduction == 2 else losses.mean()


@decomposes("multi_margin_loss_backward.default")
def _multi_margin_backward(
    grad: Tensor, x: Tensor, target: Tensor, p: Any, margin: Any, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    rows, chosen = _rows(x), target.reshape(-1, 1)
    n, classes = rows.shape
    gap = rows - rows.gather(1, chosen) + margin
    slope = torch.ones_like(gap) if p == 1 else gap * 2
    if weight is not None:
        slope = slope * weight[chosen]
    columns = torch.arange(classes, device=x.device)
    slope = torch.where((gap > 0) & (columns != chosen), slope / (classes * n if reduction == 1 else classes), 0.0)
    slope = torch.where(columns == chosen, -slope.sum(1, keepdim=True), slope)
    return (slope * (grad.reshape(-1, 1) if reduction == 0 else grad)).view(x.shape)


def _labels(rows: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns which labels are listed (they end at the first -1), their classes, and by how much others come near."""
    listed = torch.cumsum((target < 0).to(torch.int64), 1) == 0
    places = torch.where(listed, target, 0)
    return listed, places, 1 - rows.gather(1, places).unsqueeze(2) + rows.unsqueeze(1)


@decomposes("multilabel_margin_loss_forward.default")
def _multilabel_margin(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    rows, labels = _rows(x), _rows(target)
    listed, places, gap = _labels(rows, labels)
    hit = torch.zeros_like(labels).scatter_add(1, places, listed.to(torch.int64)) > 0
    active = listed.unsqueeze(2) & ~hit.unsqueeze(1)
    losses = torch.where(active, gap.clamp_min(0), 0.0).sum((1, 2)) / rows.shape[1]
    is_target = hit.to(x.dtype).view(target.shape)
    if reduction == 0:
        return (losses if x.dim() == 2 else losses.squeeze(0)), is_target
    return (losses.sum() if reduction == 2 else losses.mean()), is_target


@decomposes("multilabel_margin_loss_backward.default")
def _multilabel_margin_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    rows, labels, hit = _rows(x), _rows(target), _rows(is_target)
    n, classes = rows.shape
    listed, places, gap = _labels(rows, labels)
    share = 1.0 / (classes * n if reduction == 1 else classes)
    active = ((gap > 0) & listed.unsqueeze(2) & (hit == 0).unsqueeze(1)).to(x.dtype)
    slope = active.sum(1).scatter_add(1, places, -active.sum(2)) * share
    return (slope * (grad.reshape(-1, 1) if reduction == 0 else grad)).view(x.shape)


# --- windows and choices --------------------------------------------------------------------------------------------


@decomposes("unfold_backward.default")
def _unfold_backward(grad: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    if not input_sizes:
        return grad.reshape(()).clone()
    dim %= len(input_sizes)
    places = torch.arange(input_sizes[dim], device=grad.device).unfold(0, size, step).flatten()
    windows = grad.movedim(-1, dim + 1).flatten(dim, dim + 1)
    return grad.new_zeros(input_sizes).index_add(dim, places, windows)


@decomposes("masked_scatter_backward.default")
def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    count, chosen = math.prod(sizes), grad.masked_select(mask)
    return torch.cat([chosen, chosen.new_zeros(max(0, count - chosen.numel()))]).view(sizes)


@decomposes("adaptive_max_pool3d_backward.default")
def _adaptive_max_pool3d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    flat = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-3)
    return flat.scatter_add(-1, indices.flatten(-3), grad.flatten(-3)).view(x.shape)


@decomposes("scatter.reduce", "scatter.value_reduce")
def _scatter_combining(x: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str) -> Tensor:
    if reduce != "add":
        raise RefusedOperationError(
            f"scatter with reduce={reduce!r} has no fixed-order form; add logarithms with scatter_add instead"
        )
    if not isinstance(src, Tensor):
        src = torch.full(index.shape, src, dtype=x.dtype, device=x.device)
    return x.scatter_add(dim, index, src)


@decomposes("_fused_dropout.default")
def _fused_dropout(x: Tensor, p: float, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """The CUDA dropout of old programs; `p` is the probability of keeping."""
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(p, generator=generator)
    return x * mask * (1.0 / p), mask.to(torch.uint8)


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
