"""Whose numbers a piece of memory holds: those of one parameter, of several, or of none.

Each parameter has a lane of its own from its gradient to its new weights. What crosses from one lane to another is no
training, however true the numbers of a step are: another parameter's weights or gradients, times a number in the batch
that is zero in this step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weighbridge.transcript.tape import DTYPES, Ref

Whose = frozenset[int]
"""Of whom: references of parameters, or any other keys."""

NOBODY: Whose = frozenset()


@dataclass(slots=True)
class Lanes:
    """Who is in which bytes of which storage."""

    _held: dict[int, set[tuple[int, int, int]]] = field(default_factory=dict)
    """By slot: first byte, the one after the last, key."""

    def put(self, ref: Ref, whose: Iterable[int]) -> None:
        """Notes that a part of a storage holds numbers of some."""
        begin, end = span(ref)
        self._held.setdefault(ref[0], set()).update((begin, end, key) for key in whose)

    def of(self, ref: Ref) -> Whose:
        """Returns of whom a part of a storage holds numbers."""
        held = self._held.get(ref[0])
        if not held:
            return NOBODY
        begin, end = span(ref)
        return frozenset(key for first, last, key in held if first < end and begin < last)


def span(ref: Ref) -> tuple[int, int]:
    """Returns the first byte that a reference shows, and the one after the last."""
    _, dtype, size, stride, offset = ref
    each = DTYPES[dtype].itemsize
    if 0 in size:
        return offset * each, offset * each
    return offset * each, (offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1) * each
