"""What a rounding log chose, against chance: counts made during a replay, and the tests and the freedom they amount to.

An honest log says how one conforming device rounded, and its errors are as often above as below those of another. So
of the elements that only one of the two finds contested, either should have about half, and so should either direction.
Tests are *evidence* with a p-value, never findings by themselves: honest rounding errors of truncating hardware lean to
one side, and results that repeat are not independent. What is counted exactly is the *freedom*: how many bits the log
brought in where it overruled the replayer's own rounding. A log that overrules nothing brings nothing in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from weighbridge.errors import Finding
from weighbridge.numerics import narrow, rounding
from weighbridge.numerics.rounding import Bound, Choices
from weighbridge.numerics.roundlog import OpEntries
from weighbridge.tapepolicy import TapePolicy

WIDE = 1 << 8
"""An entry with more admissible values than these is wide."""

_SHOWN = 4096
"""Entries of one output that the directions are counted of."""

_BATCH = 1 << 15
"""Entries that are counted together: most outputs have few, and counting each by itself would cost a replay time."""

_EVERY = 64
"""Of so many rounded outputs, one is searched for contested elements anew."""

_WHOLE = math.log2(3)
"""Bits of a whole value: one of three that are not finite, or of three neighbours."""


@dataclass(slots=True)
class Tally:
    """Counts over the replayed steps.

    Attributes:
        rounded: Elements rounded.
        narrow: Those of them that were rounded to 16 bits.
        entries: Entries of the log.
        overruled: Entries that changed the replayer's own rounding.
        bits: Sum over all entries of log2(number of admissible values): what the log could have brought in.
        bits_in: The same over the entries that overruled: at most so many bits came in as values.
        wide: Entries with more than 256 admissible values.
        wide_bits: Their part of `bits`.
        wide_bits_in: Their part of `bits_in`.
        up: Entries that round above the replayer's wide value. Of at most 4,096 entries of one output; and equal wide
            values that come near each other count once, here and in the next five: they are rounded alike.
        down: Entries that round below it.
        outward: Entries that round away from zero.
        inward: Entries that round towards zero.
        overruled_up: Entries that moved a result up from the replayer's own rounding.
        overruled_down: Entries that moved it down.
        only_logged: In one of 64 outputs: elements with an entry that the replayer does not find contested.
        only_here: There: elements without an entry that it finds contested.
        both: There: elements where they agree.
    """

    rounded: int = 0
    narrow: int = 0
    entries: int = 0
    overruled: int = 0
    bits: float = 0.0
    bits_in: float = 0.0
    wide: int = 0
    wide_bits: float = 0.0
    wide_bits_in: float = 0.0
    up: int = 0
    down: int = 0
    outward: int = 0
    inward: int = 0
    overruled_up: int = 0
    overruled_down: int = 0
    only_logged: int = 0
    only_here: int = 0
    both: int = 0
    _outputs: int = 0
    _waiting: list[tuple[torch.dtype, np.ndarray[Any, np.dtype[np.uint8]], Choices]] = field(default_factory=list)

    def add(
        self, wide: torch.Tensor, bound: Bound, dtype: torch.dtype, entries: OpEntries | None, choices: Choices | None
    ) -> None:
        """Counts one rounded output.

        Args:
            wide: The replayer's wide result.
            bound: Its bound.
            dtype: What it was rounded to: float32, bfloat16 or float16.
            entries: What the log said about it, or None.
            choices: What came of these entries, or None.
        """
        self.rounded += wide.numel()
        self.narrow += wide.numel() if dtype in narrow.NARROW else 0
        self._outputs += 1
        if self._outputs % _EVERY == 0:
            self._compare(wide, bound, dtype, entries)
        if entries is not None and choices is not None:
            self.entries += len(entries.widths)
            self._waiting.append((dtype, entries.widths, choices))
            if sum(len(widths) for _, widths, _ in self._waiting) >= _BATCH:
                self.settle()

    def settle(self) -> None:
        """Counts the entries that were put aside; to be called before counts are read."""
        waiting, self._waiting = self._waiting, []
        for dtype in {dtype for dtype, _, _ in waiting}:
            self._count(dtype, [(widths, choices) for other, widths, choices in waiting if other == dtype])

    def _compare(self, wide: torch.Tensor, bound: Bound, dtype: torch.dtype, entries: OpEntries | None) -> None:
        """Finds the contested elements anew and compares them with the logged ones."""
        if dtype in narrow.NARROW:
            mine = narrow.record(wide, bound, dtype, 0, 0).entries
        else:
            mine = rounding.record(wide, bound, 0, 0).entries
        empty = np.empty(0, dtype=np.int64)
        here, logged = (empty if e is None else e.positions for e in (mine, entries))
        both = len(np.intersect1d(here, logged, assume_unique=True))
        self.both += both
        self.only_here += len(here) - both
        self.only_logged += len(logged) - both

    def _count(self, dtype: torch.dtype, outputs: list[tuple[np.ndarray[Any, np.dtype[np.uint8]], Choices]]) -> None:
        widths = np.concatenate([w for w, _ in outputs])
        y, e, own, logged = (
            np.concatenate([getattr(c, name) for _, c in outputs]) for name in ("wide", "bounds", "own", "logged")
        )
        changed = (own != logged) & ~(np.isnan(own) & np.isnan(logged))
        bits = np.ones(len(widths))
        bits[widths == 0] = _WHOLE
        several = np.flatnonzero(widths > 1)
        bits[several] = _admissible_bits(y[several], e[several], dtype)
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
        """Returns the counts by name."""
        self.settle()
        return {name: getattr(self, name) for name in NAMES}


NAMES = tuple(f.name for f in fields(Tally) if not f.name.startswith("_"))
"""What a tally counts, in order."""


def _admissible_bits(y: np.ndarray[Any, Any], e: np.ndarray[Any, Any], dtype: torch.dtype) -> np.ndarray[Any, Any]:
    """Returns log2 of the number of values from round(y - 2e) to round(y + 2e)."""
    ends = []
    with np.errstate(over="ignore", invalid="ignore"):
        for side in (-2.0, 2.0):
            value = torch.from_numpy(y + side * e).to(dtype)
            word = value.view(torch.int32 if dtype is torch.float32 else torch.int16).numpy().astype(np.int64)
            most = 0x7FFFFFFF if dtype is torch.float32 else 0x7FFF
            ends.append(np.where(word < 0, -(word & most), word))
    result: np.ndarray[Any, Any] = np.log2(np.maximum(ends[1] - ends[0] + 1, 1).astype(np.float64))
    return result


def parse(raw: Mapping[str, Any]) -> Tally:
    """Reads counts that a worker sent.

    Raises:
        ValueError, TypeError, KeyError: They are not finite numbers of these names, at least 0.
    """
    values: dict[str, Any] = {name: (float if "bits" in name else int)(raw[name]) for name in NAMES}
    if not all(0 <= v < 2**63 for v in values.values()):
        raise ValueError("evidence")
    return Tally(**values)


def tests(tally: Tally) -> dict[str, dict[str, int | float]]:
    """Returns the tests of the counts against chance, by name.

    Each has `observed` of `of`, expected one half of them, and the two-sided binomial `p`:

    - `contested`: elements that only the log calls contested, among those that only one side does;
    - `up`: entries that round up; `outward`: entries that round away from zero;
    - `overruled_up`: overruled roundings that were moved up.
    """
    tally.settle()
    pairs = {
        "contested": (tally.only_logged, tally.only_here),
        "up": (tally.up, tally.down),
        "outward": (tally.outward, tally.inward),
        "overruled_up": (tally.overruled_up, tally.overruled_down),
    }
    return {name: {"observed": a, "of": a + b, "p": even(a, a + b)} for name, (a, b) in pairs.items()}


def even(observed: int, of: int) -> float:
    """Returns the two-sided p-value of so many among `of` when each is one with probability one half (exact)."""
    from scipy.special import bdtr

    return min(1.0, 2.0 * float(bdtr(min(observed, of - observed), of, 0.5))) if of else 1.0


def report(tally: Tally) -> dict[str, Any]:
    """Returns counts and tests as JSON-compatible values."""
    return {**tally.to_json(), "tests": tests(tally)}


def findings(tally: Tally, policy: TapePolicy, subject: str) -> list[Finding]:
    """Returns `replay.rounding.freedom` if more bits came in by the log than the policy allows.

    Args:
        tally: Counts of the replay.
        policy: How many bits may come in, and how grave it is if more do.
        subject: The transcript.
    """
    tally.settle()
    wide = tally.rounded - tally.narrow
    limit = policy.log_bits + policy.log_rate * wide + policy.log_rate_narrow * tally.narrow
    if tally.bits_in <= limit:
        return []
    return [
        Finding(
            id="replay.rounding.freedom",
            message=f"the rounding log overruled {tally.overruled} roundings and chose {tally.bits_in:.0f} bits there, "
            f"{tally.wide_bits_in:.0f} of them among more than {WIDE} values at a time: it may be an input; look at "
            "operations whose bounds are wide against their results",
            expected=f"at most {limit:.0f} bits",
            found=f"{tally.bits_in:.0f} bits",
            subject=subject,
            severity=policy.log_freedom,
            evidence=tally.to_json(),
        )
    ]
