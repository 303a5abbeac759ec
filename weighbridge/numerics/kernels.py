"""The rounding pass on the CPU: one trip over memory that rounds, canonicalises, checks and finds contested elements.

Every kernel walks a float64 array `x` in physical order and writes float32 `out`. An element is *contested* iff
`float32(x - 2e) != float32(x + 2e)` for its bound e, or x or e is not finite. Contested elements are only counted per
block here; `list_dense` and `list_rank_one` then list those of the blocks that have any, which is rare. The checksum is
the sum modulo 2^64 of `bits * weight(index)`; being an integer sum it does not depend on the order of evaluation.

`torch_pass` and `torch_checksum` are the same functions out of PyTorch operations, for other devices and as an oracle
in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba
import numpy as np
import numpy.typing as npt
import torch

BLOCK = 2048
SLACK = 1.0 + 2.0**-20
"""Allowance for evaluating a bound in floating point, which Prover and Verifier do each with their own operands."""
REACH = 2.0 * SLACK
"""How many bounds away from a conforming result another one may lie."""
WEIGHT = 0x9E3779B1
CANONICAL_NAN = 0x7FC00000

P = ParamSpec("P")
R = TypeVar("R")
Array = npt.NDArray[Any]
Strides = tuple[int, int, int]


def _jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles with Numba: no reassociation, no contraction, no GIL; compiled code is cached beside this file."""
    compiled: Callable[P, R] = numba.njit(nogil=True, cache=True, fastmath=False, error_model="numpy")(function)
    return compiled


