"""The formula of an average of weights whose decay grows, read from the object that keeps it.

A reading gives, for each such average, by what the difference to the weights is multiplied in its next update: one less
its decay. It is compared with what the object says of many updates, and left out if they disagree. The libraries need
not be installed: their classes are known by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prover.capture.live_objects import of_types
from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.formula_arithmetic import tolerance
from weighbridge.transcript.formula_terms import COUNTS, Formulas

_TRIED = (*range(33), *range(48, 4097, 16))
"""At which updates, counted from zero, a reading is compared."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How an average's next update follows from how many it has made.

    Attributes:
        text: Gives the formula, given the formula of how many updates it has made.
        factor: What the object itself says, given that number.
        count: Gives that number, where the object knows it; else it is that of the training's steps.
    """

    text: Callable[[str], str]
    factor: Callable[[int], float]
    count: Callable[[], int] | None


def readings(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Reading]:
    """Yields what can be read of the program's averages of what some optimizers train, and agrees with them."""
    trained = {tuple(p.shape) for each in optimizers for group in each.param_groups for p in group["params"]}
    for item in of_types(lambda kind: (kind.__module__, kind.__name__) in _READERS):
        try:
            averaged, reading = _READERS[type(item).__module__, type(item).__name__](item)
        except (TypeError, ValueError, AttributeError):
            continue  # not the numbers that such an average has
        if trained <= {tuple(t.shape) for t in averaged} and agrees(reading):
            yield reading


def agrees(reading: Reading) -> bool:
    """True if a reading gives what the object itself says."""
    try:
        parsed = Formulas.parse({"average": reading.text(COUNTS[0])})
        for at in _TRIED:
            given = parsed.evaluate("average", at + 1, counts=[at])
            if not abs(reading.factor(at) - given[0]) <= tolerance(given, 0.0):
                return False
    except (WeighbridgeError, ArithmeticError, TypeError, ValueError, AttributeError):
        return False
    return True


def _diffusers(average: Any) -> tuple[Sequence[torch.Tensor], Reading]:
    after, most, least = int(average.update_after_step), float(average.decay), float(average.min_decay)

    def text(at: str) -> str:
        since = f"({at} - {after})"
        decay = f"(1 + {since}) / (10 + {since})"
        if average.use_ema_warmup:
            decay = _power(since, average.inv_gamma, average.power)
        return f"1 - (max({least!r}, min({most!r}, {decay})) if {at} > {after} else 0)"

    def factor(at: int) -> float:
        return 1 - float(average.get_decay(at + 1))

    return average.shadow_params, Reading(text, factor, lambda: int(average.optimization_step))


def _power(since: str, gamma: float, power: float) -> str:
    return f"1 - (1 + {since} / {float(gamma)!r}) ** -{float(power)!r}"


_READERS: dict[tuple[str, str], Callable[[Any], tuple[Sequence[torch.Tensor], Reading]]] = {
    ("diffusers.training_utils", "EMAModel"): _diffusers,
}
