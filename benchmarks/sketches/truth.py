"""What really differs between two instruction sets, for each rounded output of a transcript's steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.sketches.repeats import repeat
from weighbridge.execution.following import Following, Seen
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.sketches.candidates import candidates, ordered
from weighbridge.numerics.sketches.codec import nearest

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Output:
    """One rounded output, as the replaying machine sees it.

    Attributes:
        step: Its step.
        op: Index of its operation.
        index: Number of its checksum in the step.
        operation: Name of the operation.
        small: Whether it is of 16 bits.
        elements: Its elements.
        candidates: How many of them the replayer finds contested.
        differing: Physical indices of those that really differ.
        outside: How many of these are none of the replayer's contested elements.
        far: How many differ by more than one step of the ordered integers.
        rest: How many are wrong still after the first stage of `weighbridge.numerics.sketches.codec`.
        admissible: Sum over the differing ones of log2(number of values that the replayer could have rounded to - 1).
    """

    step: int
    op: int
    index: int
    operation: str
    small: bool
    elements: int
    candidates: int
    differing: Array
    outside: int
    far: int
    rest: int
    admissible: float


def observe(path: Path) -> list[Output]:
    """Replays a transcript on this instruction set and returns its rounded outputs, the initialisation's left out."""
    found: list[Output] = []

    def made(*arguments: Any) -> Following:
        context = Following(*arguments)
        context.watch = _Observer(context, found).look
        return context

    for _ in repeat(path, made):
        pass
    return found


class _Observer:
    """Looks at each rounded result of a step."""

    def __init__(self, context: Following, found: list[Output]) -> None:
        self._context, self._found = context, found

    def look(self, seen: Seen) -> None:
        if seen.wide is None or seen.bound is None or self._context.record.step == 0:
            return
        small = seen.out.dtype in formats.NARROW
        kind = self._context.record.step, seen.op, seen.index, self._context.operation, small, seen.out.numel()
        if not small:
            own = contested.round_plain(seen.wide)[0]
            at = np.flatnonzero((flat(own).view(torch.int32) != flat(seen.out).view(torch.int32)).numpy())
            entries = contested.record(seen.wide, seen.bound, 0, 0).entries
            count = 0 if entries is None else len(entries.positions)
            self._found.append(Output(*kind, count, at, 0, 0, 0, 0.0))
            return
        own = narrow.round_plain(seen.wide, seen.out.dtype)[0]
        mine, theirs, ours = candidates(seen.wide, seen.bound, own), ordered(seen.out), ordered(own).astype(np.int64)
        at = np.flatnonzero(theirs != ours)
        inside = at[np.isin(at, mine.positions, assume_unique=True)]
        place = np.searchsorted(mine.positions, inside)
        low, high = mine.low[place], mine.high[place]
        distance, odd = theirs[at] - ours[at], (theirs[inside] - ours[inside]) % 2 == 1
        guess = np.where(odd, nearest(ours[inside], low, high, mine.up[place]), ours[inside])
        rest = int((guess != theirs[inside]).sum())
        values = float(np.log2(np.maximum(high - low, 1)).sum())
        self._found.append(Output(
            *kind, len(mine.positions), at, len(at) - len(inside), int((np.abs(distance) > 1).sum()), rest, values
        ))  # fmt: skip
