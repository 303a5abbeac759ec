"""What the recognition of a step found: plain data, for reports, rules and passports.

A step is *recognised* if every change of its weights is the update of a known optimizer, by the gradient of a loss that
the Verifier derived itself. What is not said by that is in docs/recognition.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MOST = 200
"""Names that a list carries at most; what is left out is counted."""

MOST_RANKS = 4096
"""Ranks of a job that are listed."""

_SHOWN = 6
"""Reasons that are said; all are in the result."""

LONGEST = 400
"""Characters of a text."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A value of which a gradient was taken.

    Attributes:
        kind: What it is, from its operations: `cross entropy`, `mean squared error`, ...
        operation: Place on the tape of the operation that made it.
        path: The module that made it, by the Prover's word; empty outside modules.
        parameters: Names of the state whose gradient was confirmed.
        direct: Those of them that meet the batch element by element and pass through no model of it: a loss that draws
            weights to values of the batch looks so.
        confirmed: Elements of gradients that were confirmed.
        largest: Largest difference from the Verifier's own gradient, in units of what is accepted (at most 1).
        ranks: Of a job: whose losses the gradient is that of; empty for a run on one chip.
    """

    kind: str
    operation: int
    path: str
    parameters: tuple[str, ...]
    direct: tuple[str, ...]
    confirmed: int
    largest: float
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer's step.

    Attributes:
        optimizer: The class of PyTorch whose formula it follows.
        hyperparameters: What it was computed with, by group: name to number; `lr` as it follows from the weights.
        formulas: Names of the declared formulas that give a hyperparameter: `lr of group 0` to `lr`.
        scale: By what its gradients were multiplied after the backward pass (clipping, loss scaling); 1 for nothing.
        bound: What no element of its gradients exceeds after that (clipping by value); None for nothing.
        parameters: Names of the state that it changed.
        elements: How many elements that is.
        largest: Largest difference from the Verifier's own formula, in units of what is accepted (at most 1).
        moved: What the difference of the gradients does: sum of absolute differences between the updates by the
            recorded and by the Verifier's gradient, over the sum of absolute updates.
        freedom: The same between the two ends of what would have been accepted: how far the best attack moves weights.
        freedom_bits: Bits that the accepted differences could have carried.
    """

    optimizer: str
    hyperparameters: tuple[dict[str, float], ...]
    formulas: dict[str, str]
    scale: float
    bound: float | None
    parameters: tuple[str, ...]
    elements: int
    largest: float
    moved: float
    freedom: float
    freedom_bits: float


