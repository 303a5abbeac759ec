"""How much each step of a run was fed, in bits; and the code of events that are rare in a run.

Steps that are fed differently run different programs. So who chooses how many records a step takes chooses a program,
and with 256 programs that differ in nothing else eight bits come in with every step.
"""

from __future__ import annotations

import math
from typing import Any

from weighbridge.program.adaptive_code import AdaptiveCode, natural
from weighbridge.program.chosen_bits import Channel
from weighbridge.transcript.data import micro_batches
from weighbridge.transcript.steps import StepRecord

Shapes = tuple[tuple[str, Any], ...]
"""Path, type and size of each tensor of a batch."""


class Gaps:
    """Codes how far apart rare events are: equal gaps, one after the other, cost next to nothing."""

    def __init__(self) -> None:
        self._code = AdaptiveCode()
        self._gap = self._before = 0

    def next(self, event: bool) -> float:
        """Returns the bits of an event, given the gap before the last one; 0 if there is none."""
        self._gap += 1
        if not event:
            return 0.0
        gap, self._gap = self._gap, 0
        contexts, self._before = (("gap", self._before), ("gap",)), gap
        return self._code.bits(gap, contexts, natural(gap))

    def end(self) -> float:
        """Returns the bits of there being no further event."""
        return self._code.bits(0, (("gap", self._before), ("gap",)), natural(0))


class Feeds:
    """Codes how much each step was fed, which selects the program that runs.

    Where data are committed to, what the next records are is fixed, and only how many of them a step takes is a choice,
    whether the one that it takes is a row or the whole batch, and how many each batch of a list gets. Otherwise, and of
    a batch without records, all shapes are. A step is expected to be fed as the last one of its kind was; exceptions
    are coded as those of tapes are.
    """

    def __init__(self, committed: bool) -> None:
        """Begins a run.

        Args:
            committed: Whether its data are committed to.
        """
        self.channel: Channel = "schedule" if committed else "batch"
        self._committed = committed
        self._gaps, self._which = Gaps(), AdaptiveCode()
        self._last: dict[str, Any] = {}
        self._known: set[Any] = set()

    def next(self, record: StepRecord, shapes: Shapes) -> float:
        """Returns the bits of how a step was fed."""
        count = len(record.record_digests) if self._committed else 0
        division = _division(shapes, count) if count else ""
        feed: Any = (count, division) if count else shapes
        last = self._last.get(record.kind)
        bits = self._gaps.next(feed != last) if record.kind in self._last else 0.0
        if record.kind not in self._last or feed != last:
            # Shapes that are new come with a program that is new, and are described there.
            spelled = _spelled(count, division) if count else math.log2(1 + len(self._known))
            named = feed if feed in self._known or count else "new"
            bits += self._which.bits(named, (("after", record.kind, last), ("any", record.kind)), spelled)
        self._last[record.kind] = feed
        self._known.add(feed)
        return bits

    def end(self) -> float:
        """Returns the bits of there being no further exception."""
        return self._gaps.end()


def _spelled(count: int, division: str | tuple[Any, ...]) -> float:
    """Bits of how many records there are, whether they are rows, one or a list's, and how many each of these has."""
    if isinstance(division, str):
        return 1.0 + natural(count)
    held = [number if type(number) is int else 0 for number in division]
    return 1.0 + natural(count) + natural(len(held)) + sum(natural(abs(number)) for number in held)


def _division(shapes: Shapes, count: int) -> str | tuple[Any, ...]:
    """Says how `count` records lie in a batch: as its rows, as one, or so many in each batch of a list.

    Of a batch of the list that holds none, shapes and types stand there: no record fixes them.
    """
    if {_first(size) for _, (_, size) in shapes} == {count}:
        return "rows"
    parts = micro_batches(dict(shapes))
    each = [_shared({_first(size) for _, size in part.values()}) for part in parts]
    if sum(map(abs, each)) != count:
        return "one"
    return tuple(number or tuple(part.items()) for number, part in zip(each, parts, strict=True))


def _first(size: Any) -> int:
    return size[0] if size else -1


def _shared(rows: set[int]) -> int:
    """Rows that all tensors have; -1 if they are one record together."""
    return next(iter(rows)) if len(rows) == 1 else -1
