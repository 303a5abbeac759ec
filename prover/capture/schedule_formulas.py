"""The formula of a learning-rate schedule, read from the scheduler's type and numbers.

`text(scheduler, group, at)` gives the rate of one parameter group as a formula of `at`, how often the scheduler was
stepped. It is a reading, not a proof: who declares it tries it first (`prover.capture.derived_formulas`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import lr_scheduler as schedules

from prover.capture import code_formulas

_Reader = Callable[[Any, int, str], str]


def text(scheduler: Any, group: int, at: str) -> str | None:
    """Returns the formula of a group's learning rate.

    Args:
        scheduler: A scheduler of `torch.optim.lr_scheduler`.
        group: Number of the parameter group.
        at: The formula of how often the scheduler was stepped.

    Returns:
        The formula; None if the schedule is of a kind that has none here.
    """
    for kind in type(scheduler).__mro__:
        if kind in _READERS:
            try:
                return _READERS[kind](scheduler, group, at)
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
                return None  # not the numbers that such a scheduler has
    return None


def momentum(scheduler: Any, group: Mapping[str, Any], at: str) -> str | None:
    """Returns the formula of the momentum (or first beta) that a one-cycle schedule changes; None if none does."""
    if not isinstance(scheduler, schedules.OneCycleLR) or not scheduler.cycle_momentum:
        return None
    return _phases(scheduler, group, "momentum", at)


def reductions(scheduler: Any, base: float) -> int:
    """Says how often a `ReduceLROnPlateau` has reduced the rate of the first group, which was `base` at first."""
    rate, least, factor = float(scheduler.optimizer.param_groups[0]["lr"]), scheduler.min_lrs[0], scheduler.factor
    if not (0 < rate < base and 0 < factor < 1):
        return 0
    times = math.log(rate / base) / math.log(factor)
    return math.ceil(times - 1e-6) if rate <= least else round(times)


def _base(scheduler: Any, group: int) -> str:
    return _number(scheduler.base_lrs[group])


def _number(value: Any) -> str:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("no number")
    return repr(number) if number >= 0 else f"({number!r})"


def _step(scheduler: Any, group: int, at: str) -> str:
    return f"drift({_base(scheduler, group)} * {_number(scheduler.gamma)} ** floor({at} / {int(scheduler.step_size)}))"


def _multi_step(scheduler: Any, group: int, at: str) -> str:
    passed = " + ".join(f"({at} >= {int(each)})" for each in sorted(scheduler.milestones.elements()))
    return f"drift({_base(scheduler, group)} * {_number(scheduler.gamma)} ** ({passed or '0'}))"


def _constant(scheduler: Any, group: int, at: str) -> str:
    base = _base(scheduler, group)
    return f"drift({base} * {_number(scheduler.factor)} if {at} < {int(scheduler.total_iters)} else {base})"


def _linear(scheduler: Any, group: int, at: str) -> str:
    start, end = _number(scheduler.start_factor), _number(scheduler.end_factor)
    way = f"{start} + ({end} - {start}) * min(1, {at} / {int(scheduler.total_iters)})"
    return f"drift({_base(scheduler, group)} * ({way}))"


def _exponential(scheduler: Any, group: int, at: str) -> str:
    return f"drift({_base(scheduler, group)} * {_number(scheduler.gamma)} ** ({at}))"


def _polynomial(scheduler: Any, group: int, at: str) -> str:
    part = f"min(1, {at} / {int(scheduler.total_iters)})"
    return f"drift({_base(scheduler, group)} * (1 - {part}) ** {_number(scheduler.power)})"


def _cosine(scheduler: Any, group: int, at: str) -> str:
    least = _number(scheduler.eta_min)
    half = f"(1 + cos(pi * ({at}) / {int(scheduler.T_max)})) / 2"
    return f"drift({least} + ({_base(scheduler, group)} - {least}) * {half})"


def _restarts(scheduler: Any, group: int, at: str) -> str:
    if scheduler.T_mult != 1:
        raise ValueError("periods of different lengths")
    least, period = _number(scheduler.eta_min), int(scheduler.T_0)
    part = f"(({at}) / {period} - floor(({at}) / {period}))"
    return f"{least} + ({_base(scheduler, group)} - {least}) * (1 + cos(pi * {part})) / 2"


def _one_cycle(scheduler: Any, group: int, at: str) -> str:
    return _phases(scheduler, scheduler.optimizer.param_groups[group], "lr", at)


def _phases(scheduler: Any, group: Mapping[str, Any], what: str, at: str) -> str:
    pieces, begin = [], 0.0
    for phase in scheduler._schedule_phases:
        first, last = (_number(group[phase[f"{end}_{what}"]]) for end in ("start", "end"))
        end = float(phase["end_step"])
        part = f"({at} - {begin!r}) / {_number(end - begin)}"
        if getattr(scheduler, "_anneal_func_type", "cos") == "linear":
            way = f"({last} - {first}) * {part} + {first}"
        else:
            way = f"{last} + ({first} - {last}) / 2 * (cos(pi * {part}) + 1)"
        pieces.append((end, way))
        begin = end
    found = pieces.pop()[1]
    for end, way in reversed(pieces):
        found = f"{way} if {at} <= {end!r} else {found}"
    return found


def _sequential(scheduler: Any, group: int, at: str) -> str:
    parts = scheduler._schedulers
    begins = [0, *(int(each) for each in scheduler._milestones)]
    found = _of(parts[-1], group, f"({at} - {begins[-1]})")
    for number in range(len(parts) - 2, -1, -1):
        earlier = _of(parts[number], group, f"({at} - {begins[number]})")
        found = f"({earlier}) if {at} < {begins[number + 1]} else ({found})"
    return found


def _of(scheduler: Any, group: int, at: str) -> str:
    found = text(scheduler, group, at)
    if found is None:
        raise ValueError("a part without a formula")
    return found


def _plateau(scheduler: Any, group: int, at: str) -> str:
    base = _number(scheduler.optimizer.param_groups[group]["lr"])
    return f"drift(max({_number(scheduler.min_lrs[group])}, {base} * {_number(scheduler.factor)} ** ({at})))"


# -- functions given to LambdaLR ---------------------------------------------------------------------------------------


def _lambda(scheduler: Any, group: int, at: str) -> str:
    function = scheduler.lr_lambdas[group]
    found = _named(function, at) or code_formulas.of_function(function, at) or _guessed(function, at)
    if found is None:
        raise ValueError("a function without a formula")
    return f"{_base(scheduler, group)} * ({found})"


def _arguments(function: Any) -> tuple[str, dict[str, Any]]:
    """The name of a schedule's function, with that of what made it, and what it was made with."""
    given: dict[str, Any] = {}
    if isinstance(function, partial):
        given, function = dict(function.keywords), function.func
    elif inspect.isfunction(function):
        given = dict(inspect.getclosurevars(function).nonlocals)
    return str(getattr(function, "__qualname__", "")), given


