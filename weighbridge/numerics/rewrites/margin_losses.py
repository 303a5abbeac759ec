"""Margin losses with their backwards."""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

Tensor = torch.Tensor


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.unsqueeze(0)


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
