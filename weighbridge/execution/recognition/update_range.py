"""Does an optimizer's step work with nothing but parameters, their gradients and its own state?

Numbers confirm the steps that are looked at, with their data. What a program may do with other data is for its
structure to say: a term that a number in the batch switches on adds nothing in one step, and a model in the next. So no
tensor enters a step, or a gradient on its way to the step, beside what belongs there; single numbers may. Neither does
anything but single numbers come from one parameter to another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from weighbridge.execution.recognition.lanes import NOBODY, Lanes, Whose
from weighbridge.execution.recognition.values import Plan
from weighbridge.program.gradient_paths import operands, results
from weighbridge.program.written_bytes import Coverage
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.tape import Node, Ref
from weighbridge.transcript.training_claims import Step

ONE_NUMBER = 8
"""Bytes of a storage that holds one number: a rate, a factor, a norm."""

Number = tuple[int, int]
"""A single number from elsewhere: its slot, and how often that was written to before."""

MOST_NUMBERS = 16
"""Numbers that backward passes, what lies between, and optimizers may read from elsewhere in a step, all together:
rates of groups, a loss's scale, the factor of a clipping, whether gradients are finite."""

_MOVING = frozenset({"cat", "stack", "copy_", "clone", "_to_copy", "split_with_sizes_copy", "_foreach_copy_"})
"""Operations that put gradients of several parameters beside each other, as buckets do, and take them apart."""

_SCALING = frozenset(
    {"mul", "mul_", "div", "div_", "clamp", "clamp_", "neg", "neg_", "nan_to_num", "nan_to_num_", "isfinite", "isnan",
     "isinf", "abs", "square", "pow", "logical_not", "eq", "ne"}
)  # fmt: skip
"""Operations that leave each element where it is."""


def strangers(plan: Plan, step: Step, names: Mapping[int, str], numbers: set[Number]) -> list[str]:
    """Names what an optimizer's step reads that is not its own, and what it brings from one parameter to another.

    Args:
        plan: That of the tape.
        step: The step.
        names: Slot to name.
        numbers: Takes the single numbers that it reads from elsewhere.
    """
    return _Step(plan, step, names, numbers).found()


@dataclass(slots=True)
class _Step:
    plan: Plan
    step: Step
    names: Mapping[int, str]
    numbers: set[Number]
    _lanes: Lanes = field(default_factory=Lanes)
    _own: set[int] = field(default_factory=set)
    _carried: dict[int, dict[Number, Whose]] = field(default_factory=dict)
    """By slot: single numbers that are in it, and whose they are."""

    def found(self) -> list[str]:
        tape, found = self.plan.tape, list[str]()
        for p in (p for group in self.step.groups for p in group.parameters if p.gradient is not None):
            for index in (p.ref, p.gradient, *p.state.values()):
                assert index is not None
                self._lanes.put(tape.refs[index], [p.ref])
                self._own.add(tape.refs[index][0])
        self._own -= _shared(self.plan)
        for op in range(self.step.begin, self.step.end):
            node = tape.nodes[op]
            if is_collective(node):
                found.append(
                    f"{self.step.optimizer} exchanges with other ranks within its step (operation {op}, {node.op})"
                )
            found += self._foreign(op, node)
            found += self._crossing(op, node)
            self._own |= {slot for slot, _ in node.births}
        return found

    def _foreign(self, op: int, node: Node) -> list[str]:
        found = []
        for slot in _read(self.plan, node):
            if slot in self._own:
                continue
            if self._small(slot):
                self.numbers.add((slot, self.plan.version(slot, op)))
                continue
            found.append(
                f"{self.step.optimizer} reads {self._name(slot)}, which is none of its parameters, gradients "
                f"and state (operation {op}, {node.op})"
            )
            self._own.add(slot)
        return found

    def _crossing(self, op: int, node: Node) -> list[str]:
        refs = self.plan.tape.refs
        read = [refs[index] for index in operands(node)]
        born = {slot for slot, _ in node.births}
        whose = NOBODY.union(*(self._lanes.of(ref) for ref in read if not self._small(ref[0])))
        single: dict[Number, Whose] = {}
        for ref in read:
            single |= self._carried.get(ref[0], {})
            if self._small(ref[0]) and (owner := self._lanes.of(ref)):
                single[ref[0], self.plan.version(ref[0], op)] = owner
        found = []
        for ref in self.plan.places.get(op, ()):
            if ref[0] in born:
                continue
            to = self._lanes.of(ref)
            if not to or self._small(ref[0]):  # made in this step, or a count of steps
                self._lanes.put(ref, whose.union(*single.values()) if self._small(ref[0]) else whose)
                self._carried.setdefault(ref[0], {}).update(single)
                continue
            if not whose <= to or (len(to) > 1 and len(read) > 1):
                other = next(iter(sorted(whose - to)), None)
                what = "one" if other is None else self._name(refs[other][0])
                found.append(
                    f"{self.step.optimizer} brings numbers of {what} into another parameter or its state "
                    f"(operation {op}, {node.op})"
                )
            self.numbers |= {number for number, owner in single.items() if not owner <= to}
        for index in results(node):
            ref = refs[index]
            if ref[0] in born:
                self._lanes.put(ref, whose.union(*single.values()) if self._small(ref[0]) else whose)
                if not self._small(ref[0]):
                    self._carried.setdefault(ref[0], {}).update(single)
        return found

    def _small(self, slot: int) -> bool:
        return self.plan.largest.get(slot, 0) <= ONE_NUMBER

    def _name(self, slot: int) -> str:
        return self.names.get(slot, f"slot {slot}")


