"""How far the weights moved between checkpoints, by the checkpoints alone: where to look, and evidence of gluing.

Honest training moves the weights by about as much from one segment to the next, more at first and less later. A
transcript that was glued together from two runs jumps where they meet (Choi, Shavit and Duvenaud 2023). That is
evidence, with a score that honest runs also reach at times; replay decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript

_MAD_TO_DEVIATION = 1.4826
"""The standard deviation of a normal variable over its median absolute deviation."""
_LEAST_DEVIATION = 0.05
"""Of the logarithm of a change. Segments that are more alike than this are alike by chance."""
_NEIGHBOURS = 4
_NOTHING = math.log(1e-300)


class Changes:
    """The weight changes of a transcript, computed when they are asked for.

    Which tensors are weights is the Prover's word: those in `chips.cbor`, or else everything attached as a module.
    """

    def __init__(self, transcript: OpenedTranscript) -> None:
        """Looks at the checkpoints that are there; a minimal copy has none."""
        self._transcript = transcript

    @cached_property
    def by_tensor(self) -> Mapping[int, Mapping[str, float]]:
        """First step of each segment between two checkpoints that are here, to the relative change of each weight.

        A relative change is the norm of the difference over the larger of the two norms; infinite if it is no number.
        """
        try:
            return self._transcript.distances()
        except WeighbridgeError:
            return {}  # the replay of these segments says so

    @cached_property
    def total(self) -> dict[int, float]:
        """First step of each such segment to the relative change of all weights together."""
        return {step: tensors[""] for step, tensors in self.by_tensor.items()}

    def of(self, begin: int, name: str = "") -> float:
        """Returns the relative change of a weight, or of all, in the segment that begins with a step; 0 if unknown."""
        return self.by_tensor.get(begin, {}).get(name, 0.0)

    def largest(self, begins: Sequence[int], count: int) -> list[int]:
        """Returns those `count` of some segments, named by their first steps, in which the weights changed most."""
        known = [begin for begin in begins if begin in self.total]
        return sorted(known, key=lambda begin: (-self.total[begin], begin))[:count]

    def continuity(self) -> dict[int, float]:
        """Returns how far each segment's change stands out from its neighbours', in robust standard deviations.

        The score is of the logarithm of the change a step, against the median of up to four segments on either side. It
        is evidence: a change of the learning rate stands out as well.
        """
        begins = sorted(self.total)
        ends = sorted(self._transcript.manifest.checkpoints)
        lengths = [ends[ends.index(begin) + 1] - begin for begin in begins]
        rates = [self.total[begin] / length for begin, length in zip(begins, lengths, strict=True)]
        return scores(
            [math.log(rate) if 0 < rate < math.inf else math.inf if rate else _NOTHING for rate in rates], begins
        )


def scores(values: Sequence[float], names: Sequence[int]) -> dict[int, float]:
    """Returns how far each of some values lies from its neighbours, in robust standard deviations.

    One with fewer than two neighbours scores 0.

    Args:
        values: In order.
        names: What to call each.
    """
    found: dict[int, float] = {}
    for place, name in enumerate(names):
        around = range(max(0, place - _NEIGHBOURS), min(len(values), place + _NEIGHBOURS + 1))
        others = np.array([values[i] for i in around if i != place and math.isfinite(values[i])])
        if others.size < 2:
            found[name] = 0.0
            continue
        middle = float(np.median(others))
        spread = _MAD_TO_DEVIATION * float(np.median(np.abs(others - middle)))
        gap = values[place] - middle
        found[name] = math.inf if not math.isfinite(gap) else gap / max(spread, _LEAST_DEVIATION)
    return found
