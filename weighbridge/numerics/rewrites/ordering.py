"""Overloads that sort, rank and count, by stable sorts and indexing with one right answer."""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


@decomposes("sort.default")
def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


@decomposes("topk.default")
def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    values, indices = aten.sort.stable(x, stable=True, dim=dim, descending=largest)
    return aten.slice.Tensor(values, dim, 0, k).clone(), aten.slice.Tensor(indices, dim, 0, k).clone()


@decomposes("kthvalue.default")
def _kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, indices = aten.sort.stable(x, stable=True, dim=dim, descending=False)
    at = [slice(None)] * x.dim()
    if x.dim():
        at[dim] = slice(k - 1, k)
    values, indices = values[tuple(at)], indices[tuple(at)]
    if keepdim or not x.dim():
        return values.clone(), indices.clone()
    return values.squeeze(dim).clone(), indices.squeeze(dim).clone()


@decomposes("median.dim")
def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of two medians; NaN where there is any, which a sort puts last."""
    n = x.shape[dim] if x.dim() else 1
    values, indices = _kth_value(x, (n + 1) // 2, dim, keepdim)
    last, where = _kth_value(x, n, dim, keepdim)
    broken = torch.isnan(last)
    return torch.where(broken, last, values), torch.where(broken, where, indices)


@decomposes("_unique2.default")
def _unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    ordered, order = aten.sort.stable(x.reshape(-1), stable=True, dim=0, descending=False)
    values, places, counts = aten.unique_consecutive.default(ordered, return_inverse, return_counts)
    if not return_inverse:
        return values, places, counts
    return values, torch.empty_like(places).scatter(0, order, places).view(x.shape), counts


@decomposes("histc.default")
def _histogram(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts by bin: the place of an element is rounded in float32 before it is cut down, so that it is logged."""
    x = x.reshape(-1)
    low, high = float(min), float(max)
    if low == high and x.numel():
        low, high = float(x.min().item()), float(x.max().item())
    if low == high:
        low, high = low - 1, high + 1
    inside = (x >= low) & (x <= high)
    place = (torch.where(inside, x, low) - low) * bins / (high - low)
    index = torch.where(inside, place.to(torch.int64).clamp_max(bins - 1), bins)
    return torch.bincount(index, minlength=bins + 1)[:bins].to(x.dtype)


def _running(x: Tensor, dim: int, larger: bool) -> tuple[Tensor, Tensor]:
    """In log2(n) rounds each place takes the better of itself and the place 2^k before it; of equals the later."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    n = x.shape[dim]
    places = torch.arange(n, device=x.device).view([n if d == dim % x.dim() else 1 for d in range(x.dim())])
    values, indices = x.clone(memory_format=torch.contiguous_format), places.expand(x.shape).contiguous()

    def earlier(t: Tensor, by: int) -> Tensor:
        return torch.cat([t.narrow(dim, 0, by), t.narrow(dim, 0, n - by)], dim)

    by = 1
    while by < n:
        before, at = earlier(values, by), earlier(indices, by)
        taken = before > values if larger else before < values
        if x.is_floating_point():
            taken = taken | (torch.isnan(before) & ~torch.isnan(values))
        values, indices = torch.where(taken, before, values), torch.where(taken, at, indices)
        by *= 2
    return values, indices


@decomposes("cummax.default")
def _cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(x, dim, larger=True)


@decomposes("cummin.default")
def _cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(x, dim, larger=False)
