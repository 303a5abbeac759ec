"""The rounding pass of float32 results in the CPU's memory: which fused loop walks a result and its bound."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.core.host_memory import array_of
from weighbridge.numerics.arrays.physical import extent, in_physical_order, merge
from weighbridge.numerics.rounding import cpu_kernels
from weighbridge.numerics.rounding.bound import Bound, Ints

_EMPTY, _NOWHERE = np.empty(0, dtype=np.float64), np.empty(0, dtype=np.int64)

Layout = tuple[torch.Size, tuple[int, ...]]


@lru_cache(maxsize=4096)
def _ranked(
    shape: torch.Size, strides: tuple[int, ...], left: Layout, right: Layout
) -> tuple[int, int, cpu_kernels.Strides, cpu_kernels.Strides, int, int] | None:
    """How three nested loops in x's physical order walk two factors of its bound, or None if none do.

    Args:
        shape: Shape of x.
        strides: Its strides.
        left: Shape and strides of the first factor, which broadcasts against x.
        right: The same of the second.

    Returns:
        (rows, columns, strides of the first factor, of the second, elements of memory of the first, of the second)
    """
    x = torch.empty_strided(shape, strides, device="meta")
    factors = [in_physical_order(x, torch.empty_strided(*layout, device="meta")) for layout in (left, right)]
    merged, (ls, rs) = merge(list(factors[0].shape), [list(f.stride()) for f in factors])
    if len(merged) != 3:
        return None
    return merged[1], merged[2], (ls[0], ls[1], ls[2]), (rs[0], rs[1], rs[2]), extent(factors[0]), extent(factors[1])


def record(
    x: torch.Tensor, bound: Bound, out: torch.Tensor
) -> tuple[int, Ints, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Runs the fused kernel; returns (checksum, contested positions, their wide values, their bounds)."""
    xs, outs = array_of(x), array_of(out)
    bits = outs.view(np.uint32)
    rel, absolute = bound.rel, bound.absolute
    factors = tuple(f.to(x.dtype) for f in bound.factors)  # of integers, which a tape may name, a factor is float32
    plan, e = None, _EMPTY
    if factors:
        # Made anew each time: a chip would count a constant that stays as memory of the workload.
        left, right = factors if len(factors) == 2 else (factors[0], factors[0].new_ones(()))
        plan = _ranked(x.shape, x.stride(), (left.shape, left.stride()), (right.shape, right.stride()))
        if plan is not None:
            rows, columns, ls, rs, m, n = plan
            lefts, rights = array_of(left, m), array_of(right, n)
        else:
            e = (in_physical_order(x, left) * in_physical_order(x, right)).reshape(-1).numpy()
    room = 64 + xs.size // 32  # virtual memory that is touched only as far as it is used
    while True:
        positions, bounds = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.float64)
        if plan is not None:
            checksum, found = cpu_kernels.pass_rank_one(
                xs, rel, absolute, rows, columns, lefts, ls, rights, rs, outs, bits, positions, bounds
            )
        else:
            checksum, found = cpu_kernels.pass_dense(xs, rel, absolute, e, outs, bits, positions, bounds)
        if not found:
            return int(checksum), _NOWHERE, _EMPTY, _EMPTY
        if found <= room:
            positions = positions[:found].copy()
            return int(checksum), positions, xs[positions], bounds[:found]
        room = int(found)