@dataclass(slots=True)
class Mixed:
    """What gradients were mixed with on their way to the optimizers.

    Attributes:
        reasons: What is written into gradients that does not come from gradients alone.
        brings: Collectives to which this rank contributes something else, by operation.
        numbers: Single numbers from elsewhere that go into gradients.
    """

    reasons: list[str] = field(default_factory=list)
    brings: set[int] = field(default_factory=set)
    numbers: set[Number] = field(default_factory=set)


def mixed_in(plan: Plan, names: Mapping[int, str], foreign: Collection[int] = ()) -> Mixed:
    """Says what gradients are mixed with after the backward pass.

    Args:
        plan: That of the tape.
        names: Slot to name.
        foreign: Collectives to which another rank contributes what does not come from gradients alone, by operation.
    """
    tape, claims, sizes = plan.tape, plan.claims, plan.largest
    read = {
        tape.refs[p.gradient][0] for s in claims.steps for g in s.groups for p in g.parameters if p.gradient is not None
    }
    made = read | {
        tape.refs[i][0] for b in claims.backwards for g in b.gradients for i in (g.before, g.after) if i is not None
    }
    gradients, found, whose = set(made), Mixed(), _leaves(plan, names)
    made -= _shared(plan)
    made -= {slot for slot in made - read if not _left(plan, slot)}
    lanes = _gradients(plan)
    numbers = dict[int, set[Number]]()
    for op in plan.forward:
        node = tape.nodes[op]
        slots = set(_read(plan, node))
        other = {slot for slot in slots if slot not in made and sizes.get(slot, 0) > ONE_NUMBER}
        crossing = set[int]() if other else _crossing(plan, op, node, lanes)
        few = {(slot, plan.version(slot, op)) for slot in slots - made - other}
        few = few.union(*(numbers.get(slot, ()) for slot in slots & made), _numbers(plan, op, node, lanes))
        if len(few) > MOST_NUMBERS:  # so many may be anything
            other |= {slot for slot, _ in few}
        collective = is_collective(node)
        written = {tape.refs[i][0] for i in results(node)} if collective else plan.writes.get(op, set())
        if collective and other:
            found.brings.add(op)
        if not other and not crossing and op not in foreign:
            born = plan.births.get(op, set())
            made |= {slot for slot in born if not few or sizes.get(slot, 0) > ONE_NUMBER}
            for slot in written & made if few else ():
                numbers[slot] = numbers.get(slot, set()) | few
            if written & gradients:
                found.numbers |= few
            continue
        for slot in sorted(written & gradients):
            what = ", ".join(names.get(each, f"slot {each}") for each in sorted(other)[:2])
            what = what or ("that of another parameter" if crossing else "what other ranks brought")
            found.reasons.append(
                f"the gradient {whose.get(slot, f'in slot {slot}')} is changed by {what} before the step "
                f"(operation {op}, {node.op})"
            )
        made -= written - gradients
    return found


def _left(plan: Plan, slot: int) -> bool:
    """Whether a backward pass writes to a slot; that a gradient of zeros lies somewhere, claims may say of anything."""
    return any(b.begin <= op < b.end for b in plan.claims.backwards for op in plan.writers.get(slot, ()))


