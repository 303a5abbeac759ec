"""The least detection probability of draws from several groups, when drawn chips did not verify afterwards.

A chip that is unplugged, or a snapshot that cannot be replayed any more, *after the draw is known* was chosen by the
Prover. Against a Prover who withholds exactly the chips that would show the run, a run is missed when the chips that
show it, over all groups, are at most the w that did not verify:

    p = Pr(S_1 + S_2 + ... > w),  S_i: involved chips among those drawn of group i that show the run.

This is what makes 1 - p a valid statement whatever the Prover does: to be missed, w must reach the sum, p falls with w,
and so a violation is missed *and* reported with p >= x with probability 1 - x at most. Counting each group's silence
for itself, Pr(S_i > w_i for some i), would not be valid: it picks the most favourable of many comparisons.

The Prover also chooses, before the draw, how many chips of each group take part. Without silence
`analysis.least_detection` has the exact answer. With it, one group is exact. For several, placements that are cheapest
for Provers who fear the first hit more, or less, are improved by moving chips between groups until no move helps. It
is a search; tests compare it with every placement on small fleets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.domain import FloatArray, Numbers, together, whole
from analysis.hypergeometric import seen_probability
from analysis.least_detection import LeastProbability, least_probability
from analysis.withheld_marks import shown_marks

_PATIENCE = (0.5, 0.9, 0.99)  # how little the Prover minds a single hit, for the placements to begin with
_FEW = 8  # groups up to which every pair is tried for a move
_BEST = 4  # givers and takers tried beyond that
_MOST_MOVES = 1000
_GAIN = 1e-13  # of the miss; less is rounding


@dataclass(frozen=True, kw_only=True)
class GroupedDraw:
    """One draw from several groups of chips, and the run that it is to catch.

    Attributes:
        chips: Chips in each group (N_i), whole; one axis.
        drawn: Different chips drawn in each group (s_i), whole, at most `chips`; those that did not verify included.
        shown: Probability that a drawn involved chip shows the run, 0 to 1.
        chip_flops_per_day: FLOPs that one chip of each group can do per day (a_i).
        flops_threshold: Size of the violation in FLOPs (H).
        run_days: Length of the run in days (T).
    """

    chips: Numbers
    drawn: Numbers
    shown: Numbers
    chip_flops_per_day: Numbers
    flops_threshold: float
    run_days: float

    def least(self, patience: float = 0.0) -> LeastProbability:
        """Returns the least probability without silence, of a run that shows itself so much less often."""
        return least_probability(
            chips=self.chips,
            drawn=self.drawn,
            shown=np.asarray(self.shown, dtype=np.float64) * (1 - patience),
            chip_flops_per_day=self.chip_flops_per_day,
            flops_threshold=self.flops_threshold,
            run_days=self.run_days,
        )


def least_probability_despite(draws: Sequence[GroupedDraw], *, withheld: int) -> tuple[float, list[tuple[float, ...]]]:
    """Returns p against the placement that is missed most often, and that placement.

    Args:
        draws: The draws that the run met, one for each period; a run is placed in each of them anew.
        withheld: Drawn chips, over all draws, that did not verify after the draw was known (w).

    Returns:
        p, and for each draw the involved chips of each group. Without silence it is that of `least_probability`.

    Raises:
        DetectionDomainError: An argument is out of range, or the run does not fit on the chips of a draw.
    """
    hidden = int(whole("withheld", withheld, 0))
    plain = [each.least() for each in draws]
    if hidden == 0 or not draws:
        missed = float(np.prod([1 - each.probability for each in plain]))
        p = plain[0].probability if len(plain) == 1 else 1 - missed
        return p, [each.involved for each in plain]
    fleet = _Fleet.of(draws, hidden)
    starts = [_flat([each.involved for each in plain])]
    if len(draws) == 1 or sum(fleet.sizes) <= _FEW:  # over years of many strata these would take minutes
        starts += [_flat([each.least(patience).involved for each in draws]) for patience in _PATIENCE]
    starts += list(fleet.filled(starts[0]))
    best = max(starts, key=fleet.missed)
    found = fleet.improved(best)
    ends = np.cumsum(fleet.sizes)[:-1]
    return fleet.probability(found), [tuple(part.tolist()) for part in np.split(found, ends)]


def _flat(parts: Sequence[Sequence[float]]) -> FloatArray:
    return np.array([count for part in parts for count in part], dtype=np.float64)


@dataclass
class _Fleet:
    """The groups of all draws, one after the other."""

    total: FloatArray
    drawn: FloatArray
    shown: FloatArray
    speed: FloatArray
    draw: FloatArray
    sizes: list[int]
    withheld: int
    _known: dict[tuple[int, float], FloatArray] = field(default_factory=dict)

    @classmethod
    def of(cls, draws: Sequence[GroupedDraw], withheld: int) -> _Fleet:
        rows = [
            together(*(np.atleast_1d(np.asarray(part, dtype=np.float64)) for part in parts))
            for parts in ((each.chips, each.drawn, each.shown, each.chip_flops_per_day) for each in draws)
        ]
        sizes = [row[0].size for row in rows]
        total, drawn, shown, speed = (np.concatenate([row[place] for row in rows]) for place in range(4))
        draw = np.repeat(np.arange(float(len(sizes))), sizes)
        return cls(total, drawn, shown, speed, draw, sizes, withheld)

    def hits(self, group: int, involved: float) -> FloatArray:
        """Returns the probabilities of 0 to w chips of a group that show the run; a chip used in part shows nothing."""
        key = group, float(np.floor(involved + 1e-9))
        if key not in self._known:
            chips = max(1.0, float(self.total[group]))
            self._known[key] = shown_marks(
                chips, key[1], float(self.drawn[group]), float(self.shown[group]), self.withheld
            )
        return self._known[key]

    def _joined(self, one: FloatArray, other: FloatArray) -> FloatArray:
        return np.convolve(one, other)[: self.withheld + 1]

    def missed(self, involved: FloatArray) -> float:
        """Returns the probability that at most w chips show the run."""
        found = np.ones(1)
        for group, count in enumerate(involved):
            found = self._joined(found, self.hits(group, count))
        return float(found.sum())

    def probability(self, involved: FloatArray) -> float:
        """Returns p, of one group to all digits."""
        if involved.size > 1:
            return min(1.0, max(0.0, 1 - self.missed(involved)))
        return float(
            seen_probability(
                population=np.maximum(self.total, 1), marked=np.floor(involved + 1e-9), drawn=self.drawn,
                shown=self.shown, withheld=self.withheld,
            )[0]
        )  # fmt: skip

    def filled(self, start: FloatArray) -> Iterator[FloatArray]:
        """Yields placements of the same size that fill one group after the other, least often drawn from first."""
        rate = self.drawn * self.shown / np.maximum(self.total, 1) / self.speed
        for tie in (self.total, -self.total):
            found = np.zeros_like(start)
            left = np.bincount(self.draw.astype(np.int64), weights=start * self.speed)
            for group in np.lexsort((tie, rate)):
                draw = int(self.draw[group])
                found[group] = min(self.total[group], max(0.0, left[draw]) / self.speed[group])
                left[draw] -= found[group] * self.speed[group]
            yield found

    def improved(self, start: FloatArray) -> FloatArray:
        """Returns the placement at which no move of chips from one group to another is missed more often."""
        found, best = start, self.missed(start)
        step, moves = 2.0 ** np.floor(np.log2(max(1.0, float(start.max())))), 0
        while step >= 1:
            tried = [(self.missed(each), each) for each in self._moves(found, step)]
            value, placement = max(tried, key=lambda pair: pair[0], default=(best, found))
            if value > best * (1 + _GAIN) and moves < _MOST_MOVES:
                found, best, moves = placement, value, moves + 1
            else:
                step /= 2
        return found

    def _moves(self, found: FloatArray, step: float) -> Iterator[FloatArray]:
        """Yields placements in which up to `step` chips of one group are replaced by chips of another one."""
        givers, takers = np.flatnonzero(found >= 1), np.flatnonzero(self.total - found >= 1)
        if found.size > _FEW:
            givers, takers = self._promising(found, givers, -step), self._promising(found, takers, step)
        for giver in givers:
            for taker in takers:
                if giver == taker or self.draw[giver] != self.draw[taker]:
                    continue
                ratio = self.speed[giver] / self.speed[taker]
                count = min(step, found[giver], (self.total[taker] - found[taker]) / ratio)
                moved = found.copy()
                moved[giver] -= count
                moved[taker] += count * ratio
                yield moved

    def _promising(self, found: FloatArray, groups: np.ndarray, change: float) -> np.ndarray:
        """Returns the groups of which a change alone leaves the largest miss, for the work that it is."""
        before, after = [np.ones(1)], [np.ones(1)]
        for group in range(found.size):
            before.append(self._joined(before[-1], self.hits(group, found[group])))
            last = found.size - 1 - group
            after.append(self._joined(after[-1], self.hits(last, found[last])))
        values = []
        for group in groups:
            count = min(max(found[group] + change, 0.0), float(self.total[group]))
            others = self._joined(before[group], after[found.size - 1 - group])
            missed = float(self._joined(others, self.hits(group, count)).sum())
            work = abs(count - found[group]) * float(self.speed[group])
            values.append((missed - float(before[-1].sum())) / work)
        return groups[np.argsort(values)[::-1][:_BEST]]
