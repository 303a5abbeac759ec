"""What a replaying machine may set right of a 16-bit output: its own contested elements, and what each may become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import formats, narrow
from weighbridge.numerics.rounding.bound import Bound, bound_at, sharpened

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The replayer's own contested elements of one 16-bit output.

    Attributes:
        positions: Physical indices, ascending.
        low: The least ordered integer that each could have been rounded to.
        high: The largest.
        up: Whether the wide value lies above the replayer's own rounded one.
    """

    positions: Array
    low: Array
    high: Array
    up: Array


def ordered(values: torch.Tensor) -> Array:
    """Maps a dense 16-bit result to integers (int16) in the order of its values, one for each physical element."""
    bits = flat(values).view(torch.int16).cpu().numpy()
    return np.where(bits < 0, -(bits & 0x7FFF), bits).astype(np.int16)


def unordered(integers: Array, dtype: torch.dtype) -> torch.Tensor:
    """Inverse of `ordered`, 0 mapped to +0."""
    bits = np.where(integers < 0, 0x8000 | -integers.astype(np.int64), integers).astype(np.uint16)
    return torch.from_numpy(bits.view(np.int16)).view(dtype)


def candidates(wide: torch.Tensor, bound: Bound, own: torch.Tensor) -> Candidates:
    """Searches a result for contested elements and says what each could have been rounded to.

    Where a value or its bound is not finite, a sketch says nothing: there it leaves the replayer's own result.
    """
    entries = narrow.record(wide, bound, own.dtype, 0, 0).entries
    positions = np.empty(0, dtype=np.int64) if entries is None else entries.positions
    place = torch.from_numpy(positions).to(wide.device)
    ys = flat(wide)[place]
    es = bound_at(wide, bound, place).to(wide.dtype)
    if bound.products is not None:
        sharp = sharpened(wide, bound, positions, ys.cpu().numpy(), es.cpu().numpy())
        es = torch.from_numpy(sharp).to(wide.device)
    finite = (torch.isfinite(ys) & torch.isfinite(es)).cpu().numpy()
    rounded = flat(own)[place]
    mine, reach = ordered(rounded).astype(np.int64), narrow.REACH * es
    low, high = (
        np.where(finite, ordered(formats.to_format(ys + sign * reach, own.dtype)).astype(np.int64), mine)
        for sign in (-1, 1)
    )
    up = (ys > rounded.to(ys.dtype)).cpu().numpy()
    return Candidates(positions, low, high, up)
