"""Judges a log about products of a unit that truncates: what the unit itself makes of the elements that it is about.

The log of such a product chooses, for each contested element, between values that the unit's bound admits. But the unit
has one result, and its model says which. So

- every entry that *overrules* the replayer is judged. The unit confirms it, or the Prover did something else;
- of elements that could *flip*, whose rounding the unit's error could change, those are judged that were not overruled:
  a Prover who suppresses a flip overrules nothing. All are, where their terms fit into a budget for each step; else as
  many as fit, drawn at random after the transcript was fixed, by the probability that they flip. Some of every result
  are judged besides, so that no other result of the step, however large, takes all room;
- what is not judged could be a suppressed flip, and is charged as that many chosen bits as flips are expected there;
- where not all are judged, flips are counted, and compared with the number that is expected.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from weighbridge.execution.unit_results import PROBES, Result
from weighbridge.numerics.arrays.physical import flat
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.units.truncated_products import UNITS

Tensor = torch.Tensor
Mask = npt.NDArray[np.bool_]

TERMS = 1 << 26
"""Products of two numbers that elements of a step that were not overruled may take together."""
CHAINS = (0, 2048, 1024, 512, 256, 128)
"""Orders that results which are not the declared unit's are compared with."""
_COMPARED, _RESULTS = 64, 4
"""Elements that are compared with other units and orders, and results that they are of: each may be computed anew for
every one of these, and who lies should not choose how long that takes."""
_PROBED = math.sqrt(PROBES)
"""The inverse of how far, as a share, the expected number of a result's flips may be off: it rests on few errors."""
_WAYS = 3
"""Most of these that are named."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What elements of one result were drawn by.

    Attributes:
        weights: Of all that could flip, those that the log moved too.
        flips: Which of them the log moved.
    """

    weights: Tensor
    flips: Tensor


