"""The formula of a timm learning-rate schedule, read from the scheduler.

timm's schedulers are told how far they are and do not keep it. So the count is found again from the rate: the next one
at which the scheduler gives the rate that the optimizer has. Counts with equal rates are as good as each other. timm
need not be installed: its classes are known by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.formula_arithmetic import tolerance
from weighbridge.transcript.formula_terms import COUNTS, Formulas

_BASE = ("timm.scheduler.scheduler", "Scheduler")
_TRIED = (*range(33), *range(48, 1025, 16))
"""At which counts a formula is compared."""
_AHEAD = 4096
"""How many counts further the rate is looked for."""


def is_one(kind: type) -> bool:
    """True for the class of a timm scheduler."""
    return any((each.__module__, each.__name__) == _BASE for each in kind.__mro__)


def texts(scheduler: Any, at: str) -> list[str] | None:
    """Returns the formula of each group's rate.

    Args:
        scheduler: A timm scheduler.
        at: The formula of how far it is.

    Returns:
        The formulas; None if its kind has none here, or if the scheduler itself says otherwise.
    """
    reader = _READERS.get(type(scheduler).__name__)
    if reader is None or scheduler.param_group_field != "lr" or scheduler.noise_range_t is not None:
        return None
    try:
        found = [f"{_scale(scheduler, n)} * ({reader(scheduler, n, at)})" for n in range(len(scheduler.base_values))]
        parsed = Formulas.parse({f"rate{number}": text for number, text in enumerate(found)})
        return found if all(_agrees(scheduler, parsed, count) for count in _TRIED) else None
    except (WeighbridgeError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return None  # not the numbers that such a scheduler has


def count_of(scheduler: Any) -> Callable[[], int]:
    """Returns what finds out how far a scheduler is, each time that it is asked."""
    last = 0

    def count() -> int:
        nonlocal last
        now = [float(group["lr"]) for group in scheduler.optimizer.param_groups]
        last = next((at for at in range(last, last + _AHEAD) if _rates(scheduler, at) == now), last)
        return last

    return count


def _scale(scheduler: Any, group: int) -> str:
    return repr(float(scheduler.optimizer.param_groups[group].get("lr_scale", 1.0)))


def _rates(scheduler: Any, at: int) -> list[float]:
    """What the optimizer's groups have once the scheduler was told `at`."""
    groups = scheduler.optimizer.param_groups
    values = zip(scheduler._get_lr(at), groups, strict=True)
    return [float(value * group["lr_scale"] if "lr_scale" in group else value) for value, group in values]


def _agrees(scheduler: Any, rates: Formulas, at: int) -> bool:
    for number, rate in enumerate(_rates(scheduler, at)):
        given = rates.evaluate(f"rate{number}", at + 1, counts=[at] * len(COUNTS))
        if not abs(rate - given[0]) <= tolerance(given, 0.0):
            return False
    return True


def _cosine(scheduler: Any, group: int, at: str) -> str:
    if scheduler.cycle_mul != 1:
        raise ValueError("cycles of different lengths")
    base, least, length = float(scheduler.base_values[group]), float(scheduler.lr_min), int(scheduler.t_initial)
    begin, rising = float(scheduler.warmup_lr_init), int(scheduler.warmup_t)
    since = f"({at} - {rising})" if scheduler.warmup_prefix else f"({at})"
    cycle, power = f"floor({since} / {length})", float(scheduler.k_decay)
    most = repr(base) if scheduler.cycle_decay == 1 else f"{base!r} * {float(scheduler.cycle_decay)!r} ** {cycle}"
    part = f"({since} - {length} * {cycle}) / {length}"
    part = part if power == 1 else f"({part}) ** {power!r}"
    falling = f"{least!r} + ({most} - {least!r}) * (1 + cos(pi * {part})) / 2"
    falling = f"{falling} if {cycle} < {int(scheduler.cycle_limit)} else {least!r}"
    return _warmed(base, begin, rising, at, falling)


def _step(scheduler: Any, group: int, at: str) -> str:
    base, every = float(scheduler.base_values[group]), int(scheduler.decay_t)
    begin, rising = float(scheduler.warmup_lr_init), int(scheduler.warmup_t)
    since = f"({at} - {rising})" if getattr(scheduler, "warmup_prefix", False) else f"({at})"
    return _warmed(base, begin, rising, at, f"{base!r} * {float(scheduler.decay_rate)!r} ** floor({since} / {every})")


def _warmed(base: float, begin: float, rising: int, at: str, after: str) -> str:
    if not rising:
        return after
    return f"{begin!r} + ({at}) * {(base - begin) / rising!r} if {at} < {rising} else ({after})"


_READERS: Mapping[str, Callable[[Any, int, str], str]] = {"CosineLRScheduler": _cosine, "StepLRScheduler": _step}
