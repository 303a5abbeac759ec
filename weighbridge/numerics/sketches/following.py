"""Rounds a replayer's wide result to 16 bits and sets right what a sketch says was rounded otherwise.

What the sketch says is turned into entries of a rounding log, which are followed as those of any log are: the same
bounds say what is admissible, and the same counts are kept of what was chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.numerics.rounding import narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.sketches import codec
from weighbridge.numerics.sketches.candidates import Candidates, candidates, ordered
from weighbridge.numerics.sketches.codec import FailedError
from weighbridge.numerics.sketches.step_sketches import SketchReader, blocks, pack, unpack

Array = npt.NDArray[Any]


def follow(
    wide: torch.Tensor, bound: Bound, dtype: torch.dtype, sketches: SketchReader, wanted: int, place: tuple[int, int]
) -> tuple[Rounded, OpEntries | None, list[bytes]]:  # fmt: skip
    """Rounds a result, and follows its sketch if it does not come out with the recorded checksum.

    Args:
        wide: The replayer's wide result.
        bound: Its bound.
        dtype: bfloat16 or float16.
        sketches: Gives the sketch, which is taken in any case.
        wanted: The recorded checksum.
        place: Operation and output, for the entries.

    Returns:
        The result; entries of the elements that the sketch set right; and the packed sketches of its blocks.

    Raises:
        FailedError: The sketch does not explain the difference.
        LogError: There is no sketch for the output, or it is malformed (`replay.sketch.malformed`).
    """
    packed = sketches.take(wide.numel())
    out, checksum = narrow.round_plain(wide, dtype)
    if checksum == wanted:
        return Rounded(out, checksum), None, packed
    entries = _entries(candidates(wide, bound, out), ordered(out), packed, sketches, place)
    result = narrow.follow(wide, bound, dtype, entries)
    if result.checksum != wanted or result.inadmissible:
        raise FailedError("with what the sketch says, the result does not have the recorded checksum either")
    return result, entries, packed


def _entries(
    mine: Candidates, own: Array, packed: list[bytes], sketches: SketchReader, place: tuple[int, int]
) -> OpEntries:  # fmt: skip
    """Decodes the sketches of an output's blocks."""
    found: list[tuple[Array, Array, Array]] = []
    for (begin, end), data in zip(blocks(own.size), packed, strict=True):
        sketch = unpack(data, end - begin, sketches.capacity(end - begin))
        first, last = np.searchsorted(mine.positions, (begin, end))
        at, low, high, up = (each[first:last] for each in (mine.positions, mine.low, mine.high, mine.up))
        changed, values = codec.recover(sketch, own[begin:end], at - begin, low, high, up)
        where = np.searchsorted(at, changed + begin)
        found.append((changed + begin, values, high[where] - low[where]))
    positions, values, spans = (np.concatenate(each) for each in zip(*found, strict=True))
    if not positions.size:
        raise FailedError("the sketch is that of this machine's own output, whose checksum is another")
    widths = np.maximum(1, np.frexp(spans.astype(np.float64))[1])
    bits = (values & ((np.int64(1) << widths) - 1)).astype(np.uint64)
    return OpEntries(*place, positions, widths.astype(np.uint8), bits)


def agrees(out: torch.Tensor, packed: list[bytes], sketches: SketchReader) -> bool:
    """Tells whether sketches are those of an output."""
    integers = ordered(out)
    own = [pack(codec.make(integers[a:b], sketches.capacity(b - a))) for a, b in blocks(integers.size)]
    return own == packed
