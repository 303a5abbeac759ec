"""The canonical NaN in results that nothing rounds: conversions, moves and float64.

Which NaN a kernel writes depends on the instruction set, and in vector code on whether an element is in the tail: a
float32 NaN becomes 0x7FC0 or 0xFFFF as bfloat16. NaN are rare, so on the CPU a result is only read as a rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.core.host_memory import array_of
from weighbridge.core.jit import compiled
from weighbridge.numerics.arrays.physical import flat, is_dense
from weighbridge.numerics.rounding.formats import NAN

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_PATTERNS = NAN | {torch.float64: 0x7FF8 << 48}


def _lanes(pattern: int, bits: int) -> np.uint64:
    return np.uint64(sum(pattern << at for at in range(0, 64, bits)))


_SIGNLESS = {size: _lanes((1 << 8 * size - 1) - 1, 8 * size) for size in _INTEGERS}
_SIGNS = {size: _lanes(1 << 8 * size - 1, 8 * size) for size in _INTEGERS}
_TO_SIGN = {
    dtype: _lanes((1 << fraction) - 1, 8 * dtype.itemsize)
    for dtype, fraction in ((torch.bfloat16, 7), (torch.float16, 10), (torch.float32, 23), (torch.float64, 52))
}
"""What carries the magnitude of a NaN, and of nothing else, into the bit of the sign."""


@compiled(fastmath=False, error_model="numpy")
def _reach(halves: npt.NDArray[Any], signless: np.uint64, to_sign: np.uint64) -> np.uint64:
    """Returns a word whose bits of the sign say whether there is a NaN in memory, given in 16-bit parts."""
    whole = halves.size // 4 * 4
    words = halves[:whole].view(np.uint64)
    reached, last = np.uint64(0), np.uint64(0)
    for i in range(words.size):
        reached |= (words[i] & signless) + to_sign
    for i in range(whole, halves.size):
        last |= np.uint64(halves[i]) << np.uint64(16 * (i - whole))
    return reached | ((last & signless) + to_sign)


def holds_nan(x: torch.Tensor) -> bool:
    """True if there is a NaN in a tensor of floats in the CPU's memory."""
    if not is_dense(x):
        return bool((x != x).any())
    size = x.itemsize
    halves = array_of(flat(x).view(torch.int16)).view(np.uint16)
    return bool(_reach(halves, _SIGNLESS[size], _TO_SIGN[x.dtype]) & _SIGNS[size])


def make_canonical(x: torch.Tensor) -> None:
    """Makes every NaN of a tensor of floats the canonical one of its format, in place."""
    if x.numel() and (not x.is_cpu or holds_nan(x)):
        x.view(_INTEGERS[x.itemsize]).masked_fill_(x != x, _PATTERNS[x.dtype])