@_jit
def _finish(bits: Array, first: int) -> np.uint64:
    """Canonicalises NaN in the block of bit patterns that starts at index `first`; returns its part of the checksum."""
    # Slices that start at 0 let LLVM see that no index is negative, which is what makes these loops vector code.
    total = np.uint64(0)
    bad = np.uint32(0)
    w = np.uint32(first) * np.uint32(WEIGHT)
    for i in range(bits.size):
        b = bits[i]
        bad |= np.uint32((b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000))
        total += np.uint64(b) * np.uint64(np.uint32(w + np.uint32(i) * np.uint32(WEIGHT)) | np.uint32(1))
    if bad != 0:
        total = np.uint64(0)
        for i in range(bits.size):
            if (bits[i] & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
                bits[i] = np.uint32(CANONICAL_NAN)
            total += np.uint64(bits[i]) * np.uint64(np.uint32(w + np.uint32(i) * np.uint32(WEIGHT)) | np.uint32(1))
    return total


@_jit
def _round_block(x: Array, rel: float, absolute: float, e: Array, out: Array) -> np.int32:
    """Rounds one block and returns how many of its elements are contested; `e` may be empty."""
    contested = np.int32(0)
    if e.size == 0:
        for i in range(x.size):
            v = x[i]
            d = REACH * (rel * abs(v) + absolute)
            out[i] = np.float32(v) + np.float32(0.0)
            contested += np.int32((np.float32(v - d) != np.float32(v + d)) | (v - v != 0.0))
    else:
        for i in range(x.size):
            v = x[i]
            d = REACH * (rel * abs(v) + absolute + e[i])
            out[i] = np.float32(v) + np.float32(0.0)
            contested += np.int32((np.float32(v - d) != np.float32(v + d)) | (v - v != 0.0) | (d - d != 0.0))
    return contested


@_jit
def pass_dense(x: Array, rel: float, absolute: float, e: Array, out: Array, bits: Array, counts: Array) -> np.uint64:
    """Rounds with e = rel*|x| + absolute + e[i]; an empty `e` is zero.

    Args:
        x: Flat float64 values in physical order.
        rel: Relative part of the bound.
        absolute: Absolute part of the bound.
        e: Float64 bounds laid out like `x`, or empty.
        out: Flat float32 results.
        bits: `out` viewed as uint32.
        counts: One int32 a block: how many of its elements are contested.
    """
    n = x.size
    total = np.uint64(0)
    for block in range(counts.size):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        counts[block] = _round_block(x[start:stop], rel, absolute, e[start:stop], out[start:stop])
        total += _finish(bits[start:stop], start)
    return total


@_jit
def _expand(
    start: int, stop: int, rows: int, columns: int, left: Array, ls: Strides, right: Array, rs: Strides, e: Array
) -> None:
    """Writes the bounds left*right of physical indices start..stop of a (batches, rows, columns) array into `e`."""
    k = start
    while k < stop:  # one run of a row at a time, so that the inner loops are straight
        j0 = k % columns
        row = k // columns
        b = row // rows
        i = row % rows
        run = min(stop - k, columns - j0)
        p = b * ls[0] + i * ls[1] + j0 * ls[2]
        q = b * rs[0] + i * rs[1] + j0 * rs[2]
        target = e[k - start : k - start + run]
        if ls[2] == 0 and rs[2] == 1:
            f = left[p]
            source = right[q : q + run]
            for j in range(run):
                target[j] = f * source[j]
        elif ls[2] == 1 and rs[2] == 0:
            f = right[q]
            source = left[p : p + run]
            for j in range(run):
                target[j] = source[j] * f
        else:
            for j in range(run):
                target[j] = left[p + j * ls[2]] * right[q + j * rs[2]]
        k += run


@_jit
def pass_rank_one(
    x: Array, rel: float, absolute: float, rows: int, columns: int,
    left: Array, ls: Strides, right: Array, rs: Strides,
    scratch: Array, out: Array, bits: Array, counts: Array,
) -> np.uint64:  # fmt: skip
    """Rounds with e = rel*|x| + absolute + left*right over (batches, rows, columns), bounds made block by block."""
    n = x.size
    total = np.uint64(0)
    for block in range(counts.size):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        _expand(start, stop, rows, columns, left, ls, right, rs, scratch)
        counts[block] = _round_block(x[start:stop], rel, absolute, scratch[: stop - start], out[start:stop])
        total += _finish(bits[start:stop], start)
    return total


@_jit
def _list_block(
    x: Array, first: int, rel: float, absolute: float, e: Array, k: int, positions: Array, bounds: Array
) -> int:
    """Writes the contested elements of one block from place `k` on; returns the next free place."""
    for i in range(x.size):
        v = x[i]
        bound = rel * abs(v) + absolute
        if e.size > 0:
            bound += e[i]
        d = REACH * bound
        if np.float32(v - d) != np.float32(v + d) or v - v != 0.0 or d - d != 0.0:
            positions[k] = first + i
            bounds[k] = bound
            k += 1
    return k


@_jit
def list_dense(x: Array, rel: float, absolute: float, e: Array, counts: Array, positions: Array, bounds: Array) -> None:
    """Lists what `pass_dense` counted: physical indices (int64) and bounds (float64), `counts.sum()` of each."""
    k = 0
    for block in range(counts.size):
        if counts[block] > 0:
            start = block * BLOCK
            stop = min(x.size, start + BLOCK)
            k = _list_block(x[start:stop], start, rel, absolute, e[start:stop], k, positions, bounds)


@_jit
def list_rank_one(
    x: Array, rel: float, absolute: float, rows: int, columns: int,
    left: Array, ls: Strides, right: Array, rs: Strides,
    scratch: Array, counts: Array, positions: Array, bounds: Array,
) -> None:  # fmt: skip
    """Lists what `pass_rank_one` counted."""
    k = 0
    for block in range(counts.size):
        if counts[block] > 0:
            start = block * BLOCK
            stop = min(x.size, start + BLOCK)
            _expand(start, stop, rows, columns, left, ls, right, rs, scratch)
            k = _list_block(x[start:stop], start, rel, absolute, scratch[: stop - start], k, positions, bounds)


@_jit
def pass_plain(x: Array, out: Array, bits: Array) -> np.uint64:
    """Rounds without looking for contested elements: what a replay does before it follows the log."""
    n = x.size
    total = np.uint64(0)
    start = 0
    while start < n:
        stop = min(n, start + BLOCK)
        source, target = x[start:stop], out[start:stop]
        for i in range(stop - start):
            target[i] = np.float32(source[i]) + np.float32(0.0)
        total += _finish(bits[start:stop], start)
        start = stop
    return total


@_jit
def pass_exact(bits: Array) -> np.uint64:
    """Canonicalises NaN in place and returns the checksum of an array of float32 bit patterns."""
    n = bits.size
    total = np.uint64(0)
    start = 0
    while start < n:
        stop = min(n, start + BLOCK)
        total += _finish(bits[start:stop], start)
        start = stop
    return total


def weights(index: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Returns the checksum weight of each physical index."""
    w = (index.astype(np.uint64) * np.uint64(WEIGHT)) & np.uint64(0xFFFFFFFF)
    return w | np.uint64(1)


def torch_checksum(out: torch.Tensor) -> int:
    """Returns the checksum of a flat float32 tensor on any device; NaN must be canonical already."""
    bits = out.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    index = torch.arange(out.numel(), device=out.device, dtype=torch.int64)
    w = ((index * WEIGHT) & 0xFFFFFFFF) | 1
    return int((bits * w).sum().item()) & 0xFFFFFFFFFFFFFFFF


def torch_round(x: torch.Tensor) -> torch.Tensor:
    """Rounds a flat float64 tensor to float32 with +0 for zeros and the canonical NaN, on any device."""
    out = x.to(torch.float32) + 0.0
    nan = torch.tensor(CANONICAL_NAN, dtype=torch.int32, device=x.device).view(torch.float32)
    return torch.where(out != out, nan, out)


def torch_contested(x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """Returns the sorted indices of contested elements of a flat float64 tensor with bounds `e` (its shape, or ())."""
    low, high = (x - REACH * e).to(torch.float32), (x + REACH * e).to(torch.float32)
    odd = (low != high) | ~torch.isfinite(x) | ~torch.isfinite(e)
    return odd.nonzero().flatten()
