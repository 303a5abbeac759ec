"""How many differences a sketch must be able to name: counts of real differences, and a model of their tail.

An output's *place* is the number of its checksum; steps that share a tape have the same places. The counts of a place
over steps are taken for negative binomial: Poisson, with a mean that itself varies from step to step. The mean of a
place is its average, with three more differences in all, so that it is above zero where none was seen. The spread f
(variance = mean + f * mean^2) is estimated by moments around the averages of places, over all of them, and is at least
`LEAST_SPREAD`.

Where an operation never differed, this machine's two kernels happen to agree, and other machines' may not. The mean is
then what the worst operation's share of contested elements would give.

`margin` multiplies means: pairs of machines that were not measured may differ that many times as often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.sketches.truth import Output
from weighbridge.numerics.sketches.codec import Capacity

FAILURES = 1e-6
"""Share of steps in which a sketch may fail to decode."""
LEAST_SPREAD = 0.01
_UNSEEN = 3.0
_MOST = 4095
"""The largest capacity: it is written in twelve bits."""


@dataclass(frozen=True, slots=True)
class Model:
    """What was fitted.

    Attributes:
        means: Mean number of differences, and of those left for the second stage, of each place.
        spreads: f for the two.
    """

    means: dict[int, tuple[float, float]]
    spreads: tuple[float, float]

    def tail(self, place: int, stage: int, count: int) -> float:
        """Returns the probability of so many differences or more."""
        return tail(self.means[place][stage], self.spreads[stage], count)

    def capacity(self, place: int, margin: float) -> Capacity:
        """Returns the least capacity with which all outputs of a step together fail in at most `FAILURES` of steps."""
        share = FAILURES / (2 * len(self.means))
        t, u = (
            least(mean * margin, spread, share) for mean, spread in zip(self.means[place], self.spreads, strict=True)
        )
        # Where little differs, the second stage alone is shorter.
        return Capacity(0, t) if 2 * t <= t + 2 * u else Capacity(t, u)

    def differences(self, place: int, margin: float) -> int:
        """Returns how many differences in all a scheme of one stage must name at this place."""
        return least(self.means[place][0] * margin, self.spreads[0], FAILURES / len(self.means))


def least(mean: float, spread: float, share: float) -> int:
    """Returns the least count that is exceeded with at most a probability of `share`."""
    if not mean:
        return 0
    return min(_MOST, int(stats.nbinom(1 / spread, 1 / (1 + spread * mean)).isf(share)))


def tail(mean: float, spread: float, count: int) -> float:
    """Returns the probability of so many differences or more."""
    return float(stats.nbinom(1 / spread, 1 / (1 + spread * mean)).sf(count - 1)) if mean else float(count == 0)


def fit(outputs: Sequence[Output]) -> Model:
    """Fits the model to the 16-bit outputs of some steps, at least two, that share a tape.

    Raises:
        ValueError: There are none, or of one step alone.
    """
    places: dict[int, list[Output]] = {}
    for output in outputs:
        if output.small:
            places.setdefault(output.index, []).append(output)
    if not places or min(map(len, places.values())) < 2:
        raise ValueError("a model of differences needs the 16-bit outputs of two steps or more with one tape")
    seen = {o.operation for of in places.values() for o in of if len(o.differing)}
    worst = _worst(o for of in places.values() for o in of if o.operation in seen)
    means = {}
    for place, of in places.items():
        if of[0].operation in seen:
            sums = sum(len(o.differing) for o in of), sum(o.rest for o in of)
            means[place] = (sums[0] + _UNSEEN) / len(of), (sums[1] + _UNSEEN) / len(of)
        else:
            contested = sum(o.candidates for o in of) / len(of)
            means[place] = contested * worst[0], contested * worst[1]
    spreads = (
        _spread([[len(o.differing) for o in of] for of in places.values()]),
        _spread([[o.rest for o in of] for of in places.values()]),
    )
    return Model(means, spreads)


def _worst(outputs: Iterable[Output]) -> tuple[float, float]:
    """Returns the largest shares of contested elements that differ, and that are left, of any operation."""
    counts: dict[str, list[int]] = {}
    for o in outputs:
        count = counts.setdefault(o.operation, [0, 0, 0])
        for i, value in enumerate((o.candidates, len(o.differing), o.rest)):
            count[i] += value
    shares = [(d / c, r / c) for c, d, r in counts.values() if c]
    return max((d for d, _ in shares), default=0.0), max((r for _, r in shares), default=0.0)


def _spread(counts: list[list[int]]) -> float:
    above = sum(float(np.var(each, ddof=1)) - float(np.mean(each)) for each in counts)
    squares = sum(float(np.mean(each)) ** 2 for each in counts)
    return max(LEAST_SPREAD, above / squares if squares else 0.0)


def dispersion(outputs: Iterable[Output], block: int) -> float | None:
    """Returns the variance of differences in blocks of neighbours over their mean: 1 if they fall independently."""
    variances = means = 0.0
    for o in outputs:
        if len(o.differing) and o.elements >= 4 * block:
            counts = np.bincount(o.differing // block, minlength=-(-o.elements // block))
            variances += float(counts.var(ddof=1)) * len(counts)
            means += float(counts.mean()) * len(counts)
    return variances / means if means else None
