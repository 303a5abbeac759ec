"""Writes through an index that names a place twice: the last in index order wins, on every device.

Kernels write in whatever order their threads run. So before the kernel runs, all but the last write to a place are
dropped. Operands without duplicates pass unchanged.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor
Indices = list[Tensor | None]


def _last(places: Tensor) -> Tensor | None:
    """Returns the positions of the last occurrence of each value of a flat integer tensor, or None if all differ."""
    ordered, order = torch.sort(places, stable=True)
    end = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=end[:-1])
    return None if bool(end.all()) else torch.sort(order[end]).values


def index_put(x: Tensor, indices: Indices, values: Tensor) -> tuple[Indices, Tensor] | None:
    """Drops overwritten writes from the operands of `index_put` without accumulation.

    Args:
        x: What is written to, of any shape.
        indices: As `index_put` takes them: integer or boolean tensors, or None for a dimension that is kept whole.
        values: What is written; broadcasts to `x[indices]`.

    Returns:
        Indices and values that name no place twice, or None if the given ones do not (or write one value everywhere).
    """
    if values.numel() <= 1 or all(i is None or i.dtype == torch.bool for i in indices):
        return None
    whole: Indices = []
    for index in indices:
        masks = index is not None and index.dtype in (torch.bool, torch.uint8)
        whole += list(index.nonzero().unbind(1)) if index is not None and masks else [index]
    at = [d for d, index in enumerate(whole) if index is not None]
    given = torch.broadcast_tensors(*[index for index in whole if index is not None])  # type: ignore[no-untyped-call]
    place = torch.zeros_like(given[0], dtype=torch.int64)
    for d, index in zip(at, given, strict=True):
        place = place * x.shape[d] + torch.remainder(index.to(torch.int64), max(1, x.shape[d]))
    kept = _last(place.reshape(-1))
    if kept is None:
        return None
    kept_dims = [x.shape[d] for d in range(x.dim()) if d not in at]
    adjacent = at == list(range(at[0], at[0] + len(at)))
    front = at[0] if adjacent else 0
    shape = [*kept_dims[:front], *place.shape, *kept_dims[front:]]
    rows = values.expand(shape).reshape(*kept_dims[:front], place.numel(), *kept_dims[front:]).index_select(front, kept)
    fewer: Indices = [None] * len(whole)
    for d, index in zip(at, given, strict=True):
        fewer[d] = index.reshape(-1)[kept]
    return fewer, rows


def scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Redirects overwritten writes of `scatter` to places behind the end of `dim`.

    Args:
        x: What is written to; at least one dimension.
        dim: The dimension that the index counts along.
        index: Places, int64.
        src: What is written, at least as large as `index` everywhere.

    Returns:
        A longer `x`, index and source to scatter; the first `x.shape[dim]` places of the outcome are the result. None
        if no place is written twice.
    """
    src = src[tuple(slice(0, size) for size in index.shape)]
    places, order = torch.sort(index, dim=dim, stable=True)
    count = places.shape[dim]
    again = places.narrow(dim, 1, count - 1) == places.narrow(dim, 0, count - 1)
    if not bool(again.any()):
        return None
    shape = [1] * x.dim()
    shape[dim] = count
    behind = torch.arange(x.shape[dim], x.shape[dim] + count, device=x.device).view(shape).expand(places.shape)
    earlier = torch.cat([again, torch.zeros_like(places.narrow(dim, 0, 1), dtype=torch.bool)], dim)
    size = list(x.shape)
    size[dim] = count
    longer = torch.cat([x, x.new_zeros(size)], dim)
    return longer, torch.where(earlier, behind, places), src.gather(dim, order)
