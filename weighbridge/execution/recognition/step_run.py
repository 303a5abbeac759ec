"""Goes through one executed step: confirms each claimed gradient and update, and accounts for all other state.

See docs/recognition.md for what is claimed, confirmed and accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weighbridge.execution.recognition import by_hand, structure, update_range
from weighbridge.execution.recognition.acceptance import excess
from weighbridge.execution.recognition.backward_range import strangers
from weighbridge.execution.recognition.backward_walk import ByHand
from weighbridge.execution.recognition.between import Between, Pair, Shared, solve
from weighbridge.execution.recognition.candidates import Candidate, Mixed
from weighbridge.execution.recognition.derivation import UnderivableError
from weighbridge.execution.recognition.formulas import KNOWN, Operand, Result
from weighbridge.execution.recognition.noise import unit
from weighbridge.execution.recognition.other_state import Others
from weighbridge.execution.recognition.outcome import LONGEST, MOST, Loss, Recognition, Update
from weighbridge.execution.recognition.updates import Confirmed, Member, confirm
from weighbridge.execution.recognition.values import Plan, Values
from weighbridge.transcript.collectives import Pairing
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import DTYPES
from weighbridge.transcript.training_claims import Backward, Gradient, Group, Parameter, Step

Tensor = torch.Tensor

MOST_FREEDOM = 1.0
"""How far apart the ends of what is accepted may be, over the update. The largest of honest programs was 0.91."""

NUMBER_BITS = 64
"""What a hyperparameter could have told that no declared formula gives."""


@dataclass(slots=True)
class Sum:
    """A leaf's gradient so far, over backward passes.

    Attributes:
        exact: The Verifier's own.
        accepted: How far from it is accepted.
        recorded: What the tape has.
    """

    exact: Tensor
    accepted: Tensor
    recorded: Tensor


class StepRun:
    """What is found of one step, event by event.

    Attributes:
        sums: Of each leaf whose gradient was confirmed, by reference: the gradient so far.
        reasons: What is not recognised.
    """

    def __init__(
        self, plan: Plan, record: StepRecord, values: Values, formulas: Callable[[StepRecord, float], str | None]
    ) -> None:
        """Prepares for a step.

        Args:
            plan: That of its tape.
            record: Its record.
            values: What its storages held.
            formulas: Says which declared formula gives a number in a step.
        """
        self._tape, self._plan, self._claims, self._formulas = plan.tape, plan, plan.claims, formulas
        self._record, self._values = record, values
        self._names = {i.slot: i.name for i in self._tape.inputs} | dict(self._tape.survivors)
        self.sums: dict[int, Sum] = {}
        self.reasons: list[str] = []
        self._unknown = False
        self._losses: list[Loss] = []
        self._updates: list[Update] = []
        self._stops: list[str] = []
        self._by_hand: list[str] = []
        self._others = Others(self._plan, self._names)
        self._seeds: set[float] = set()
        self._numbers = 0
        """Single numbers from elsewhere that its updates may depend on."""

    def reason(self, text: str) -> None:
        """Notes what is not recognised."""
        if text not in self.reasons and len(self.reasons) < MOST:
            self.reasons.append(text[:LONGEST])

    def _count(self, numbers: int) -> None:
        """Counts single numbers from elsewhere: many may be anything."""
        self._numbers += numbers
        if numbers and self._numbers > update_range.MOST_NUMBERS:
            self.reason(f"backward passes and optimizers read {self._numbers} numbers from elsewhere")

    def unknown(self, text: str) -> None:
        """Notes why the step was not looked at to the end: whatever else was found, it says nothing of the step."""
        self._unknown, self.reasons = True, [text]

    @property
    def changed(self) -> set[str]:
        """Names of the state that it changes otherwise than by training."""
        return set(self._others.statistics)

    @property
    def is_unknown(self) -> bool:
        """Whether it was given up."""
        return self._unknown

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
            reasons=tuple(self.reasons),
            losses=tuple(self._losses),
            updates=tuple(self._updates),
            stops=_listed(self._stops),
            by_hand=_listed(self._by_hand),
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

    def looked_through(self, backward: Backward, pairings: Mapping[int, Pairing]) -> by_hand.Pass:
        """Returns a backward pass to be looked at for what no derivative does.

        Args:
            backward: The pass.
            pairings: Of each collective: by what other ranks know it.
        """
        return by_hand.Pass(self._plan, backward, self._names, pairings)

    def mixed(self, foreign: Collection[int] = ()) -> update_range.Mixed:
        """Says what gradients are mixed with on their way to the optimizers; `update_range.mixed_in`."""
        return update_range.mixed_in(self._plan, self._names, foreign)

    def asks(self) -> set[int]:
        """Returns the collectives from which losses get something, by operation."""
        return set[int]().union(*(structure.depends(self._plan, b).collectives for b in self._claims.backwards))

    def contribute(self, sent: Collection[int]) -> set[int]:
        """Takes in to which collectives this rank contributes what other ranks' losses get, by operation.

        Returns:
            The collectives from which it gets what it contributes.
        """
        self._others.contribute(sent)
        return structure.contributes(self._plan, sent).collectives

    def begin(self) -> None:
        """Looks at what the tape alone says."""
        if not self._claims.steps:
            self.reason("no optimizer's step is claimed")
        mixed = self.mixed()
        for text in mixed.reasons:
            self.reason(text)
        numbers = set(mixed.numbers)
        for step in self._claims.steps:
            self._others.update(step)
            for text in update_range.strangers(self._plan, step, self._names, numbers):
                self.reason(text)
        self._count(len(numbers))

    def end(self) -> None:
        """Accounts for all other state, after the last event."""
        leaves = {self._tape.refs[g.leaf][0] for b in self._claims.backwards for g in b.gradients}
        self._others.account(leaves, self._values, self.reason)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def backward(self, backward: Backward, candidates: Iterable[Candidate], made_by_hand: ByHand) -> None:
        """Confirms the gradients of a backward pass.

        Args:
            backward: Which.
            candidates: What they may be.
            made_by_hand: What it does that no derivative does.

        Raises:
            UnderivableError: They are not recognised.
        """
        kind, made = structure.kinds(self._plan, backward)
        if backward.again:
            raise UnderivableError(
                f"the gradient of {kind} is used in a calculation (double backward, or torch.autograd.grad)"
            )
        for text in strangers(self._plan, backward, self._names):
            self.reason(text)
        for text in made_by_hand.added:
            self.reason(f"the backward pass adds what is no gradient to one: {text}")
        self._by_hand += made_by_hand.foreign
        self._count(len(made_by_hand.numbers))
        begun = set[float]()
        for seed in backward.seeds:
            given = None if seed is None else self._known(backward.begin, seed, "what it begins with")
            if given is not None and given.numel() and not bool((given == given.reshape(-1)[0]).all()):
                raise UnderivableError(f"the backward pass of {kind} begins with more than one number")
            begun.add(1.0 if given is None or not given.numel() else float(given.reshape(-1)[0]))
        if len(begun) > 1:
            raise UnderivableError(f"the backward pass of {kind} begins with more than one number")
        self._seeds |= begun - {1.0}
        chosen, fitting = self._nearest(backward, candidates)
        for op, _ in chosen.derived.stopped:
            path = self._tape.path_of(op)
            self._stops.append(f"{self._tape.nodes[op].op.partition('.')[0]}" + (f" in {path}" if path else ""))
        largest, confirmed, names = 0.0, 0, list[str]()
        for gradient in backward.gradients:
            name = self.name(gradient.leaf)
            after = self._known(backward.end, gradient.after, name).double()
            before = None if gradient.before is None else self._known(backward.begin, gradient.before, name).double()
            exact, accepted = chosen.exact(gradient.leaf), chosen.accepted(gradient.leaf, disturbed=False)
            sums = self.sums.get(gradient.leaf)
            if after.shape != exact.shape:
                raise UnderivableError(f"the gradient of {name} has another shape")
            change = after if before is None or chosen.whole else after - before
            if gradient.leaf not in fitting:
                accepted = chosen.accepted(gradient.leaf, disturbed=True)
            if before is not None and bool(before.any()):
                larger = torch.maximum(after.abs(), before.abs())
                accepted = accepted + 4 * unit(chosen.dtype(gradient.leaf)) * larger
                if sums is None:
                    raise UnderivableError(
                        f"the backward pass adds to a gradient of {name} that this step did not make"
                    )
                if not torch.equal(sums.recorded, before):
                    raise UnderivableError(
                        f"the gradient of {name} was another before the backward pass than after the last"
                    )
            if before is None or chosen.whole or not bool(before.any()):
                sums = None
            found = excess(change - exact, accepted)
            largest = max(largest, found)
            if found > 1:
                self._contradicted(name, kind, change, exact, accepted)
            confirmed += change.numel()
            names.append(name)
            total = exact.clone() if sums is None else sums.exact + exact
            self.sums[gradient.leaf] = Sum(total, accepted if sums is None else sums.accepted + accepted, after)
        leaves = {self._tape.refs[g.leaf][0] for g in backward.gradients}
        self._others.depend(backward)
        direct = [self._names.get(slot, str(slot)) for slot in structure.direct(self._plan, backward, sorted(leaves))]
        path = self._tape.path_of(made) or ""
        if largest <= 1:
            found_names, met = _listed(names), _listed(direct)
            self._losses.append(
                Loss(kind, max(made, 0), path[:LONGEST], found_names, met, confirmed, largest, chosen.ranks)
            )

    def _nearest(self, backward: Backward, candidates: Iterable[Candidate]) -> tuple[Candidate, list[int]]:
        """The first candidate that fits, or the one that most gradients fit; with the leaves whose gradients do."""
        best: tuple[Candidate, list[int]] | None = None
        kinds: dict[tuple[float, ...], dict[int, Candidate]] = {}
        for candidate in candidates:
            fitting = [g.leaf for g in backward.gradients if self._fits(backward, g, candidate)]
            if best is None or len(fitting) > len(best[1]):
                best = candidate, fitting
            if len(fitting) == len(backward.gradients):
                break
            one_kind = kinds.setdefault(candidate.kind, {})
            for leaf in fitting:
                one_kind.setdefault(leaf, candidate)
            if len(one_kind) == len(backward.gradients):
                return Mixed(one_kind), list(one_kind)
        assert best is not None
        return best

    def _fits(self, backward: Backward, gradient: Gradient, candidate: Candidate) -> bool:
        after = self._values.at(backward.end, gradient.after)
        before = None if gradient.before is None else self._values.at(backward.begin, gradient.before)
        exact = candidate.exact(gradient.leaf)
        if after is None or after.shape != exact.shape:
            return False
        accepted = candidate.accepted(gradient.leaf, disturbed=False)
        change = after.double()
        if before is not None and bool(before.any()) and not candidate.whole:
            larger = torch.maximum(after.double().abs(), before.double().abs())
            accepted = accepted + 4 * unit(candidate.dtype(gradient.leaf)) * larger
            change = change - before.double()
        return excess(change - exact, accepted) <= 1

    def _contradicted(self, name: str, kind: str, change: Tensor, exact: Tensor, accepted: Tensor) -> None:
        beyond = int(((change - exact).abs() > accepted).sum())
        norm = float(exact.norm()) or 1.0
        self.reason(
            f"the gradient of {name} is not that of {kind}: {beyond:,} of {change.numel():,} elements differ, "
            f"by {float((change - exact).norm()) / norm:.2g} of its norm"
        )

    # -- updates -------------------------------------------------------------------------------------------------------

    def update(self, step: Step, shared: Sequence[Shared] = ()) -> None:
        """Confirms an optimizer's step.

        Args:
            step: Which.
            shared: Of a job: sums over groups of ranks, which may be what was made of gradients before the step.

        Raises:
            UnderivableError: It is not recognised.
        """
        if step.optimizer not in KNOWN:
            raise UnderivableError(f"the optimizer {step.optimizer} is none that is known here")
        between = self._between(step, shared)
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
            formula = self._formulas(self._record, float(confirmed.numbers.get("lr") or 0.0))
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
        count = len(numbers) + len(self._seeds)
        chosen = NUMBER_BITS * (count + between.numbers)
        if chosen > NUMBER_BITS * 8 and 2 * chosen > 32 * elements:
            self.reason(f"{step.optimizer} has {count} numbers for {elements:,} elements, which may be anything")
        absolute = sum(each.absolute for each in found) or 1.0
        largest = max(each.largest for each in found)
        freedom = sum(each.freedom for each in found) / absolute
        if freedom > MOST_FREEDOM:
            self.reason(
                "the gradients are rounding errors rather than numbers: "
                f"a change {freedom:.2g} times as large as the update of {step.optimizer} would be taken for it too"
            )
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
                    freedom=freedom,
                    freedom_bits=sum(each.bits for each in found) + chosen,
                )
            )

    def _between(self, step: Step, shared: Sequence[Shared]) -> Between:
        """What gradients went through between the backward pass and the step."""
        try:
            return solve(self._pairs(step, None))
        except UnderivableError:
            for each in shared:
                try:
                    between = solve(self._pairs(step, each))
                except UnderivableError:
                    continue
                self._share(each)
                return between
            raise

    def _share(self, shared: Shared) -> None:
        """Takes a group's sums for this rank's."""
        for ref, sums in self.sums.items():
            self.sums[ref] = Sum(shared.exact[ref], shared.accepted[ref], sums.recorded)
        self._losses = [replace(each, ranks=shared.ranks) for each in self._losses]

    def _pairs(self, step: Step, shared: Shared | None) -> list[Pair]:
        pairs = []
        for parameter in (p for g in step.groups for p in g.parameters):
            if parameter.gradient is None:
                continue
            name = self.name(parameter.ref)
            sums = self.sums.get(parameter.ref)
            if sums is None:
                raise UnderivableError(f"{name} is updated by a gradient that no backward pass of the step gave it")
            read = self._known(step.begin, parameter.gradient, name).double()
            left = sums.recorded if shared is None else shared.left[parameter.ref]
            pairs.append(Pair(name, left, read, DTYPES[self._tape.refs[parameter.gradient][1]]))
        return pairs

    def _member(self, step: Step, parameter: Parameter, between: Between) -> Member:
        name = self.name(parameter.ref)
        assert parameter.gradient is not None
        sums = self.sums[parameter.ref]
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

    def name(self, index: int) -> str:
        """Returns the name of what a reference shows."""
        slot = self._tape.refs[index][0]
        return self._names.get(slot, f"slot {slot}")

    def _known(self, op: int, index: int, what: str) -> Tensor:
        found = self._values.at(op, index)
        if found is None:
            raise UnderivableError(f"{what} is not there when it is claimed to be")
        return found


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
