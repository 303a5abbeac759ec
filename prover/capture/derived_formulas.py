"""Formulas that are read from the attached optimizers, their schedules and averages of what they train.

A schedule's formula is tried on a copy of the scheduler, and declared only if it gives what the copy does. How far a
schedule is follows from the program (once a step, once an epoch, when a loss stops falling), so each step record has a
count of it; a Verifier charges a count that is not the expected one like any other choice.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from prover import formulas
from prover.capture import average_formulas, schedule_formulas, set_by_hand, timm_schedules
from prover.capture.live_objects import of_types
from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.formula_arithmetic import tolerance
from weighbridge.transcript.formula_terms import COUNTS, MAX_FORMULAS, Formulas

_TRIED = (*range(33), *range(48, 1025, 16))
"""After how many steps of the copy its rate is compared."""
_NOTHING = 1e-30
"""A rate of no effect; below about 1e-300 float64 is too coarse for comparisons."""
_LR = re.compile(r"\blr\b")
_PROGRAM = 0
"""Stands for the owner of the program's own counters; no object's identity."""

Group = Mapping[str, Any]
Count = Callable[[], int]


class Derived:
    """What was read from some optimizers.

    Attributes:
        declared: Name to text of each formula.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer] = (), others: Sequence[Any] = ()) -> None:
        """Reads formulas.

        Args:
            optimizers: The attached ones.
            others: Whatever else was attached; schedulers among it are preferred to others that are found.
        """
        self.declared: dict[str, str] = {}
        self._counts: list[tuple[Count, int | None]] = []
        schedulers = _schedulers(optimizers, others)
        for optimizer in optimizers:
            self._read(optimizer, schedulers.get(id(optimizer)))
        self._read_settings([each for each in optimizers if id(each) not in schedulers])
        for reading in average_formulas.readings(optimizers) if optimizers else ():
            self._average(reading)
        if len(self.declared) > MAX_FORMULAS:
            self.declared, self._counts = {}, []

    def counts(self) -> list[int]:
        """Returns how far each schedule is now."""
        return [count() for count, _ in self._counts]

    def counts_of(self, optimizer: torch.optim.Optimizer, before: Sequence[int], *, first: bool) -> list[int]:
        """Returns how far each schedule is when an optimizer is about to make a step.

        Args:
            optimizer: The optimizer, whose own schedule may have gone on since the step began (after an evaluation).
            before: How far they were then.
            first: Whether no optimizer has made a step since; counters of the program are then looked up again.
        """
        known = dict(enumerate(before))
        wanted = {id(optimizer), *([_PROGRAM] if first else [])}
        return [count() if owner in wanted else known.get(n, 0) for n, (count, owner) in enumerate(self._counts)]

    def _read(self, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        variable = COUNTS[len(self._counts)] if scheduler is not None and len(self._counts) < len(COUNTS) else None
        rates = None if variable is None else _tried(scheduler, variable)
        if rates is not None:
            self._counts.append((_count_of(scheduler), id(optimizer)))
        elif scheduler is not None:
            return  # What follows from a rate that nobody can say does not follow from this either.
        for number, group in enumerate(optimizer.param_groups):
            if type(group.get("lr")) is not float and rates is None:
                continue  # a tensor, which is state
            lr = self._add("lr", repr(float(group["lr"])) if rates is None else rates[number])
            beta = None if rates is None else schedule_formulas.momentum(scheduler, group, variable or "")
            first = None if beta is None else self._add("momentum", beta)
            for name, text in _scalars(optimizer, group, first, scheduled=rates is not None).items():
                self._add(name, _LR.sub(lr, text))

    def _average(self, reading: average_formulas.Reading) -> None:
        if reading.count is None:
            self._add("average", reading.text("(t - 1)"))
        elif len(self._counts) < len(COUNTS):
            self._add("average", reading.text(COUNTS[len(self._counts)]))
            self._counts.append((reading.count, None))

    def _read_settings(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Reads how the program itself sets the numbers of optimizers that have no scheduler."""
        if not optimizers:
            return
        settings = set_by_hand.read(optimizers, len(self._counts))
        self._counts += [(counter.now, _PROGRAM) for counter in settings.counters]
        for (number, index), found in settings.values.items():
            optimizer = optimizers[number]
            group = optimizer.param_groups[index]
            for text in found.get("lr", []):
                lr = self._add("lr", text)
                for name, term in _scalars(optimizer, group, None, scheduled=True).items():
                    self._add(name, _LR.sub(lr, term))
            for text in found.get("momentum", []):
                self._add("dampened", f"1 - {self._add('momentum', text)}")
            rates = [name for name in self.declared if name.startswith("lr")]
            for text in found.get("weight_decay", []):
                decay = self._add("weight_decay", text)
                for lr in rates:
                    self._add("decay", f"1 - {lr} * {decay}")

    def _add(self, base: str, text: str) -> str:
        """Declares a formula, unless it is there, and returns its name."""
        for name, known in self.declared.items():
            if known == text and name.startswith(base):
                return name
        name = next(f"{base}{n or ''}" for n in range(MAX_FORMULAS + 1) if f"{base}{n or ''}" not in self.declared)
        self.declared[name] = text
        return name


def _scalars(optimizer: torch.optim.Optimizer, group: Group, first: str | None, *, scheduled: bool) -> dict[str, str]:
    """Returns what an optimizer makes of `lr`, and of its betas, in each update.

    Args:
        optimizer: The optimizer.
        group: One of its parameter groups.
        first: The formula of its momentum or first beta, if a schedule changes it.
        scheduled: Whether its rate changes.
    """
    kinds = {kind.__name__ for kind in type(optimizer).__mro__}
    decay = float(group.get("weight_decay") or 0.0)
    found = {"descent": "-lr"} if scheduled else {}
    if scheduled and decay:
        found |= formulas.decay(decay)
    if first is not None:
        found |= {"dampened": f"1 - {first}"}
    if "betas" in group and all(type(beta) is float for beta in group["betas"]):
        beta1, beta2 = first or repr(group["betas"][0]), repr(group["betas"][1])
        if kinds & {"Adam", "AdamW"}:
            found |= {"adam_step": f"-(lr / (1 - {beta1} ** host))", "adam_root": f"sqrt(1 - {beta2} ** host)"}
        elif "Adamax" in kinds:
            found |= {"adamax_step": f"-(lr / (1 - {beta1} ** host))"}
        elif "RAdam" in kinds:
            most = repr(2 / (1 - group["betas"][1]) - 1)
            length = f"({most} - 2 * host * {beta2} ** host / (1 - {beta2} ** host))"
            rect = f"({length} - 4) * ({length} - 2) * {most} / (({most} - 4) * ({most} - 2) * {length})"
            found |= {
                "radam_first": f"1 - {beta1} ** host",
                "radam_root": f"sqrt(1 - {beta2} ** host)",
                "radam_rectified": f"sqrt({rect})",
            }
        elif "NAdam" in kinds:
            found |= formulas.nadam(betas=group["betas"], momentum_decay=group["momentum_decay"])
    elif "Adagrad" in kinds:
        found |= {"adagrad_step": f"-lr / (1 + (host - 1) * {float(group['lr_decay'])!r})"}
    elif "Adafactor" in kinds:
        sizes = {parameter.numel() for parameter in group["params"]}
        scaled = dict(beta2_decay=group["beta2_decay"], eps2=group["eps"][1], d=group["d"])
        found |= formulas.adafactor(sizes, weight_decay=decay, **scaled)
    return found


def _schedulers(optimizers: Sequence[torch.optim.Optimizer], others: Sequence[Any]) -> dict[int, Any]:
    """Returns the scheduler of each optimizer that has one, by the optimizer's identity."""
    wanted = {id(optimizer) for optimizer in optimizers}
    given = [each for each in others if _is_scheduler(each) and id(innermost(each.optimizer)) in wanted]
    known = {id(innermost(each.optimizer)) for each in given}
    if wanted - known:
        unknown = wanted - known
        seen = [s for s in of_types(_schedules) if _is_scheduler(s) and id(innermost(s.optimizer)) in unknown]
        inside = {id(part) for each in seen for part in getattr(each, "_schedulers", ())}
        given += [each for each in seen if id(each) not in inside]
    found: dict[int, Any] = {}
    for each in given:
        found.setdefault(id(innermost(each.optimizer)), each)
    return found


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer that does the work, where one hands it to another (Accelerate's)."""
    while isinstance(inner := getattr(optimizer, "__dict__", {}).get("optimizer"), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def _is_scheduler(item: Any) -> bool:
    # Its own type, and not what the object says that it is, which may be a proxy's answer.
    return _schedules(type(item)) and "optimizer" in vars(item)


def _schedules(kind: type) -> bool:
    return issubclass(kind, (LRScheduler, ReduceLROnPlateau)) or timm_schedules.is_one(kind)


def _count_of(scheduler: Any) -> Count:
    if isinstance(scheduler, ReduceLROnPlateau):
        base = float(scheduler.optimizer.param_groups[0]["lr"])
        return lambda: schedule_formulas.reductions(scheduler, base)
    if timm_schedules.is_one(type(scheduler)):
        return timm_schedules.count_of(scheduler)
    return lambda: max(0, int(scheduler.last_epoch))


def _tried(scheduler: Any, variable: str) -> list[str] | None:
    """Returns the formula of each group's rate, if a copy of the scheduler agrees with all of them."""
    if timm_schedules.is_one(type(scheduler)):
        return timm_schedules.texts(scheduler, variable)
    groups = scheduler.optimizer.param_groups
    texts = [schedule_formulas.text(scheduler, number, variable) for number in range(len(groups))]
    rates = [text for text in texts if text is not None]
    if len(rates) < len(groups):
        return None
    if isinstance(scheduler, ReduceLROnPlateau):
        return rates  # It goes by losses, so it cannot be tried.
    try:
        parsed = Formulas.parse({f"rate{number}": text for number, text in enumerate(rates)})
        with warnings.catch_warnings(action="ignore"):  # that no optimizer was stepped
            return rates if _agrees(scheduler, parsed) else None
    except (WeighbridgeError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RuntimeError):
        return None


def _agrees(scheduler: Any, rates: Formulas) -> bool:
    groups = scheduler.optimizer.param_groups
    stand_in = torch.optim.SGD([{"params": [torch.zeros(1)]} for _ in groups], lr=1.0)
    for own, group in zip(stand_in.param_groups, groups, strict=True):
        own.update({key: value for key, value in group.items() if key != "params"})
    tried = copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in})
    begin = tried.last_epoch
    for done in range(_TRIED[-1] + 1):
        if done in _TRIED:
            for number, own in enumerate(stand_in.param_groups):
                given = rates.evaluate(f"rate{number}", begin + done + 1, counts=[begin + done] * len(COUNTS))
                if not abs(float(own["lr"]) - given[0]) <= tolerance(given, 0.0) + _NOTHING:
                    return False
        try:
            tried.step()
        except ValueError:
            return True  # It ends here, as a one-cycle schedule does.
    return True
