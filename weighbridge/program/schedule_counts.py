"""How far the schedules of a run were at each step, in bits.

A count comes from the program: once a step, once an epoch, when a loss stops falling. Formulas take it for what it is,
so a count that is not the expected one is a choice, and costs what it takes to describe it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weighbridge.program.adaptive_code import AdaptiveCode, integer, natural
from weighbridge.program.feeds import Gaps


class ScheduleCounts:
    """Codes how far each schedule went since the step before: as far as last time, or how far else, and when.

    A record that says nothing of a schedule delays it, so how many of them a record has is coded likewise.
    """

    def __init__(self) -> None:
        """Begins a run."""
        self._steps = AdaptiveCode()
        self._gaps: list[Gaps] = []
        self._counts: list[int] = []
        self._strides: list[int] = []
        self._lengths, self._length = Gaps(), 0

    def next(self, counts: Sequence[int]) -> float:
        """Returns the bits of one step's counts, which a record without any does not have."""
        length = len(counts)
        bits = self._lengths.next(length != self._length)
        if length != self._length:
            bits += self._steps.bits(length, (("length", self._length), ("length",)), natural(length))
        self._length = length
        for number, count in enumerate(counts):
            if number == len(self._gaps):
                self._gaps.append(Gaps())
                self._counts.append(0)
                self._strides.append(0)
            last = self._strides[number]
            stride = count - self._counts[number]
            bits += self._gaps[number].next(stride != last)
            if stride != last:
                bits += self._steps.bits(stride, (("after", number, last), ("any",)), integer(stride))
            self._counts[number], self._strides[number] = count, stride
        return bits

    def end(self) -> float:
        """Returns the bits of there being no further change; 0 if no record has a count."""
        return sum(gaps.end() for gaps in (self._lengths, *self._gaps)) if self._gaps else 0.0
