"""Rounding to float32, and which way it went.

A value within 0.5 - pivot units in the last place of the middle between two float32 is in the *band*: another device
might round it the other way. Published: pivot 0.25 where nothing was measured, which puts half of all values into it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.baselines.ternary import CLEAR, DOWN, UP

PIVOT = 0.25
"""Half-widths of the band are 0.5 - pivot units in the last place of float32."""

_SMALLEST_EXPONENT = -126
_MANTISSA = 23

Tensor = torch.Tensor


def unit(wide: Tensor) -> Tensor:
    """Returns one unit in the last place of float32 at each value of a float64 tensor, float64, same shape."""
    exponent = torch.frexp(wide).exponent - 1
    floor = torch.where(wide == 0, _SMALLEST_EXPONENT, exponent.clamp(min=_SMALLEST_EXPONENT))
    return torch.ldexp(torch.ones_like(wide), floor - _MANTISSA)


def to_float32(wide: Tensor) -> Tensor:
    """Rounds float64 to the nearest float32, ties to even; the result is float64, same shape."""
    return wide.float().double()


def classify(wide: Tensor, rounded: Tensor, *, pivot: float = PIVOT) -> Tensor:
    """Returns the code of every element: uint8, same shape, `DOWN`, `CLEAR` or `UP`.

    Args:
        wide: float64, before rounding.
        rounded: What `to_float32` made of it.
        pivot: Of the band; 0.5 logs nothing, 0 everything.
    """
    distance = wide - rounded
    near = distance.abs() > unit(wide) * pivot
    return torch.where(near, torch.where(distance > 0, DOWN, UP), CLEAR).to(torch.uint8)


def revise(rounded: Tensor, own: Tensor, theirs: NDArray[np.uint8]) -> tuple[Tensor, int]:
    """Moves values that the trainer rounded the other way to the next float32.

    Nothing is moved where either side saw no boundary near.

    Args:
        rounded: The auditor's own rounding, float64.
        own: The auditor's codes, uint8, same shape.
        theirs: The trainer's codes, uint8, flat.

    Returns:
        The values as the trainer had them, float64, same shape; and how many were moved.
    """
    logged = torch.from_numpy(theirs).view(own.shape)
    up, down = (own == DOWN) & (logged == UP), (own == UP) & (logged == DOWN)
    moved = int((up | down).sum())
    if not moved:
        return rounded, 0
    steps = up.int() - down.int()
    pattern = rounded.float().contiguous().view(torch.int32)
    ordered = torch.where(pattern < 0, -(pattern & 0x7FFFFFFF), pattern) + steps
    back = torch.where(ordered < 0, -ordered | -(1 << 31), ordered)
    return torch.where(steps != 0, back.view(torch.float32).double(), rounded), moved