@dataclass(frozen=True, slots=True)
class Recognition:
    """What was found of one step.

    Attributes:
        step: Its number.
        tape: Hex digest of its program.
        reasons: What is not recognised, and why; empty if the step is.
        known: Whether it was looked at to the end. If not, `reasons` says what failed, and that is all that is known.
        losses: In order.
        updates: In order.
        stops: Where gradients stop on their way from a loss to a parameter.
        by_hand: What gradients meet in backward passes that no derivative there has, with the operation: hooks and
            backward passes of the program's own, which may do something else with other data.
        averages: State that follows weights as an average, with its factor.
        statistics: State that changes otherwise, and on which no loss depends.
        carried: State from before the step on which a loss depends and that no update of the step changes.
        float_bits: Bits of floating-point numbers that entered by the batch or undeclared.
        other_bits: Bits of other data that entered so.
        weight_bits: Bits of the weights that updates changed.
        seconds: What recognising it took.
        replayed: What replaying it took, in seconds.
    """

    step: int
    tape: str
    reasons: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    updates: tuple[Update, ...] = ()
    stops: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    float_bits: int = 0
    other_bits: int = 0
    weight_bits: int = 0
    seconds: float = 0.0
    replayed: float = 0.0
    known: bool = True
    by_hand: tuple[str, ...] = ()

    @property
    def recognised(self) -> bool:
        """Whether all of it is training that the Verifier knows."""
        return self.known and not self.reasons and bool(self.updates)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary; `parse` reads it."""
        return asdict(self)


def parse(raw: Any) -> Recognition:
    """Reads what a worker answered as hostile.

    Raises:
        KeyError, TypeError, ValueError: It is not what `to_json` returned.
    """
    known = raw.get("known", True)
    if type(known) is not bool:
        raise TypeError("whether a step is known")
    return Recognition(
        step=_count(raw["step"]),
        tape=bytes.fromhex(raw["tape"]).hex(),
        losses=tuple(_loss(each) for each in raw["losses"][:MOST]),
        updates=tuple(_update(each) for each in raw["updates"][:MOST]),
        reasons=_texts(raw["reasons"]),
        stops=_texts(raw["stops"]),
        averages=_texts(raw["averages"]),
        statistics=_texts(raw["statistics"]),
        carried=_texts(raw["carried"]),
        float_bits=_count(raw["float_bits"]),
        other_bits=_count(raw["other_bits"]),
        weight_bits=_count(raw["weight_bits"]),
        seconds=_number(raw["seconds"]),
        replayed=_number(raw["replayed"]),
        known=known,
        by_hand=_texts(raw.get("by_hand", [])),
    )


def _loss(raw: Any) -> Loss:
    return Loss(
        kind=_text(raw["kind"]),
        operation=_count(raw["operation"]),
        path=_text(raw["path"]),
        parameters=_texts(raw["parameters"]),
        direct=_texts(raw["direct"]),
        confirmed=_count(raw["confirmed"]),
        largest=_number(raw["largest"]),
        ranks=tuple(_count(each) for each in raw.get("ranks", [])[:MOST_RANKS]),
    )


def _update(raw: Any) -> Update:
    groups = [{_text(k): _number(v) for k, v in list(group.items())[:MOST]} for group in raw["hyperparameters"][:MOST]]
    return Update(
        optimizer=_text(raw["optimizer"]),
        hyperparameters=tuple(groups),
        formulas={_text(k): _text(v) for k, v in list(raw["formulas"].items())[:MOST]},
        scale=_number(raw["scale"]),
        bound=None if raw["bound"] is None else _number(raw["bound"]),
        parameters=_texts(raw["parameters"]),
        elements=_count(raw["elements"]),
        **{name: _number(raw[name]) for name in ("largest", "moved", "freedom", "freedom_bits")},
    )


def _texts(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, (list, tuple)):
        raise TypeError("a list of texts")
    return tuple(_text(each) for each in raw[: MOST + 1])


def _text(raw: Any) -> str:
    if type(raw) is not str:
        raise TypeError("a text")
    return "".join(c if c.isprintable() else "?" for c in raw[:LONGEST])


def _count(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw < 1 << 62:
        raise ValueError("a count")
    return raw


def _number(raw: Any) -> float:
    if type(raw) not in (int, float) or not math.isfinite(raw):
        raise ValueError("a number")
    return float(raw)


@dataclass(slots=True)
class Summary:
    """What was found of the steps of a run that were looked at.

    Attributes:
        steps: By step, in order.
    """

    steps: list[Recognition] = field(default_factory=list)

    @property
    def recognised(self) -> bool:
        """Whether every step that was looked at is recognised."""
        return bool(self.steps) and all(each.recognised for each in self.steps)

    def lines(self) -> list[str]:
        """Says it in sentences, one for each thing."""
        return [*self.found(), *self.unsaid()]

    def unsaid(self) -> list[str]:
        """Says what that does not say."""
        if not (self.steps and self.steps[-1].updates):
            return []
        most = self.steps[-1]  # the first ones bring in what an optimizer begins with
        lines = [
            f"its data are not judged: a batch brings {most.float_bits:,} bits of floating-point numbers and "
            f"{most.other_bits:,} others; the weights have {most.weight_bits:,}"
        ]
        if any(each.recognised for each in self.steps):
            lines.append(f"what else would have been accepted moves weights by {self.freedom():.2g} of an update")
        return lines

    def freedom(self) -> float:
        """The most that the best attack within what is accepted moves weights in a step, over the update."""
        return max((update.freedom for each in self.steps for update in each.updates), default=0.0)

    def found(self) -> list[str]:
        """Says what was found."""
        if not self.steps:
            return ["no step was looked at"]
        found = list(dict.fromkeys(_headline(each) for each in self.steps if each.recognised))
        count = sum(each.recognised for each in self.steps)
        lines = [f"{line}, verified on {_steps(count)}" for line in found[:3]]
        lines += [f"and {len(found) - 3} more kinds of step"] if len(found) > 3 else []
        refused = [(each.step, each.known, reason) for each in self.steps for reason in each.reasons]
        distinct = list(dict.fromkeys((known, reason) for _, known, reason in refused))
        for known, reason in distinct[:_SHOWN]:
            where = [step for step, *what in refused if what == [known, reason]]
            begin = "not recognised in" if known else "not known of"
            lines.append(f"{begin} {_steps(len(where))} (first {where[0]}): {reason}")
        if len(distinct) > _SHOWN:
            lines.append(f"and {len(distinct) - _SHOWN} more reasons")
        for what, names in (
            ("gradients stop at", _union(each.stops for each in self.steps)),
            ("in backward passes, no derivative explains", _union(each.by_hand for each in self.steps)),
            ("averages of weights", _union(each.averages for each in self.steps)),
            ("changed otherwise, and no loss depends on it", _union(each.statistics for each in self.steps)),
            ("state that losses depend on and no update changes", _union(each.carried for each in self.steps)),
            ("weights that meet the batch element by element", _union(e.direct for s in self.steps for e in s.losses)),
        ):  # fmt: skip
            if names:
                lines.append(f"{what}: {_listed(names)}")
        return lines


def _headline(step: Recognition) -> str:
    kinds = list(dict.fromkeys(loss.kind for loss in step.losses))
    optimizers = list(dict.fromkeys(update.optimizer for update in step.updates))
    ranks = max((len(loss.ranks) for loss in step.losses), default=0)
    whose = "of the model and the batch" if ranks < 2 else f"of the model and the batches of {ranks} ranks"
    return f"the update is {' and '.join(optimizers)} of the gradient of {' and '.join(kinds)} {whose}"


def _union(lists: Any) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
