"""Overloads that gather, scatter and rearrange, rewritten into indexing with one right answer."""

from __future__ import annotations

import math
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites.rewrite_table import decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


def _largest(x: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool) -> Tensor:
    """Writes to each place the largest of the elements that go there.

    Two stable sorts bring the elements for one place together, the largest last; only the last of each run is written,
    the others go to places behind the end, so that no place is written twice.
    """
    n, count = x.shape[dim], index.shape[dim]
    values, order = aten.sort.stable(src, stable=True, dim=dim, descending=False)
    places, grouped = aten.sort.stable(index.gather(dim, order), stable=True, dim=dim, descending=False)
    values = values.gather(dim, grouped)
    following = torch.cat([places.narrow(dim, 1, count - 1), torch.full_like(places.narrow(dim, 0, 1), -1)], dim)
    shape = [1] * x.dim()
    shape[dim] = count
    behind = torch.arange(n, n + count, device=x.device).view(shape).expand(places.shape)
    if include_self:
        values = torch.maximum(values, x.gather(dim, places))
    target = torch.where(places != following, places, behind)
    padding = list(x.shape)
    padding[dim] = count
    return torch.cat([x, x.new_zeros(padding)], dim).scatter(dim, target, values).narrow(dim, 0, n).clone()


@decomposes("scatter_reduce.two")
def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if reduce == "prod" or x.dim() == 0 or not index.numel():
        raise RefusedOperationError(
            f"scatter_reduce({reduce!r}) of shape {tuple(x.shape)} has no fixed-order form; add logarithms with "
            "scatter_add instead of multiplying, and give the result and the index at least one dimension and element"
        )
    src = src[tuple(slice(0, size) for size in index.shape)]
    if reduce == "amax":
        return _largest(x, dim, index, src, include_self)
    if reduce == "amin":
        return -_largest(-x, dim, index, -src, include_self)
    base = x if include_self else x.scatter(dim, index, 0)
    total = base.scatter_add(dim, index, src)
    if reduce == "sum":
        return total
    counts = (torch.ones_like(x) if include_self else torch.zeros_like(x)).scatter_add(dim, index, torch.ones_like(src))
    counts = counts.clamp_min(1)
    return total / counts if x.is_floating_point() else total // counts


@decomposes("scatter_reduce_.two")
def _scatter_reduce_(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.copy_(_scatter_reduce(x, *args, **kwargs))


@decomposes("scatter.reduce", "scatter.value_reduce")
def _scatter_combining(x: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str) -> Tensor:
    if reduce != "add":
        raise RefusedOperationError(
            f"scatter with reduce={reduce!r} has no fixed-order form; add logarithms with scatter_add instead"
        )
    if not isinstance(src, Tensor):
        src = torch.full(index.shape, src, dtype=x.dtype, device=x.device)
    return x.scatter_add(dim, index, src)


@decomposes("index_reduce.default")
def _index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    places = index.view([-1 if d == dim % x.dim() else 1 for d in range(x.dim())]).expand(source.shape)
    return aten.scatter_reduce.two(x, dim, places, source, reduce, include_self=include_self)


@decomposes("index_copy.default")
def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    if not x.dim():
        return source.reshape(x.shape).clone()
    if not index.dim():
        index, source = index.view(1), source.unsqueeze(dim) if source.dim() < x.dim() else source
    return aten.index_put.default(x.contiguous(), [None] * (dim % x.dim()) + [index], source)


@decomposes("index_copy_.default")
def _index_copy_(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return x.copy_(_index_copy(x, dim, index, source))


@decomposes("put.default")
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    flat = aten.index_put.default(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.view(x.shape)


@decomposes("put_.default")
def _put_(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return x.copy_(_put(x, index, source, accumulate))


@decomposes("_unsafe_index_put.default")
def _unsafe_index_put(x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    return aten.index_put.default(x, indices, values, accumulate)


@decomposes("diagonal_backward.default")
def _diagonal_backward(grad: Tensor, input_sizes: list[int], offset: int, dim1: int, dim2: int) -> Tensor:
    out = torch.zeros(input_sizes, dtype=grad.dtype, device=grad.device)
    out.diagonal(offset, dim1, dim2).copy_(grad)
    return out


@decomposes("trace.default")
def _trace(x: Tensor) -> Tensor:
    return x.diagonal().sum()


@decomposes("_pack_padded_sequence.default")
def _pack_padded_sequence(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    if batch_first:
        x = x.transpose(0, 1)
    sizes = [int(n.item()) for n in lengths]
    if not sizes or min(sizes) <= 0 or sizes != sorted(sizes, reverse=True):
        raise RuntimeError("`lengths` must be positive and sorted in decreasing order; pass enforce_sorted=False")
    counts = [sum(n > t for n in sizes) for t in range(sizes[0])]
    times = torch.arange(sizes[0], device=lengths.device)
    return torch.cat([x[t, :count] for t, count in enumerate(counts)]), (lengths > times[:, None]).sum(1)


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


@decomposes("embedding_renorm_.default")
def _embedding_renorm_(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scales the rows that are looked up and longer than `max_norm`."""
    used = torch.zeros(len(weight), dtype=torch.bool, device=weight.device).index_fill(0, indices.reshape(-1), True)
    norm = torch.linalg.vector_norm(weight, norm_type, dim=1, keepdim=True)
    scaled = weight * (max_norm / (norm + 1e-7))
    return weight.copy_(torch.where((norm > max_norm) & used[:, None], scaled, weight))


@decomposes("channel_shuffle.default")
def _channel_shuffle(x: Tensor, groups: int) -> Tensor:
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1).transpose(1, 2)
    return parts.clone(memory_format=torch.contiguous_format).view(x.shape)


# Split views that the caller may write to in place are views all the same.


@decomposes("unsafe_split.Tensor")
def _unsafe_split(x: Tensor, split_size: int, dim: int = 0) -> Any:
    return aten.split.Tensor(x, split_size, dim)


@decomposes("unsafe_split_with_sizes.default")
def _unsafe_split_with_sizes(x: Tensor, split_sizes: list[int], dim: int = 0) -> Any:
    return aten.split_with_sizes.default(x, split_sizes, dim)


@decomposes("item.default")
def _item(x: Tensor) -> Any:
    return aten._local_scalar_dense(x)  # only a decomposition calls it here; a program's own arrives decomposed
