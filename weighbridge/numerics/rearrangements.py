"""Overloads that gather, scatter, count and pool, rewritten into indexing with one right answer."""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from weighbridge.errors import RefusedOperationError
from weighbridge.numerics.rewriting import TABLE, Decomposition, decomposes

aten = torch.ops.aten
Tensor = torch.Tensor

# --- order: a stable sort has one right answer, whatever the ties --------------------------------------------------


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


# --- scattering ----------------------------------------------------------------------------------------------------


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


# --- pooling and interpolation --------------------------------------------------------------------------------------


@decomposes("adaptive_max_pool2d_backward.default")
def _adaptive_max_pool2d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    flat = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-2)
    return flat.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).view(x.shape)


@decomposes("adaptive_avg_pool3d_backward.grad_input")
def _adaptive_avg_pool3d_backward_into(grad: Tensor, x: Tensor, *, grad_input: Tensor) -> Tensor:
    return grad_input.copy_(aten._adaptive_avg_pool3d_backward.default(grad, x))


def _flat_scale(scale: float | None) -> tuple[float | None, float | None]:
    return None, scale


@decomposes("upsample_linear1d.default")
def _upsample_linear1d(x: Tensor, output_size: list[int], align_corners: bool, scales: float | None = None) -> Any:
    scale = _flat_scale(scales)
    return aten.upsample_bilinear2d.default(x.unsqueeze(2), [1, *output_size], align_corners, *scale).squeeze(2)


@decomposes("upsample_linear1d_backward.default")
def _upsample_linear1d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales: float | None = None
) -> Any:
    n, c, length = input_size
    return aten.upsample_bilinear2d_backward.default(
        grad.unsqueeze(2), [1, *output_size], [n, c, 1, length], align_corners, *_flat_scale(scales)
    ).squeeze(2)


@decomposes("_unsafe_index_put.default")
def _unsafe_index_put(x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    return aten.index_put.default(x, indices, values, accumulate)


# --- products and distances -----------------------------------------------------------------------------------------


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


# --- PyTorch's own decompositions that end in ruled operations -----------------------------------------------------

_FROM_TORCH = """
soft_margin_loss.default soft_margin_loss_backward.default im2col.default col2im.default linalg_cross.default
logit.default logit_backward.default sinc.default
_fused_rms_norm_backward.default
"""


def _torchs(name: str) -> dict[str, Decomposition]:
    """PyTorch's decomposition of an overload, or nothing in a version that lacks the overload."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet, None), overload, None)
    return {} if op is None else {name: torch._decomp.decomposition_table[op]}


for _name in _FROM_TORCH.split():
    TABLE.update(_torchs(_name))
