"""Products of several matrices, and distances of all pairs."""

from __future__ import annotations

import math
from typing import cast

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites.rewrite_table import decomposes

Tensor = torch.Tensor


@decomposes("addbmm.default")
def _addbmm(x: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    total = (first @ second).sum(0)
    return ((x if beta == 1 else x * beta) + (total if alpha == 1 else total * alpha)).contiguous()


@decomposes("_grouped_mm.default")
def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """One product for each group; `offs` says where groups end along rows, columns or the summed dimension."""
    if out_dtype is not None and out_dtype != a.dtype:
        raise RefusedOperationError("grouped_mm with another output type has no rule; convert the result afterwards")
    if offs is None:
        out = a @ b
        return out if bias is None else out + bias.unsqueeze(-2)
    ends = [int(end.item()) for end in offs]
    groups = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == 2 and b.dim() == 2:
        products = torch.stack([a[:, g] @ b[g] for g in groups])
    elif a.dim() == 2:
        rows = [a[g] @ b[i] for i, g in enumerate(groups)]
        products = torch.cat([*rows, a.new_zeros(a.shape[0] - ends[-1], b.shape[-1])])
    else:
        columns = [a[i] @ b[:, g] for i, g in enumerate(groups)]
        products = torch.cat([*columns, a.new_zeros(a.shape[-2], b.shape[-1] - ends[-1])], dim=-1)
    if bias is not None:
        raise RefusedOperationError("grouped_mm with groups and a bias has no rule; add the bias afterwards")
    return products


@decomposes("_trilinear.default")
def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand1: list[int], expand2: list[int], expand3: list[int], sumdim: list[int],
    unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    for d in expand1:
        a = a.unsqueeze(d)
    for d in expand2:
        b = b.unsqueeze(d)
    for d in expand3:
        c = c.unsqueeze(d)
    product = a * b * c
    return product.sum(sumdim) if sumdim else product


@decomposes("_cdist_forward.default", "_euclidean_dist.default")
def _cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p == 0:
        return (difference != 0).to(x.dtype).sum(-1)
    if p == 1:
        return difference.abs().sum(-1)
    if p == math.inf and x.shape[-1]:
        return difference.abs().amax(-1)
    return cast(Tensor, torch.linalg.vector_norm(difference, 2 if p == math.inf else p, dim=-1))


@decomposes("_cdist_backward.default")
def _cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    if p == 0:
        return grad.new_zeros(*grad.shape[:-1], x.shape[-1])
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p == 2:
        unit = torch.where(distance == 0, 0.0, grad / distance)
        return (difference * unit.unsqueeze(-1)).sum(-2)
    if p == 1:
        return (difference.sign() * grad.unsqueeze(-1)).sum(-2)
    size = difference.abs()
    if p == math.inf:
        largest = size == distance.unsqueeze(-1)
        return torch.where(largest, difference.sign() * grad.unsqueeze(-1), 0.0).sum(-2)
    # Powers of 1 where there is nothing to divide by: what is replaced afterwards shall not be infinite before.
    none = (difference == 0) | (distance == 0).unsqueeze(-1)
    powers = torch.where(none, 1.0, size) ** (p - 1)
    unit = grad / torch.where(distance == 0, 1.0, distance) ** (p - 1)
    return torch.where(none, 0.0, difference.sign() * powers * unit.unsqueeze(-1)).sum(-2)


def _pairs(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    if p != 2:
        raise RefusedOperationError(f"pdist with p={p} has no rule; take (x[:, None] - x[None]).norm(p, -1)")
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device).unbind(0)
    return first, second


@decomposes("_pdist_forward.default")
def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Euclidean distances of rows i < j, in the order of (i, j)."""
    first, second = _pairs(x, p)
    return cast(Tensor, torch.linalg.vector_norm(x.index_select(0, first) - x.index_select(0, second), dim=-1))


@decomposes("_pdist_backward.default")
def _pdist_backward(grad: Tensor, x: Tensor, p: float, pdist: Tensor) -> Tensor:
    first, second = _pairs(x, p)
    unit = torch.where(pdist == 0, 0.0, grad / pdist)[:, None]
    slope = (x.index_select(0, first) - x.index_select(0, second)) * unit
    return torch.zeros_like(x).index_add(0, torch.cat([first, second]), torch.cat([slope, -slope]))