def _named(function: Any, at: str) -> str | None:
    """The formula of a schedule of the transformers or diffusers library, told by the names that both use."""
    name, given = _arguments(function)
    warm = int(given.get("num_warmup_steps", -1))
    if warm < 0:
        return None
    rising = f"({at}) / {max(1, warm)} if {at} < {warm} else "
    if "constant_schedule_with_warmup" in name:
        return f"{rising}1"
    if "inverse_sqrt_schedule" in name:
        scale = int(given["timescale"] or warm or 10_000)
        return f"{rising}1 / sqrt((({at}) + {scale - warm}) / {scale})"
    total = int(given["num_training_steps"])
    part = f"(({at}) - {warm}) / {max(1, total - warm)}"
    if "linear_schedule_with_warmup" in name:
        return f"{rising}max(0, ({total} - ({at})) / {max(1, total - warm)})"
    if "hard_restarts" in name:
        cycles = f"({_number(given['num_cycles'])} * ({part}))"
        return f"{rising}0 if {part} >= 1 else max(0, 0.5 * (1 + cos(pi * ({cycles} - floor({cycles})))))"
    if "cosine" in name and "num_cycles" in given:
        half = f"0.5 * (1 + cos(pi * {_number(given['num_cycles'])} * 2 * ({part})))"
        least = _number(given.get("min_lr_rate") or 0.0)
        return f"{rising}max(0, {half} * (1 - {least}) + {least})" if float(least) else f"{rising}max(0, {half})"
    if "polynomial" in name:
        first, last = _number(given["lr_init"]), _number(given["lr_end"])
        way = f"(({first} - {last}) * (1 - {part}) ** {_number(given['power'])} + {last}) / {first}"
        return f"{rising}{last} / {first} if {at} > {total} else {way}"
    return None


def _guessed(function: Callable[[int], float], at: str) -> str | None:
    """The formula of a function of the user's own, if it is one of the simplest."""
    first, second = float(function(0)), float(function(1))
    if first == second == float(function(1000)):
        return _number(first)
    if 0 < first < 1 and 1 / first == round(1 / first) and second > first:
        return f"min(1, (({at}) + 1) / {round(1 / first)})"
    if first == 0 and 0 < second < 1:
        return f"min(1, ({at}) / {round(1 / second)})"
    return f"{_number(second)} ** ({at})" if first == 1 and 0 < second < 1 else None


_READERS: Mapping[type, _Reader] = {
    schedules.LambdaLR: _lambda,
    schedules.StepLR: _step,
    schedules.MultiStepLR: _multi_step,
    schedules.ConstantLR: _constant,
    schedules.LinearLR: _linear,
    schedules.ExponentialLR: _exponential,
    schedules.PolynomialLR: _polynomial,
    schedules.CosineAnnealingLR: _cosine,
    schedules.CosineAnnealingWarmRestarts: _restarts,
    schedules.OneCycleLR: _one_cycle,
    schedules.SequentialLR: _sequential,
    schedules.ReduceLROnPlateau: _plateau,
}
