"""The rounding pass on a GPU: the kernels of `kernels`, written in Triton.

One trip over memory rounds, makes zeros and NaN canonical, adds up the checksum and lists the contested elements. The
bound is evaluated in float64 whatever the wide type is, without fused multiply-add, so the outcome is that of the
compiled kernels on the CPU, bit for bit. Rounding from float64 to float32 and from float32 to float16 is the device's
conversion, to nearest; to bfloat16 it is integer work. Nothing here touches subnormal float32 numbers by arithmetic.

Triton comes with PyTorch's builds for CUDA and is no dependency of its own: import this module only where it is there
(`device_passes` does).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from weighbridge.numerics.rounding.cpu_kernels import WEIGHT
from weighbridge.numerics.rounding.formats import NAN

Tensor = torch.Tensor

BLOCK = 1024
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WIDE_TYPES = {
    torch.float32: (torch.float64,),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
}
"""What results of each narrow type are computed in."""
_LARGEST = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}


@triton.jit  # type: ignore[untyped-decorator]
def _real(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """A float64 out of the two halves of its pattern: Triton would take a Python number for a float32."""
    return ((high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)).to(tl.float64, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _pattern(v: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Bit patterns (int32) of values rounded to the narrow type, with +0 for zeros and the canonical NaN."""
    single = v.to(tl.float32)
    bits = single.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    if KIND == 0:
        bits = tl.where(size == 0, 0, bits)
        bits = tl.where(size > 0x7F800000, 0x7FC00000, bits)
    elif KIND == 1:
        half = (size + 0x7FFF + ((size >> 16) & 1)) >> 16
        bits = tl.where(half == 0, 0, half | ((bits >> 16) & 0x8000))
        bits = tl.where(size > 0x7F800000, 0x7FC0, bits)
    else:
        bits = single.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        half = bits & 0x7FFF
        bits = tl.where(half == 0, 0, bits)
        bits = tl.where(half > 0x7C00, 0x7E00, bits)
    return bits


@triton.jit  # type: ignore[untyped-decorator]
def _add_checksum(
    pattern: tl.tensor, index: tl.tensor, inside: tl.tensor, state: tl.tensor, MASK: tl.constexpr, WEIGHT: tl.constexpr
) -> None:
    """Adds a block's part to the checksum: an integer sum modulo 2^64, so the order of the blocks does not matter."""
    weights = ((index * WEIGHT) & 0xFFFFFFFF) | 1
    tl.atomic_add(state, tl.sum(tl.where(inside, (pattern.to(tl.int64) & MASK) * weights, 0), axis=0))


_NUMBERS = [
    "n", "room", "rows", "columns", "rel_low", "rel_high", "abs_low", "abs_high", "ls0", "ls1", "ls2", "rs0", "rs1",
    "rs2",
]  # fmt: skip


