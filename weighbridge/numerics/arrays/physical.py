"""How dense tensors lie in memory: strides, physical order, and the dimensions that loops can walk as one."""

from __future__ import annotations

import torch


def is_dense(x: torch.Tensor) -> bool:
    """True if `x` covers its memory once, without gaps or overlap, in some order of its dimensions."""
    expected = 1
    for stride, size in sorted((st, sz) for st, sz in zip(x.stride(), x.shape, strict=True) if sz != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense_strides(shape: torch.Size, strides: tuple[int, ...] | None) -> tuple[int, ...]:
    """Returns `strides` if they lay `shape` out densely, else the row-major strides."""
    row_major: list[int] = []
    step = 1
    for size in reversed(shape):
        row_major.insert(0, step)
        step *= max(size, 1)
    if strides is None:
        return tuple(row_major)
    expected = 1
    for stride, size in sorted((st, sz) for st, sz in zip(strides, shape, strict=True) if sz != 1):
        if stride != expected:
            return tuple(row_major)
        expected *= size
    return strides


def lay_out(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Returns `x` with dense `strides`, copying only if it lies otherwise."""
    if x.stride() == strides:
        return x
    if x.is_contiguous() and all(a == b for a, b, n in zip(x.stride(), strides, x.shape, strict=True) if n != 1):
        return x.as_strided(x.shape, strides, x.storage_offset())
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def flat(x: torch.Tensor) -> torch.Tensor:
    """Returns a dense tensor's memory as one dimension of stride 1, in physical order."""
    if x.is_contiguous() and x.numel() > 1:  # a single element may have any stride, which `view` would keep
        return x.view(-1)
    return x.as_strided((x.numel(),), (1,), x.storage_offset())


def in_physical_order(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Returns `factor` expanded to x's shape with its dimensions in x's physical order."""
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], d))
    return factor.expand(x.shape).permute(order)


def coordinates(x: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
    """Returns the logical indices, one tensor a dimension, of physical positions of a dense tensor."""
    strides = x.stride()
    rest, found = positions, [torch.zeros_like(positions)] * x.dim()
    for d in sorted(range(x.dim()), key=lambda d: (strides[d], -d)):
        found[d] = rest % x.shape[d]
        rest = rest // x.shape[d]
    return found


def merge(shape: list[int], strides: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Merges neighbouring dimensions that every stride list walks as one."""
    out_shape: list[int] = []
    out: list[list[int]] = [[] for _ in strides]
    for d, size in enumerate(shape):
        if size == 1:
            continue
        if out_shape and all(o[-1] == s[d] * size for o, s in zip(out, strides, strict=True)):
            out_shape[-1] *= size
            for o, s in zip(out, strides, strict=True):
                o[-1] = s[d]
        else:
            out_shape.append(size)
            for o, s in zip(out, strides, strict=True):
                o.append(s[d])
    while len(out_shape) < 3:
        out_shape.insert(0, 1)
        for o in out:
            o.insert(0, 0)
    return out_shape, out


def extent(t: torch.Tensor) -> int:
    """Elements of memory from a tensor's first element to its last."""
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