def _gradients(plan: Plan) -> Lanes:
    """Of which leaf the gradients are, by its reference."""
    lanes, refs = Lanes(), plan.tape.refs
    for gradient in (g for b in plan.claims.backwards for g in b.gradients):
        for index in (gradient.before, gradient.after):
            if index is not None:
                lanes.put(refs[index], [gradient.leaf])
    for parameter in (p for s in plan.claims.steps for g in s.groups for p in g.parameters):
        if parameter.gradient is not None:
            lanes.put(refs[parameter.gradient], [parameter.ref])
    return lanes


def _crossing(plan: Plan, op: int, node: Node, lanes: Lanes) -> set[int]:
    """The slots of several leaves' gradients that an operation combines; notes whose its results are, if it does not.

    To put gradients beside each other or to take them apart is none, nor is to scale those of several leaves together.
    """
    refs, sizes = plan.tape.refs, plan.largest
    read = [refs[index] for index in operands(node)]
    owners = {ref: owner for ref in read if (owner := lanes.of(ref))}
    large = {ref: owner for ref, owner in owners.items() if sizes.get(ref[0], 0) > ONE_NUMBER}
    written = [refs[index] for index in results(node)] + plan.places.get(op, [])
    base = node.op.partition(".")[0]
    several = len(set(large.values())) > 1 or any(len(owner) > 1 for owner in large.values())
    makes_large = any(sizes.get(ref[0], 0) > ONE_NUMBER for ref in written)
    beside = is_collective(node) or base in _MOVING or (base in _SCALING and len(large) == 1)
    if several and makes_large and not beside:
        return {ref[0] for ref in large}
    sources = [ref for ref in (read[1:] if base == "copy_" else read) if ref in owners]
    moved = NOBODY.union(*(owners[ref] for ref in sources if ref in large))
    for ref in written:
        is_small = sizes.get(ref[0], 0) <= ONE_NUMBER
        lanes.put(ref, NOBODY.union(*(owners[each] for each in sources)) if is_small or not moved else moved)
    return set()


def _numbers(plan: Plan, op: int, node: Node, lanes: Lanes) -> set[Number]:
    """Single numbers made of gradients that an operation brings into those of other leaves, as a norm is."""
    refs, sizes = plan.tape.refs, plan.largest
    read = [refs[index] for index in operands(node)]
    single = {ref: lanes.of(ref) for ref in read if sizes.get(ref[0], 0) <= ONE_NUMBER}
    to = [lanes.of(ref) for ref in plan.places.get(op, []) if sizes.get(ref[0], 0) > ONE_NUMBER]
    large = [lanes.of(ref) for ref in read if sizes.get(ref[0], 0) > ONE_NUMBER]
    into = NOBODY.union(*to, *large)
    if not to and not any(sizes.get(refs[i][0], 0) > ONE_NUMBER for i in results(node)):
        return set()
    return {(ref[0], plan.version(ref[0], op)) for ref, owner in single.items() if owner and not owner <= into}


def _shared(plan: Plan) -> set[int]:
    """Slots that are claimed to hold gradients, and bring something else: data, or what lies beside the gradients."""
    tape, claims = plan.tape, plan.claims
    named = {i for b in claims.backwards for g in b.gradients for i in (g.before, g.after) if i is not None}
    named |= {p.gradient for s in claims.steps for g in s.groups for p in g.parameters if p.gradient is not None}
    refs: dict[int, set[Ref]] = {}
    for index in named:
        refs.setdefault(tape.refs[index][0], set()).add(tape.refs[index])
    found = set[int]()
    for item in tape.inputs:
        covered = Coverage(plan.largest.get(item.slot, 0))
        if item.slot in refs and (
            item.origin in ("batch", "free") or not any([covered.add(ref) for ref in sorted(refs[item.slot])])
        ):
            found.add(item.slot)
    return found


def _leaves(plan: Plan, names: Mapping[int, str]) -> dict[int, str]:
    """Of which leaf the gradient in a slot is; the first of several."""
    found: dict[int, str] = {}
    for backward in plan.claims.backwards:
        for gradient in backward.gradients:
            leaf = plan.tape.refs[gradient.leaf][0]
            found.setdefault(plan.tape.refs[gradient.after][0], f"of {names.get(leaf, f'slot {leaf}')}")
    return found


def _read(plan: Plan, node: Node) -> Iterable[int]:
    return [plan.tape.refs[index][0] for index in operands(node)]