# Specialising on numbers would compile anew for shapes that are multiples of 16, or 1.
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _round(
    x: tl.tensor, out: tl.tensor, state: tl.tensor, positions: tl.tensor, bounds: tl.tensor,
    left: tl.tensor, right: tl.tensor, n: tl.tensor, room: tl.tensor, rows: tl.tensor, columns: tl.tensor,
    rel_low: tl.tensor, rel_high: tl.tensor, abs_low: tl.tensor, abs_high: tl.tensor,
    ls0: tl.tensor, ls1: tl.tensor, ls2: tl.tensor, rs0: tl.tensor, rs1: tl.tensor, rs2: tl.tensor,
    REACH: tl.constexpr, KIND: tl.constexpr, FIND: tl.constexpr, FACTORS: tl.constexpr, WIDE: tl.constexpr,
    WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Rounds a block; with FIND it lists the contested elements wherever in the lists there is room, in any order."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    v = tl.load(x + index, mask=inside, other=0.0).to(tl.float64)
    pattern = _pattern(v, KIND)
    tl.store(out + index, pattern.to(out.dtype.element_ty), mask=inside)
    _add_checksum(pattern, index, inside, state, 0xFFFFFFFF, WEIGHT)
    if FIND:
        e = _real(rel_low, rel_high) * tl.abs(v) + _real(abs_low, abs_high)
        if FACTORS:
            k = index
            if not WIDE:  # division of 64-bit integers takes many times longer
                k = index.to(tl.int32)
            column = k % columns
            row = (k // columns) % rows
            batch = k // columns // rows
            p = tl.load(left + (batch * ls0 + row * ls1 + column * ls2), mask=inside, other=0.0).to(tl.float64)
            q = tl.load(right + (batch * rs0 + row * rs1 + column * rs2), mask=inside, other=0.0).to(tl.float64)
            e = e + p * q
        d = e * REACH
        odd = (_pattern(v - d, KIND) != _pattern(v + d, KIND)) | ((v - v) != 0.0) | ((d - d) != 0.0)
        marks = (odd & inside).to(tl.int32)
        count = tl.sum(marks, axis=0)
        if count > 0:
            rank = tl.atomic_add(state + 1, count.to(tl.int64)) + tl.cumsum(marks, 0) - marks
            listed = (marks != 0) & (rank < room)
            tl.store(positions + rank, index, mask=listed)
            tl.store(bounds + rank, e, mask=listed)


@triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]
def _exact(
    bits: tl.tensor, state: tl.tensor, n: tl.tensor, LARGEST: tl.constexpr, NAN: tl.constexpr, MASK: tl.constexpr,
    WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Makes NaN canonical in a block of bit patterns and adds its part to the checksum."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    pattern = tl.load(bits + index, mask=inside, other=0).to(tl.int32)
    nan = (pattern & (MASK // 2)) > LARGEST
    pattern = tl.where(nan, NAN, pattern)
    tl.store(bits + index, pattern.to(bits.dtype.element_ty), mask=inside & nan)
    _add_checksum(pattern, index, inside, state, MASK, WEIGHT)


@dataclass(frozen=True, slots=True)
class Factors:
    """The bound left*right over a (batches, rows, columns) array: where factors lie and how they are walked.

    Attributes:
        rows: Size of the second dimension.
        columns: Size of the third.
        left: Memory of one factor, from its first element on, float32 or float64.
        left_strides: Its strides over the three dimensions; 0 where it is broadcast.
        right: Memory of the other factor.
        right_strides: Its strides.
        extent: Elements of the larger of both memories.
    """

    rows: int
    columns: int
    left: Tensor
    left_strides: Sequence[int]
    right: Tensor
    right_strides: Sequence[int]
    extent: int


def _halves(value: float) -> tuple[int, int]:
    """The low and high half of a float64's pattern as signed 32-bit integers."""
    low, high = struct.unpack("<ii", struct.pack("<d", value))
    return low, high


def _integers(t: Tensor) -> Tensor:
    return t.view(torch.int32 if t.itemsize == 4 else torch.int16)


def _launch(
    x: Tensor, out: Tensor, rel: float, absolute: float, factors: Factors | None, reach: float, find: bool, room: int
) -> tuple[int, int, Tensor, Tensor]:
    """Returns (checksum, number of contested elements, their positions in any order, their bounds)."""
    state = torch.zeros(2, dtype=torch.int64, device=x.device)
    positions = torch.empty(room if find else 0, dtype=torch.int64, device=x.device)
    bounds = torch.empty(room if find else 0, dtype=torch.float64, device=x.device)
    n, f = x.numel(), factors
    _round[(triton.cdiv(n, BLOCK),)](
        x, _integers(out), state, positions, bounds, f.left if f else x, f.right if f else x,
        n, room, f.rows if f else 1, f.columns if f else 1, *_halves(rel), *_halves(absolute),
        *(f.left_strides if f else (0, 0, 0)), *(f.right_strides if f else (0, 0, 0)),
        REACH=reach, KIND=KINDS[out.dtype], FIND=find, FACTORS=f is not None,
        WIDE=max(n, f.extent if f else 0) >= 1 << 30, WEIGHT=WEIGHT, BLOCK=BLOCK, enable_fp_fusion=False,
    )  # fmt: skip
    checksum, found = state.tolist()
    return checksum & 0xFFFFFFFFFFFFFFFF, found, positions, bounds


def round_recording(
    x: Tensor, out: Tensor, rel: float, absolute: float, factors: Factors | None, reach: float
) -> tuple[int, Tensor, Tensor]:
    """Rounds, and finds the elements that another conforming device could round otherwise.

    Args:
        x: Flat wide values in physical order, float64 or float32, on the device.
        out: Flat results, float32, bfloat16 or float16; written.
        rel: Relative part of the bound.
        absolute: Absolute part of the bound.
        factors: The rest of the bound, or None.
        reach: How many bounds away from a conforming result another one may lie.

    Returns:
        The checksum, the physical indices of the contested elements in ascending order (int64, on the device), and
        their bounds (float64, on the device).
    """
    room = 64 + x.numel() // 32
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        checksum, found, positions, bounds = _launch(x, out, rel, absolute, factors, reach, True, room)
        if found > room:
            checksum, found, positions, bounds = _launch(x, out, rel, absolute, factors, reach, True, found)
    positions, order = torch.sort(positions[:found])
    return checksum, positions, bounds[:found][order]


def round_plain(x: Tensor, out: Tensor) -> int:
    """Rounds flat wide values into `out` without looking for contested elements; returns the checksum."""
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        return _launch(x, out, 0.0, 0.0, None, 1.0, False, 0)[0]


def canonicalise(bits: Tensor) -> int:
    """Makes every NaN of a flat float32, bfloat16 or float16 tensor the canonical one; returns the checksum."""
    state = torch.zeros(1, dtype=torch.int64, device=bits.device)
    with torch.cuda.device_of(bits):  # type: ignore[no-untyped-call]
        _exact[(triton.cdiv(bits.numel(), BLOCK),)](
            _integers(bits), state, bits.numel(), LARGEST=_LARGEST[bits.dtype], NAN=NAN[bits.dtype],
            MASK=(1 << 8 * bits.itemsize) - 1, WEIGHT=WEIGHT, BLOCK=BLOCK,
        )  # fmt: skip
    return int(state.item()) & 0xFFFFFFFFFFFFFFFF
