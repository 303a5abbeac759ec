"""Recognises one executed step: confirms each claimed gradient and update, and accounts for all other state.

See docs/recognition.md for what is claimed, confirmed and accepted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.recognition import structure, update_range
from weighbridge.execution.recognition.acceptance import excess, unit, width
from weighbridge.execution.recognition.backward_range import strangers
from weighbridge.execution.recognition.between import Between, Pair, solve
from weighbridge.execution.recognition.derivation import Derivation, Derived, UnderivableError
from weighbridge.execution.recognition.formulas import KNOWN, Operand, Result
from weighbridge.execution.recognition.limits import UnfinishedError, check_time, unfinished, until
from weighbridge.execution.recognition.other_state import Others
from weighbridge.execution.recognition.outcome import LONGEST, MOST, Loss, Recognition, Update
from weighbridge.execution.recognition.updates import Confirmed, Member, confirm
from weighbridge.execution.recognition.values import Plan, Values
from weighbridge.program.gradient_paths import WHOLE
from weighbridge.program.operands import UNFIT
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import DTYPES, Tape
from weighbridge.transcript.training_claims import Backward, Claims, Group, Parameter, Step

Tensor = torch.Tensor

NUMBER_BITS = 64
"""What a hyperparameter could have told that no declared formula gives."""


class UnrecognisedError(WeighbridgeError):
    """Something about a step is not recognised; the message says what."""

    code = "recognition.none"


@dataclass(slots=True)
class _Sum:
    """A leaf's gradient so far, over backward passes.

    Attributes:
        exact: The Verifier's own.
        accepted: How far from it is accepted.
        recorded: What the tape has.
    """

    exact: Tensor
    accepted: Tensor
    recorded: Tensor


@dataclass(slots=True)
class Recogniser:
    """Recognises the steps of a run that have one tape.

    Attributes:
        tape: The tape.
        claims: What is claimed of it.
        device: Where to calculate.
        formulas: Says which declared formula gives a number in a step.
    """

    tape: Tape
    claims: Claims
    device: torch.device
    formulas: Callable[[StepRecord, float], str | None] = lambda record, number: None
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        check(self.tape, self.claims)
        self.plan = Plan(self.tape, self.claims)

    def recognise(self, record: StepRecord, digest: bytes, values: Values, replayed: float = 0.0) -> Recognition:
        """Says what an executed step is.

        Args:
            record: Its record.
            digest: Of its tape.
            values: What its storages held.
            replayed: Seconds that its replay took.
        """
        began = time.perf_counter()
        run = _Run(self, record, values, until(replayed))
        try:
            run.all()
        except UnfinishedError as error:
            run.unknown(error.message)
        except WeighbridgeError as error:
            run.reason(error.message)
        except UNFIT as error:
            if (given_up := unfinished(error)) is not None:
                run.unknown(given_up.message)
            else:  # tensors that do not fit each other as claimed
                run.reason(f"what is claimed does not fit the step: {(str(error).splitlines() or [''])[0][:150]}")
        return run.result(digest, time.perf_counter() - began, replayed)


class _Run:
    def __init__(self, of: Recogniser, record: StepRecord, values: Values, until: float) -> None:
        self._tape, self._plan, self._claims, self._of = of.tape, of.plan, of.claims, of
        self._record, self._values = record, values
        self._names = {i.slot: i.name for i in self._tape.inputs} | dict(self._tape.survivors)
        self._sums: dict[int, _Sum] = {}
        self._until, self._unknown = until, False
        self._reasons: list[str] = []
        self._losses: list[Loss] = []
        self._updates: list[Update] = []
        self._stops: list[str] = []
        self._others = Others(self._plan, self._names)

    def reason(self, text: str) -> None:
        """Notes what is not recognised."""
        if text not in self._reasons and len(self._reasons) < MOST:
            self._reasons.append(text[:LONGEST])

    def unknown(self, text: str) -> None:
        """Notes why the step was not looked at to the end: whatever else was found, it says nothing of the step."""
        self._unknown, self._reasons = True, [text]

    def result(self, digest: bytes, seconds: float, replayed: float) -> Recognition:
        """Returns what was found."""
        floats, others = self._entered()
        weights = {
            ref[0]: ref
            for s in self._claims.steps
            for g in s.groups
            for p in g.parameters
            for ref in [self._tape.refs[p.ref]]
        }
        return Recognition(
            step=self._record.step,
            tape=digest.hex(),
            reasons=tuple(self._reasons),
            losses=tuple(self._losses),
            updates=tuple(self._updates),
            stops=_listed(self._stops),
            averages=_listed(self._others.averages),
            statistics=_listed(self._others.statistics),
            carried=_listed(self._others.carried),
            float_bits=floats,
            other_bits=others,
            weight_bits=sum(_elements(ref) * DTYPES[ref[1]].itemsize * 8 for ref in weights.values()),
            seconds=seconds,
            replayed=replayed,
            known=not self._unknown,
        )

    def _entered(self) -> tuple[int, int]:
        """Bits of floating-point numbers and of others that entered by the batch or undeclared."""
        floats = others = 0
        for _, ref in self._tape.batch_views:
            bits = _elements(ref) * DTYPES[ref[1]].itemsize * 8
            floats, others = (floats + bits, others) if DTYPES[ref[1]].is_floating_point else (floats, others + bits)
        first = {ref[0]: ref for ref in reversed(self._tape.refs)}
        for item in self._tape.inputs:
            if item.origin == "free":
                is_float = item.slot in first and DTYPES[first[item.slot][1]].is_floating_point
                floats, others = floats + 8 * item.bytes * is_float, others + 8 * item.bytes * (not is_float)
        return floats, others

    def all(self) -> None:
        if not self._claims.steps:
            self.reason("no optimizer's step is claimed")
        for text in update_range.mixed_in(self._plan, self._names):
            self.reason(text)
        for step in self._claims.steps:
            self._others.update(step)
            for text in update_range.strangers(self._plan, step, self._names):
                self.reason(text)
        derivation = Derivation(self._plan, self._values, self._record.values, self._of.device, until=self._until)
        events: list[tuple[int, Backward | Step]] = [(b.end, b) for b in self._claims.backwards]
        events += [(s.end, s) for s in self._claims.steps]
        for _, event in sorted(events, key=lambda each: each[0]):
            check_time(self._until)
            try:
                if isinstance(event, Backward):
                    self._backward(event, derivation)
                else:
                    self._step(event)
            except UnderivableError as error:
                self.reason(error.message)
        leaves = {self._tape.refs[g.leaf][0] for b in self._claims.backwards for g in b.gradients}
        self._others.account(leaves, self._values, self.reason)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _backward(self, backward: Backward, derivation: Derivation) -> None:
        kind, made = structure.kinds(self._plan, backward)
        if backward.again:
            raise UnderivableError(
                f"the gradient of {kind} is used in a calculation (double backward, or torch.autograd.grad)"
            )
        for text in strangers(self._plan, backward, self._names):
            self.reason(text)
        for seed in backward.seeds:
            given = None if seed is None else self._known(backward.begin, seed, "what it begins with")
            if given is not None and given.numel() and not bool((given == given.reshape(-1)[0]).all()):
                raise UnderivableError(f"the backward pass of {kind} begins with more than one number")
        derived, recomputed = derivation.derive(backward), False
        if not self._fits(backward, derived) and any(operand == WHOLE for _, operand in self._claims.stops):
            again = Derivation(
                self._plan, self._values, self._record.values, self._of.device, recomputed=True, until=self._until
            )
            other = again.derive(backward)
            recomputed = self._fits(backward, other)
            derived = other if recomputed else derived
        for op, _ in derived.stopped:
            path = self._tape.path_of(op)
            self._stops.append(f"{self._tape.nodes[op].op.partition('.')[0]}" + (f" in {path}" if path else ""))
        largest, confirmed, names = 0.0, 0, list[str]()
        disturbed: Derived | None = None
        for gradient in backward.gradients:
            name = self._name(gradient.leaf)
            after = self._known(backward.end, gradient.after, name).double()
            before = None if gradient.before is None else self._known(backward.begin, gradient.before, name).double()
            pair = derived.gradients[gradient.leaf]
            accepted, sums = width(pair), self._sums.get(gradient.leaf)
            change = after if before is None else after - before
            if change.shape == pair.exact.shape and excess(change - pair.exact, accepted) > 1:
                disturbed = disturbed or self._disturbed(backward, recomputed)
                accepted = width(pair, disturbed.gradients[gradient.leaf].exact)
            if before is not None and bool(before.any()):
                accepted = accepted + 4 * unit(pair.native.dtype) * torch.maximum(after.abs(), before.abs())
                if sums is None:
                    raise UnderivableError(
                        f"the backward pass adds to a gradient of {name} that this step did not make"
                    )
                if not torch.equal(sums.recorded, before):
                    raise UnderivableError(
                        f"the gradient of {name} was another before the backward pass than after the last"
                    )
            else:
                sums = None
            if after.shape != pair.exact.shape:
                raise UnderivableError(f"the gradient of {name} has another shape")
            found = excess(change - pair.exact, accepted)
            largest = max(largest, found)
            if found > 1:
                self._contradicted(name, kind, change, pair.exact, accepted)
            confirmed += change.numel()
            names.append(name)
            exact = pair.exact if sums is None else sums.exact + pair.exact
            total = accepted if sums is None else sums.accepted + accepted
            self._sums[gradient.leaf] = _Sum(exact.clone(), total, after)
        leaves = {self._tape.refs[g.leaf][0] for g in backward.gradients}
        self._others.depend(backward)
        direct = [self._names.get(slot, str(slot)) for slot in structure.direct(self._plan, backward, sorted(leaves))]
        path = self._tape.path_of(made) or ""
        if largest <= 1:
            self._losses.append(
                Loss(kind, max(made, 0), path[:LONGEST], _listed(names), _listed(direct), confirmed, largest)
            )

    def _disturbed(self, backward: Backward, recomputed: bool) -> Derived:
        """The gradient again, to tell sums that cancel from what nothing had bearing on."""
        own = Derivation(
            self._plan, self._values, self._record.values, self._of.device, recomputed=recomputed, disturbed=True,
            until=self._until,
        )  # fmt: skip
        return own.derive(backward)

    def _fits(self, backward: Backward, derived: Derived) -> bool:
        """Whether fresh gradients are near the derived ones, before anything is said about them."""
        for gradient in backward.gradients:
            found = self._values.at(backward.end, gradient.after)
            pair = derived.gradients[gradient.leaf]
            if gradient.before is not None or found is None or found.shape != pair.exact.shape:
                continue
            if excess(found.double() - pair.exact, width(pair)) > 1:
                return False
        return True

    def _contradicted(self, name: str, kind: str, change: Tensor, exact: Tensor, accepted: Tensor) -> None:
        beyond = int(((change - exact).abs() > accepted).sum())
        norm = float(exact.norm()) or 1.0
        self.reason(
            f"the gradient of {name} is not that of {kind}: {beyond:,} of {change.numel():,} elements differ, "
            f"by {float((change - exact).norm()) / norm:.2g} of its norm"
        )

    # -- updates -------------------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        if step.optimizer not in KNOWN:
            raise UnderivableError(f"the optimizer {step.optimizer} is none that is known here")
        between = self._between(step)
        found: list[Confirmed] = []
        names, elements, rates = list[str](), 0, dict[str, str]()
        for number, group in enumerate(step.groups):
            members = [m for p in group.parameters if p.gradient is not None for m in [self._member(step, p, between)]]
            if not members:
                continue
            confirmed = confirm(step.optimizer, _numbers(group), members)
            if confirmed.largest > 1:
                self.reason(
                    f"{confirmed.worst} is not what {step.optimizer} makes of its gradient: it differs by "
                    f"{confirmed.largest:.2g} times what rounding explains"
                )
            found.append(confirmed)
            names += [m.name for m in members]
            elements += sum(m.before.weights.numel() for m in members)
            formula = self._of.formulas(self._record, float(confirmed.numbers.get("lr") or 0.0))
            if formula is not None:
                rates[f"lr of group {number}"] = formula
        if not found:
            return
        numbers = {
            (key, value)
            for number, each in enumerate(found)
            for key, value in _shown(each.numbers).items()
            if not (key == "lr" and f"lr of group {number}" in rates)
        }
        chosen = NUMBER_BITS * (len(numbers) + between.numbers)
        if chosen > NUMBER_BITS * 8 and 2 * chosen > 32 * elements:
            self.reason(f"{step.optimizer} has {len(numbers)} numbers for {elements:,} elements, which may be anything")
        absolute = sum(each.absolute for each in found) or 1.0
        largest = max(each.largest for each in found)
        if largest <= 1:
            self._updates.append(
                Update(
                    optimizer=step.optimizer,
                    hyperparameters=tuple(_shown(each.numbers) for each in found),
                    formulas=rates,
                    scale=between.factor,
                    bound=between.bound if math.isfinite(between.bound) else None,
                    parameters=_listed(names),
                    elements=elements,
                    largest=largest,
                    moved=sum(each.moved for each in found) / absolute,
                    freedom=sum(each.freedom for each in found) / absolute,
                    freedom_bits=sum(each.bits for each in found) + chosen,
                )
            )

    def _between(self, step: Step) -> Between:
        """What gradients went through between the backward pass and the step."""
        pairs = []
        for parameter in (p for g in step.groups for p in g.parameters):
            if parameter.gradient is None:
                continue
            name = self._name(parameter.ref)
            sums = self._sums.get(parameter.ref)
            if sums is None:
                raise UnderivableError(f"{name} is updated by a gradient that no backward pass of the step gave it")
            read = self._known(step.begin, parameter.gradient, name).double()
            pairs.append(Pair(name, sums.recorded, read, DTYPES[self._tape.refs[parameter.gradient][1]]))
        return solve(pairs)

    def _member(self, step: Step, parameter: Parameter, between: Between) -> Member:
        name = self._name(parameter.ref)
        assert parameter.gradient is not None
        sums = self._sums[parameter.ref]
        state = (
            {}
            if parameter.fresh
            else {k: self._known(step.begin, i, f"{k} of {name}") for k, i in parameter.state.items()}
        )
        before = Operand(
            self._known(step.begin, parameter.ref, name), self._known(step.begin, parameter.gradient, name), state
        )
        after = Result(
            self._known(step.end, parameter.ref, name),
            {k: self._known(step.end, i, f"{k} of {name}") for k, i in parameter.state.items()},
        )
        return Member(name, before, after, between.of(sums.exact), abs(between.factor) * sums.accepted)

    # -- names and values ----------------------------------------------------------------------------------------------

    def _name(self, index: int) -> str:
        slot = self._tape.refs[index][0]
        return self._names.get(slot, f"slot {slot}")

    def _known(self, op: int, index: int, what: str) -> Tensor:
        found = self._values.at(op, index)
        if found is None:
            raise UnderivableError(f"{what} is not there when it is claimed to be")
        return found.clone()


def check(tape: Tape, claims: Claims) -> None:
    """Checks that claims name what there is.

    Raises:
        UnrecognisedError: They do not.
    """
    count, refs = len(tape.nodes), len(tape.refs)
    ranges = sorted(claims.ranges())
    named: list[int | None] = []
    for backward in claims.backwards:
        named += [*backward.losses, *backward.seeds]
        for gradient in backward.gradients:
            named += [gradient.leaf, gradient.before, gradient.after]
    for parameter in (p for s in claims.steps for g in s.groups for p in g.parameters):
        named += [parameter.ref, parameter.gradient, *parameter.state.values()]
    overlap = any(a[1] > b[0] for a, b in pairwise(ranges))
    if overlap or any(end > count for _, end in ranges) or any(n is not None and n >= refs for n in named):
        raise UnrecognisedError(
            "what is claimed of the step's training names operations or tensors that it does not have"
        )


def _numbers(group: Group) -> Mapping[str, Any]:
    return group.numbers


def _shown(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Hyperparameters as numbers."""
    shown: dict[str, float] = {}
    for key, value in numbers.items():
        for number, each in enumerate(value) if isinstance(value, tuple) else [(None, value)]:
            if type(each) in (int, float, bool) and key not in ("foreach", "fused", "capturable", "differentiable"):
                shown[key if number is None else f"{key}[{number}]"] = float(each)
    return shown


def _listed(names: Sequence[str]) -> tuple[str, ...]:
    found = list(dict.fromkeys(name[:LONGEST] for name in names))
    return tuple(found[:MOST]) + ((f"and {len(found) - MOST} more",) if len(found) > MOST else ())


def _elements(ref: Any) -> int:
    count = 1
    for n in ref[2]:
        count *= n
    return count
