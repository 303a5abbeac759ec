"""What a rounding log chose, against chance: counts made during a replay, and the tests and the freedom they amount to.

An honest log says how one conforming device rounded, and its errors are as often above as below those of another. So
of the elements that only one of the two finds contested, either should have about half, and so should either direction.
Tests are *evidence* with a p-value, never findings by themselves: honest rounding errors of truncating hardware lean to
one side, and results that repeat are not independent.

What may be a finding (`rounding_findings`) is counted exactly: what the log brought in where it overruled the
replayer's own rounding (`rounding_surprise`), and which elements only one of the two finds contested, in outputs that
the replayer draws and a Prover cannot foresee.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from weighbridge.execution.choice_counts import Counts
from weighbridge.execution.rounding_surprise import Overruled, Surprise
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Choices
from weighbridge.numerics.rounding.rounding_log import OpEntries

Positions = np.ndarray[Any, np.dtype[np.int64]]

WIDE = 1 << 8
"""An entry with more admissible values than these is wide."""

_SHOWN = 4096
"""Entries of one output that the directions are counted of."""

_BATCH = 1 << 15
"""Entries that are counted together: most outputs have few, and counting each by itself would cost a replay time."""

EVERY = 64
"""Of so many rounded outputs, one is searched for contested elements anew, whichever the replayer draws."""


@dataclass(slots=True)
class Tally(Counts):
    """Counts over the replayed steps, while it goes on."""

    surprise: Surprise = field(default_factory=Surprise)
    _outputs: int = 0
    _drawn: int = -1
    _put_aside: int = 0
    _waiting: list[tuple[torch.dtype, np.ndarray[Any, np.dtype[np.uint8]], Choices]] = field(default_factory=list)

    def add(
        self, step: int, operation: str, wide: torch.Tensor, bound: Bound, dtype: torch.dtype,
        entries: OpEntries | None, choices: Choices | None, *, names_all: bool = True,
        confirmed: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
    ) -> None:  # fmt: skip
        """Counts one rounded output.

        Args:
            step: Its step.
            operation: What made it.
            wide: The replayer's wide result.
            bound: Its bound.
            dtype: What it was rounded to: float32, bfloat16 or float16.
            entries: What the log said about it, or None.
            choices: What came of these entries, or None.
            names_all: Whether there are entries for all contested elements; a sketch names those that differ here.
            confirmed: Which entries overruled the replayer and chose nothing, since a declared unit has one result.
        """
        small = dtype in formats.NARROW
        self.rounded += wide.numel()
        self.narrow += wide.numel() if small else 0
        self._draw()
        mine: Positions | None = None
        if self._outputs == self._drawn and names_all:
            mine = _contested(wide, bound, dtype)
            self._compare(mine, entries)
        self._outputs += 1
        overruled = None
        if entries is not None and choices is not None:
            changed = _changed(choices.own, choices.logged)
            changed = changed if confirmed is None else changed & ~confirmed
            if changed.any():
                mine = _contested(wide, bound, dtype) if mine is None else mine
                overruled = _overruled(wide.numel(), mine, entries.positions[changed], choices.admissible[changed])
            self.entries += len(entries.widths)
            self._waiting.append((dtype, entries.widths, choices))
            self._put_aside += len(entries.widths)
            if self._put_aside >= _BATCH:
                self.settle()
        self.surprise.add(step, wide.numel(), small, operation, overruled)

    def _draw(self) -> None:
        """Draws which of the next outputs is looked at, if the next one begins another 64."""
        if self._outputs % EVERY == 0 and self._drawn < self._outputs:
            self._drawn = self._outputs + secrets.randbelow(EVERY)

    def looks(self, outputs: int) -> bool:
        """Whether one of the next outputs, so many, may be one whose elements are looked at."""
        self._draw()
        return self._outputs <= self._drawn < self._outputs + outputs or self._outputs % EVERY + outputs > EVERY

    def pass_by(self, step: int, operation: str, elements: int, *, small: bool) -> None:
        """Counts an output without entries that `looks` has excepted.

        Args:
            step: Its step.
            operation: What made it.
            elements: Its elements.
            small: Whether they have 16 bits.
        """
        self.rounded += elements
        self.narrow += elements if small else 0
        self._outputs += 1
        self.surprise.add(step, elements, small, operation, None)

    def settle(self) -> None:
        """Counts the entries that were put aside; to be called before counts are read."""
        waiting, self._waiting, self._put_aside = self._waiting, [], 0
        for dtype in {dtype for dtype, _, _ in waiting}:
            self._count([(widths, choices) for other, widths, choices in waiting if other == dtype])
        if self.surprise.steps:
            self.charged_bits, self.charged_step_bits = self.surprise.total(), self.surprise.most()

    def _compare(self, mine: Positions, entries: OpEntries | None) -> None:
        """Compares the replayer's contested elements with the logged ones."""
        logged = mine[:0] if entries is None else entries.positions
        both = len(np.intersect1d(mine, logged, assume_unique=True))
        self.both += both
        self.only_here += len(mine) - both
        self.only_logged += len(logged) - both

    def _count(self, outputs: list[tuple[np.ndarray[Any, np.dtype[np.uint8]], Choices]]) -> None:
        y, own, logged, several = (
            np.concatenate([getattr(c, name) for _, c in outputs]) for name in ("wide", "own", "logged", "admissible")
        )
        changed, bits = _changed(own, logged), np.log2(several)
        large = bits > math.log2(WIDE)
        self.overruled += int(changed.sum())
        self.bits += float(bits.sum())
        self.bits_in += float(bits[changed].sum())
        self.wide += int(large.sum())
        self.wide_bits += float(bits[large].sum())
        self.wide_bits_in += float(bits[large & changed].sum())
        # Copies of one result are rounded alike, and say no more than one of them.
        shown = np.flatnonzero(np.concatenate([np.arange(len(w)) < _SHOWN for w, _ in outputs]))
        single = shown[np.unique(y[shown], return_index=True)[1]]
        self._directions(y[single], own[single], logged[single])

    def _directions(self, y: np.ndarray[Any, Any], own: np.ndarray[Any, Any], logged: np.ndarray[Any, Any]) -> None:
        with np.errstate(invalid="ignore"):
            up, down = logged > y, logged < y
            outward = np.abs(logged) > np.abs(y)
        self.up += int(up.sum())
        self.down += int(down.sum())
        self.outward += int(((up | down) & outward).sum())
        self.inward += int(((up | down) & ~outward).sum())
        self.overruled_up += int((logged > own).sum())
        self.overruled_down += int((logged < own).sum())

    def to_json(self) -> dict[str, int | float]:
        """Returns the counts by name, those that were put aside too."""
        self.settle()
        return Counts.to_json(self)


def _contested(wide: torch.Tensor, bound: Bound, dtype: torch.dtype) -> Positions:
    """Returns the elements that the replayer itself would log."""
    if dtype in formats.NARROW:
        mine = narrow.record(wide, bound, dtype, 0, 0).entries
    else:
        mine = contested.record(wide, bound, 0, 0).entries
    return np.empty(0, dtype=np.int64) if mine is None else mine.positions


def _changed(own: np.ndarray[Any, Any], logged: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    changed: np.ndarray[Any, np.dtype[np.bool_]] = (own != logged) & ~(np.isnan(own) & np.isnan(logged))
    return changed


def _overruled(elements: int, mine: Positions, at: Positions, several: np.ndarray[Any, Any]) -> Overruled:
    """Returns what was overruled of one output.

    Args:
        elements: Its elements.
        mine: Those that the replayer finds contested, ascending.
        at: The overruled ones.
        several: How many values were admissible for each of these.
    """
    inside = len(np.intersect1d(mine, at, assume_unique=True))
    values = float(np.log2(np.maximum(several - 1, 1)).sum())
    return Overruled(elements, len(mine), inside, len(at) - inside, values)
