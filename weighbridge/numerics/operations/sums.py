"""Sums and Euclidean norms of float32 on the CPU: value and bound from one trip over the operand, which is not copied.

A sum may be taken in any order, so this is as good a kernel as PyTorch's, and it need not be the replayer's. Blocks of
at most 256 elements are added up in whatever order is fastest, and the blocks with a compensated sum (Neumaier 1974),
so that errors are no larger than those of PyTorch's cascades, for which calibrated bounds were measured.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from weighbridge.core.jit import compiled
from weighbridge.numerics.arrays.reductions import Array, Triple, memory_of, plan_of, reordered, row_squares
from weighbridge.numerics.bounds import Call, reduced
from weighbridge.numerics.families.sums import norm, summation_bound
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rule_table import base_name
from weighbridge.numerics.schemas import Op

Tensor = torch.Tensor

_as_written = compiled()
_BLOCK = 256
_ROWS = 32


@reordered
def row(x: Array, bits: Array) -> tuple[float, float, np.uint32]:
    """Returns the sums of x and of |x|, and the bits of the smallest |x| that is not zero, less one."""
    total, size, least = 0.0, 0.0, np.uint32(0xFFFFFFFF)
    for i in range(x.size):
        v = np.float64(x[i])
        total += v
        size += abs(v)
        least = min(least, np.uint32((bits[i] & np.uint32(0x7FFFFFFF)) - np.uint32(1)))  # zero becomes the largest
    return total, size, least


@reordered
def add_row(x: Array, bits: Array, total: Array, size: Array, least: Array) -> None:
    """The same of many sums at once: adds each element to its own."""
    for i in range(x.size):
        v = np.float64(x[i])
        total[i] += v
        size[i] += abs(v)
        least[i] = min(least[i], np.uint32((bits[i] & np.uint32(0x7FFFFFFF)) - np.uint32(1)))


@_as_written
def add(out: Array, lost: Array, q: int, value: float) -> None:
    """Adds to an element of `out` and its rounding error to that of `lost`."""
    before = out[q]
    after = before + value
    lost[q] += (before - after) + value if abs(before) >= abs(value) else (value - after) + before
    out[q] = after


@_as_written
def finish(out: Array, lost: Array) -> None:
    """Adds what the sums lost."""
    for q in range(out.size):
        whole = out[q] + lost[q]
        if whole == whole:  # an infinite sum has lost "not a number"
            out[q] = whole


@_as_written
def _totals(
    x: Array, bits: Array, shape: Triple, xs: Triple, out: Array, lost: Array, size: Array, least: Array, os: Triple
) -> None:
    """out[where] += x, size[where] += |x|, least[where] = bits of the smallest |x| that is not zero, less one."""
    n = shape[2]
    if os[2] == 0:
        for a in range(shape[0]):
            for b in range(shape[1]):
                p, q = a * xs[0] + b * xs[1], a * os[0] + b * os[1]
                for start in range(p, p + n, _BLOCK):
                    stop = min(start + _BLOCK, p + n)
                    total, absolute, small = row(x[start:stop], bits[start:stop])
                    add(out, lost, q, total)
                    size[q] += absolute
                    least[q] = min(least[q], small)
    else:
        partial = np.zeros(n)
        rows, place = 0, 0
        for a in range(shape[0]):
            for b in range(shape[1]):
                p, q = a * xs[0] + b * xs[1], a * os[0] + b * os[1]
                if rows == _ROWS or (rows > 0 and q != place):
                    for i in range(n):
                        add(out, lost, place + i, partial[i])
                        partial[i] = 0.0
                    rows = 0
                add_row(x[p : p + n], bits[p : p + n], partial, size[q : q + n], least[q : q + n])
                place = q
                rows += 1
        for i in range(n):
            add(out, lost, place + i, partial[i])
    finish(out, lost)


@_as_written
def _squares(x: Array, shape: Triple, xs: Triple, out: Array, lost: Array, os: Triple) -> None:
    """out[where] += x^2, for results that are not the innermost dimension."""
    for a in range(shape[0]):
        for b in range(shape[1]):
            p, q = a * xs[0] + b * xs[1], a * os[0] + b * os[1]
            for start in range(p, p + shape[2], _BLOCK):
                add(out, lost, q, row_squares(x[start : min(start + _BLOCK, p + shape[2])]))
    finish(out, lost)


def least_of(bits: Array) -> Array:
    """Returns the least absolute values that are not zero, or infinity, in float64, of what the loops noted."""
    none = bits >= 0x7F800000
    least: Array = np.where(none, np.uint32(0x7F800000), bits + np.uint32(1)).view(np.float32).astype(np.float64)
    return least


def evaluate(op: Op, operands: dict[str, Any], *, bounded: bool = True) -> tuple[Tensor, Bound] | None:
    """Returns a sum or norm in float64 and its bound; None if the call is none that this module computes.

    Args:
        op: Any overload.
        operands: Its operands by schema name, as given.
        bounded: Whether the bound is wanted; else it is zero.
    """
    x, name = operands.get("self"), base_name(op)[0]
    if name != "sum" and (name != "linalg_vector_norm" or operands["ord"] != 2):
        return None
    if not isinstance(x, Tensor) or not x.dim() or operands.get("dtype") is not None:
        return None
    dims = reduced(x, operands.get("dim"))
    plan = plan_of(x, dims)
    if plan is None or (name != "sum" and plan[2][2]):
        return None
    shape, xs, os, kept, count = plan
    gone = () if operands.get("keepdim") else {d % x.dim() for d in dims}
    wanted = [length for d, length in enumerate(kept) if d not in gone]
    flat = memory_of(x)
    out, lost = np.zeros(count), np.zeros(count)
    if name != "sum":
        _squares(flat, shape, xs, out, lost, os)
        root = torch.from_numpy(np.sqrt(out)).view(wanted)
        return root, norm(Call(name, operands, [root]))[0] if bounded else Bound()
    size = np.zeros(count)
    bits = np.full(count, 0xFFFFFFFF, dtype=np.uint32)
    _totals(flat, flat.view(np.uint32), shape, xs, out, lost, size, bits, os)
    if not bounded:
        return torch.from_numpy(out).view(wanted), Bound()
    total, absolute, least = (torch.from_numpy(a).view(wanted) for a in (out, size, least_of(bits)))
    return total, summation_bound(absolute, least, math.prod(x.shape[d] for d in dims))
