"""Rounding to b bits, and which way it went.

The grid of b bits is the float32 numbers whose lowest 32 - b mantissa bits are zero, so its spacing is 2^(32-b) units
in the last place of float32. A value within (0.5 - pivot) such units of the middle between two grid points is in the
*band*: another device might round it the other way. Published: pivot 0.25 where nothing was measured, which puts half
of all values into the band at b = 32.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.baselines.ternary import CLEAR, DOWN, UP
from weighbridge.errors import UsageError

PIVOT = 0.25
"""Half-widths of the band are 0.5 - pivot units in the last place of float32."""

_SMALLEST_EXPONENT = -126
_MANTISSA, _MANTISSA32 = 52, 23

Tensor = torch.Tensor


def unit(wide: Tensor) -> Tensor:
    """Returns one unit in the last place of float32 at each value of a float64 tensor, float64, same shape."""
    exponent = torch.frexp(wide).exponent - 1
    floor = torch.where(wide == 0, _SMALLEST_EXPONENT, exponent.clamp(min=_SMALLEST_EXPONENT))
    return torch.ldexp(torch.ones_like(wide), floor - _MANTISSA32)


def to_grid(wide: Tensor, bits: int = 32) -> Tensor:
    """Rounds float64 to the grid of `bits` bits; the result is float64, same shape.

    At 32 bits ties go to even, as the hardware's cast does; below, away from zero.

    Args:
        wide: float64.
        bits: 10 to 32.

    Raises:
        UsageError: There is no such grid.
    """
    if not _MANTISSA32 + 9 >= bits >= 10 or wide.dtype != torch.float64:
        raise UsageError(f"there is no grid of {bits} bits for {wide.dtype}; pass float64 and 10 to 32 bits")
    if bits < 32:
        dropped = _MANTISSA - (bits - 9)
        ordered = wide.contiguous().view(torch.int64)  # sign and magnitude: a carry raises the exponent
        finite = torch.isfinite(wide)
        kept = ((ordered + (1 << (dropped - 1))) & -(1 << dropped)).view(torch.float64)
        wide = torch.where(finite, kept, wide)
    return wide.float().double()


def classify(wide: Tensor, rounded: Tensor, *, bits: int = 32, pivot: float = PIVOT) -> Tensor:
    """Returns the code of every element: uint8, same shape, `DOWN`, `CLEAR` or `UP`.

    Args:
        wide: float64, before rounding.
        rounded: What `to_grid` made of it.
        bits: Of the grid.
        pivot: Of the band; 0.5 logs nothing, 0.5 - 2^(31 - bits) everything.
    """
    distance = wide - rounded
    threshold = unit(wide) * (0.5 * 2 ** (32 - bits) - (0.5 - pivot))
    near = distance.abs() > threshold
    return torch.where(near, torch.where(distance > 0, DOWN, UP), CLEAR).to(torch.uint8)


def revise(rounded: Tensor, own: Tensor, theirs: NDArray[np.uint8], *, bits: int = 32) -> tuple[Tensor, int]:
    """Moves values that the trainer rounded the other way by one point of the grid.

    Nothing is moved where either side saw no boundary near.

    Args:
        rounded: The auditor's own rounding, float64.
        own: The auditor's codes, uint8, same shape.
        theirs: The trainer's codes, uint8, flat.
        bits: Of the grid.

    Returns:
        The values as the trainer had them, float64, same shape; and how many were moved.
    """
    logged = torch.from_numpy(theirs).view(own.shape)
    up, down = (own == DOWN) & (logged == UP), (own == UP) & (logged == DOWN)
    moved = int((up | down).sum())
    if not moved:
        return rounded, 0
    steps = (up.int() - down.int()) << (32 - bits)
    pattern = rounded.float().contiguous().view(torch.int32)
    ordered = torch.where(pattern < 0, -(pattern & 0x7FFFFFFF), pattern) + steps
    back = torch.where(ordered < 0, -ordered | -(1 << 31), ordered)
    return torch.where(steps != 0, back.view(torch.float32).double(), rounded), moved