@dataclass(slots=True)
class Adjudication:
    """What came of judging, over the replayed steps.

    Attributes:
        budget: As `TERMS`.
        results: Results that were judged.
        overruled: Entries that overruled the replayer.
        confirmed: Those of them that the unit confirms.
        could: Elements that could flip and were not overruled.
        judged: Those of them that were judged.
        suppressed: Those of these whose rounding is not the unit's.
        expected: Flips that are expected.
        spread: Variance of that number.
        rest: By step, flips that are expected among elements that were not judged.
        false: Step, operation and its number in the step of the first result that is not the unit's.
        compared: How many results that are not the unit's were compared with other ways.
        others: By unit and chain, or `exact`, how many of these are its.
    """

    budget: int = TERMS
    results: int = 0
    overruled: int = 0
    confirmed: int = 0
    could: int = 0
    judged: int = 0
    suppressed: int = 0
    expected: float = 0.0
    spread: float = 0.0
    rest: dict[int, float] = field(default_factory=dict)
    false: tuple[int, str, int] | None = None
    compared: int = 0
    others: dict[tuple[str, int], int] = field(default_factory=dict)
    _left: tuple[int, int] = (-1, 0)
    _looked: int = 0

    def judge(
        self, place: tuple[int, str, int], wide: Tensor, bound: Bound, rounded: Rounded, entries: OpEntries | None
    ) -> Mask | None:
        """Judges one result.

        Args:
            place: Its step, operation, and the operation's number.
            wide: The replayer's wide result.
            bound: Its bound, with what judges.
            rounded: The result as the log has it.
            entries: What the log said.

        Returns:
            Which entries the unit confirms; None without entries.
        """
        judge, step = bound.judge, place[0]
        if judge is None or not wide.numel():
            return None
        if self._left[0] != step:
            self._left = step, self.budget
        self.results += 1
        result = Result(wide, bound, judge, rounded.out)
        confirmed = np.zeros(0 if entries is None else len(entries.positions), np.bool_)
        changed, moved = confirmed, torch.empty(0, dtype=torch.int64, device=wide.device)
        if entries is not None and rounded.choices is not None:
            own, logged = rounded.choices.own, rounded.choices.logged
            changed = (own != logged) & ~(np.isnan(own) & np.isnan(logged))
            moved = torch.from_numpy(np.ascontiguousarray(entries.positions[changed])).to(wide.device)
            right = result.right(moved)
            confirmed = changed.copy()
            confirmed[changed] = right.numpy()
            self.overruled += len(moved)
            self.confirmed += int(right.sum())
            self._blame(place, result, moved[~right.to(moved.device)], moved[right.to(moved.device)])
        could = result.could_flip()
        looked = result.looked_at(could)
        expected = float(looked.chances.sum())
        self.expected += expected
        self.spread += float((looked.chances * (1 - looked.chances)).sum()) + (expected / _PROBED) ** 2
        kept = torch.ones(len(could), dtype=torch.bool)
        if changed.any():
            assert entries is not None
            kept = torch.from_numpy(~np.isin(could.cpu().numpy(), entries.positions[changed]))
        self.note(Drawn(looked.weights, ~kept))
        self.could += int(kept.sum())
        probes, right = (each[kept[looked.places]] for each in (looked.places, looked.right))
        kept[probes] = False
        rest = kept.nonzero().flatten()
        drawn = rest[self._draw(step, judge.terms, looked.weights[rest])]
        seen = could[torch.cat([probes, drawn]).to(could.device)]
        right = torch.cat([right, result.right(seen[len(probes) :])])
        self.judged += len(seen)
        self.suppressed += int((~right).sum())
        self._blame(place, result, seen[(~right).to(seen.device)], moved)
        if len(drawn) < len(rest):
            kept[drawn] = False
            self.rest[step] = self.rest.get(step, 0.0) + float(looked.weights[kept].sum())
        return confirmed if entries is not None else None

    def note(self, drawn: Drawn) -> None:
        """Called for each result; for measurements."""

    def _draw(self, step: int, terms: int, weights: Tensor) -> Tensor:
        """Returns which elements are judged: all if the step's budget has room, or some, drawn by their weights."""
        room = self._left[1] // max(terms, 1)
        count = min(len(weights), room)
        self._left = step, self._left[1] - count * terms
        if count == len(weights):
            return torch.arange(count)
        if not count:
            return torch.empty(0, dtype=torch.int64)
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        # As `multinomial` without replacement, which takes no more than 2^24 (Efraimidis and Spirakis, 2006).
        waits = torch.empty_like(weights).exponential_(generator=generator) / weights
        return waits.topk(count, largest=False).indices

    def _blame(self, place: tuple[int, str, int], result: Result, wrong: Tensor, moved: Tensor) -> None:
        """Notes elements that are not the unit's, and compares some with what other units and orders make of them.

        So it does with some that the log moved, which tell ways apart that move others from the replayer's.
        """
        if not len(wrong):
            return
        self.false = self.false or place
        self._looked += 1
        room = max(_COMPARED - self.compared, 0) if self._looked <= _RESULTS else 0
        at = torch.cat([wrong[:room], moved[: room // 2]])
        if not len(at):
            return
        self.compared += len(at)
        exact = int(result.same(at, flat(result.wide)[at]).sum())
        self.others["exact", 0] = self.others.get(("exact", 0), 0) + exact
        for unit in UNITS:
            for chain in CHAINS:
                if chain < result.judge.terms:
                    found = int(result.right(at, unit, chain).sum())
                    self.others[unit, chain] = self.others.get((unit, chain), 0) + found

    @property
    def wrong(self) -> int:
        """How many judged elements are not the unit's."""
        return self.overruled - self.confirmed + self.suppressed

    def flips_differ(self) -> bool:
        """Whether the number of flips is not what is expected, where not all that could flip were judged."""
        return bool(self.rest) and abs(self.overruled - self.expected) > 6 * math.sqrt(self.spread) + 8

    def likely(self) -> str:
        """Says which other ways of computing give most of the results that are not the unit's; empty if none does."""
        most = max(self.others.values(), default=0)
        if 2 * most <= self.compared:
            return ""
        found = [_way(*each) for each, count in self.others.items() if count == most]
        ways = ", or ".join(found[:_WAYS]) + (", or others" if len(found) > _WAYS else "")
        return f"{most} of {self.compared} that were compared are those of {ways}"

    def to_json(self) -> dict[str, int | float]:
        """Returns what there is to tell of it, by name."""
        return {
            "results": self.results, "overruled": self.overruled, "confirmed": self.confirmed, "could": self.could,
            "judged": self.judged, "suppressed": self.suppressed, "expected": round(self.expected, 3),
            "unjudged_bits": round(sum(self.rest.values()), 3),
        }  # fmt: skip


def _way(unit: str, chain: int) -> str:
    if unit == "exact":
        return "sums that are rounded once"
    return f"{unit} in chains of {chain}" if chain else f"{unit} in one chain"
