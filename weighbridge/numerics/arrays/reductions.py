"""Sums of squares and of absolute values, as bounds need them: one trip over the operand as it is, accumulated wide.

On the CPU a compiled kernel reads float32 and adds up in float64, in whatever order is fastest: a bound may err in its
last digits (`kernels.SLACK`). Other devices and types take PyTorch's reductions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.core.host_memory import array_of
from weighbridge.core.jit import compiled
from weighbridge.numerics.arrays.physical import extent, merge

Tensor = torch.Tensor
Array = npt.NDArray[Any]
Triple = tuple[int, int, int]
reordered = compiled(fastmath={"reassoc", "contract"})
"""Compiles a function whose sums may be reassociated; NaN and infinities are kept."""


@reordered
def row_squares(x: Array) -> float:
    """Returns the sum of the squares of float32 values in one dimension, in float64, in any order."""
    total = 0.0
    for i in range(x.size):
        v = np.float64(x[i])
        total += v * v
    return total


@reordered
def _add_squares(x: Array, out: Array) -> None:
    for i in range(x.size):
        v = np.float64(x[i])
        out[i] += v * v


@reordered
def _squares(x: Array, shape: Triple, xs: Triple, out: Array, os: Triple) -> None:
    """out[where] += x^2; an output stride of 0 says that a dimension is summed over."""
    n = shape[2]
    for a in range(shape[0]):
        for b in range(shape[1]):
            p, q = a * xs[0] + b * xs[1], a * os[0] + b * os[1]
            if os[2] == 0:
                out[q] += row_squares(x[p : p + n])
            else:
                _add_squares(x[p : p + n], out[q : q + n])


@compiled()
def _roots(x: Array, times: float) -> None:
    for i in range(x.size):
        x[i] = times * np.sqrt(x[i])


@reordered
def _row_sizes(x: Array, bits: Array) -> tuple[float, np.uint32]:
    total, least = 0.0, np.uint32(0xFFFFFFFF)
    for i in range(x.size):
        total += np.float64(abs(x[i]))
        least = min(least, np.uint32((bits[i] & np.uint32(0x7FFFFFFF)) - np.uint32(1)))  # zero becomes the largest
    return total, least


@reordered
def _add_sizes(x: Array, bits: Array, out: Array, least: Array) -> None:
    for i in range(x.size):
        out[i] += np.float64(abs(x[i]))
        least[i] = min(least[i], np.uint32((bits[i] & np.uint32(0x7FFFFFFF)) - np.uint32(1)))


@reordered
def _sizes(x: Array, bits: Array, shape: Triple, xs: Triple, out: Array, least: Array, os: Triple) -> None:
    """out[where] += |x| and least[where] = the bits of the smallest |x| that is not zero, less one."""
    n = shape[2]
    for a in range(shape[0]):
        for b in range(shape[1]):
            p, q = a * xs[0] + b * xs[1], a * os[0] + b * os[1]
            if os[2] == 0:
                total, small = _row_sizes(x[p : p + n], bits[p : p + n])
                out[q] += total
                least[q] = min(least[q], small)
            else:
                _add_sizes(x[p : p + n], bits[p : p + n], out[q : q + n], least[q : q + n])


Plan = tuple[Triple, Triple, Triple, list[int], int]
"""(shape, strides of x, strides of the result, the result's shape with kept dimensions, its size)"""


def plan_of(x: Tensor, dims: Sequence[int]) -> Plan | None:
    """Returns how to walk an operand that is summed over `dims`.

    None where the operand is not on the CPU, not float32, or no three nested loops walk it in unit strides.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or not x.numel():
        return None
    return _plan(tuple(x.shape), x.stride(), tuple(dims))


@lru_cache(maxsize=4096)
def _plan(sizes: tuple[int, ...], walk: tuple[int, ...], dims: tuple[int, ...]) -> Plan | None:
    summed = {d % len(sizes) for d in dims}
    kept = [1 if d in summed else n for d, n in enumerate(sizes)]
    strides, step = [0] * len(sizes), 1
    for d in reversed(range(len(sizes))):
        if d not in summed:
            strides[d] = step
            step *= sizes[d]
    order = sorted(range(len(sizes)), key=lambda d: (-walk[d], d))
    shape, (xs, os) = merge([sizes[d] for d in order], [[walk[d] for d in order], [strides[d] for d in order]])
    if len(shape) != 3 or (shape[2] != 1 and (xs[2] != 1 or os[2] not in (0, 1))):
        return None
    return (shape[0], shape[1], shape[2]), (xs[0], xs[1], xs[2]), (os[0], os[1], os[2]), kept, step


def memory_of(x: Tensor) -> Array:
    """Returns the memory of a CPU tensor from its first element to its last, as one dimension."""
    return array_of(x, extent(x))


def _summed_squares(x: Tensor, dims: Sequence[int]) -> tuple[Array, list[int]] | None:
    """Returns the sums of squares over `dims`, and their shape as a tensor; None if no loop walks the operand."""
    plan = plan_of(x, dims)
    if plan is None:
        return None
    shape, xs, os, kept, size = plan
    out = np.zeros(size)
    _squares(memory_of(x), shape, xs, out, os)
    return out, kept


def squares(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Returns the sums of squares over `dims`, which stay as dimensions of size 1; float64 of float32."""
    found = _summed_squares(x, dims)
    if found is None:
        return _norms(x, dims).square_()
    return torch.from_numpy(found[0]).view(found[1])


def norm(x: Tensor, dims: Sequence[int], times: float = 1.0) -> Tensor:
    """Returns the Euclidean norms over `dims`, which stay as dimensions of size 1, times a number; in float64."""
    found = _summed_squares(x, dims)
    if found is None:
        return _norms(x, dims).mul_(times)
    _roots(found[0], times)
    return torch.from_numpy(found[0]).view(found[1])


def _norms(x: Tensor, dims: Sequence[int]) -> Tensor:
    # In float32, squares of small elements would be zero and those of large ones infinite.
    norms: Tensor = torch.linalg.vector_norm(x, dim=list(dims), keepdim=True, dtype=torch.float64)
    return norms


def sizes(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Returns (sums of absolute values, the least absolute value that is not zero or infinity) over `dims`, kept."""
    plan = plan_of(x, dims)
    if plan is None:
        size = x.abs().double()
        total = size.sum(dim=list(dims), keepdim=True)
        if not x.numel():
            return total, torch.full_like(total, math.inf)
        return total, torch.where(size == 0, math.inf, size).amin(dim=list(dims), keepdim=True)
    shape, xs, os, kept, count = plan
    flat = memory_of(x)
    out, bits = np.zeros(count), np.full(count, 0xFFFFFFFF, dtype=np.uint32)
    _sizes(flat, flat.view(np.uint32), shape, xs, out, bits, os)
    none = bits >= 0x7F800000
    small = np.where(none, np.uint32(0x7F800000), bits + np.uint32(1)).view(np.float32)
    return torch.from_numpy(out).view(kept), torch.from_numpy(small.astype(np.float64)).view(kept)


@reordered
def _row_products(x: Array, y: Array, bits: Array) -> tuple[float, np.uint32]:
    total, top = 0.0, np.uint32(0)
    for i in range(x.size):
        total += abs(np.float64(x[i]) * np.float64(y[i]))
        top = max(top, np.uint32(bits[i] & np.uint32(0x7FFFFFFF)))
    return total, top


@reordered
def _products(x: Array, y: Array, bits: Array, out: Array, tops: Array) -> None:
    n = x.size // out.size
    for r in range(out.size):
        p = r * n
        out[r], tops[r] = _row_products(x[p : p + n], y[p : p + n], bits[p : p + n])


def products(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Returns max |x| + sum |x*y| over a dimension, which stays as one of size 1; float64.

    Args:
        x: A tensor with elements.
        y: A tensor of the same shape.
        dim: The dimension.
    """
    loop = x.is_cpu and x.dtype == y.dtype == torch.float32 and x.dim() and dim % x.dim() == x.dim() - 1
    if not (loop and x.is_contiguous() and y.is_contiguous()):
        x, y = x.double(), y.double()
        total: Tensor = x.abs().amax(dim=dim, keepdim=True) + (x * y).abs().sum(dim=dim, keepdim=True)
        return total
    flat = array_of(x)
    out, tops = np.empty(x.numel() // x.shape[-1]), np.empty(x.numel() // x.shape[-1], dtype=np.uint32)
    _products(flat, array_of(y), flat.view(np.uint32), out, tops)
    out += tops.view(np.float32)
    return torch.from_numpy(out).view(*x.shape[:-1], 1)


@dataclass(frozen=True, slots=True)
class Terms:
    """What bounds of normalisation gradients are made of, for each group of elements that is normalised together.

    With a = g*w and xhat = (x - mean)*rstd. All are non-negative tensors, float64 of float32.

    Attributes:
        norm: Norm of a, (groups,).
        spread: Norm of xhat, (groups,).
        largest: Largest |a|, (groups,).
        top: Largest |xhat|, (groups,).
        lost: Sum of |g|*(|x| + |mean|)*|rstd|, (groups,).
        size: Sum of |g|, (groups,).
        lost_columns: The same as `lost` summed over the groups instead, (elements of the innermost dimension,).
        size_columns: The same as `size` summed over the groups instead, (elements of the innermost dimension,).
    """

    norm: Tensor
    spread: Tensor
    largest: Tensor
    top: Tensor
    lost: Tensor
    size: Tensor
    lost_columns: Tensor
    size_columns: Tensor


@reordered
def _largest(bits: Array) -> np.uint32:
    top = np.uint32(0)
    for i in range(bits.size):
        top = max(top, np.uint32(bits[i] & np.uint32(0x7FFFFFFF)))
    return top


@reordered
def _row_terms(
    g: Array, x: Array, w: Array, mean: float, rstd: float, a: Array, h: Array, lost: Array, size: Array
) -> tuple[float, float, float, float]:
    squares, spread, all_lost, all_size = 0.0, 0.0, 0.0, 0.0
    am, ar = abs(mean), abs(rstd)
    for i in range(g.size):
        gi, xi = np.float64(g[i]), np.float64(x[i])
        ai, hi, si = gi * w[i], (xi - mean) * rstd, abs(gi)
        li = si * (abs(xi) + am) * ar
        a[i], h[i] = np.float32(ai), np.float32(hi)
        squares += ai * ai
        spread += hi * hi
        all_lost += li
        all_size += si
        lost[i] += li
        size[i] += si
    return squares, spread, all_lost, all_size


@reordered
def _gradient_terms(
    g: Array, x: Array, shape: Triple, w: Array, mean: Array, rstd: Array, rows: Array, tops: Array,
    lost: Array, size: Array,
) -> None:  # fmt: skip
    n = shape[2]
    a, h = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    abits, hbits = a.view(np.uint32), h.view(np.uint32)
    for outer in range(shape[0]):
        for c in range(shape[1]):
            p = (outer * shape[1] + c) * n
            found = _row_terms(g[p : p + n], x[p : p + n], w, mean[c], rstd[c], a, h, lost, size)
            for k in range(4):
                rows[k, c] += found[k]
            tops[0, c] = max(tops[0, c], _largest(abits))
            tops[1, c] = max(tops[1, c], _largest(hbits))


def gradient_terms(g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> Terms:
    """Returns the terms of a normalisation over the first and last of three dimensions.

    Args:
        g: Gradient of the output, (outer, groups, inner).
        x: Operand, of the same shape.
        weight: Factors along the innermost dimension, (inner,), or None.
        mean: Mean of each group, (groups,).
        rstd: Its reciprocal standard deviation, (groups,).
    """
    outer, groups, inner = x.shape
    if x.device.type != "cpu" or x.dtype != torch.float32 or g.dtype != torch.float32:
        wide = None if weight is None else weight.double()
        return _torch_terms(g.double(), x.double(), wide, mean.double(), rstd.double())
    w = np.ones(inner) if weight is None else weight.detach().double().contiguous().numpy()
    rows, tops = np.zeros((4, groups)), np.zeros((2, groups), dtype=np.uint32)
    lost, size = np.zeros(inner), np.zeros(inner)
    flat = [t.detach().contiguous().reshape(-1).numpy() for t in (g, x)]
    centre, scale = (t.detach().double().contiguous().numpy() for t in (mean, rstd))
    _gradient_terms(flat[0], flat[1], (outer, groups, inner), w, centre, scale, rows, tops, lost, size)
    sums, largest = torch.from_numpy(rows), torch.from_numpy(tops.view(np.float32).astype(np.float64))
    return Terms(
        sums[0].sqrt(), sums[1].sqrt(), largest[0], largest[1], sums[2], sums[3],
        torch.from_numpy(lost), torch.from_numpy(size),
    )  # fmt: skip


def _torch_terms(g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> Terms:
    centre, scale, dims = mean.view(1, -1, 1), rstd.view(1, -1, 1), (0, 2)
    a = g if weight is None else g * weight
    xhat, size = (x - centre) * scale, g.abs()
    lost = size * (x.abs() + centre.abs()) * scale.abs()
    return Terms(
        torch.linalg.vector_norm(a, dim=dims), torch.linalg.vector_norm(xhat, dim=dims),
        a.abs().amax(dim=dims), xhat.abs().amax(dim=dims), lost.sum(dim=dims), size.sum(dim=dims),
        lost.sum(dim=(0, 1)), size.sum(dim=(0, 1)),
    )  # fmt: skip
