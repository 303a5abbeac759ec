"""Does an optimizer's step work with nothing but parameters, their gradients and its own state?

Numbers confirm the steps that are looked at, with their data. What a program may do with other data is for its
structure to say: a term that a number in the batch switches on adds nothing in one step, and a model in the next. So no
tensor enters a step, or a gradient on its way to the step, beside what belongs there; single numbers may.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from weighbridge.execution.recognition.values import Plan
from weighbridge.program.gradient_paths import operands, results
from weighbridge.program.written_bytes import Coverage
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.tape import Node, Ref
from weighbridge.transcript.training_claims import Step

ONE_NUMBER = 8
"""Bytes of a storage that holds one number: a rate, a factor, a norm."""

_Number = tuple[int, int]
"""A single number from elsewhere: its slot, and how often that was written to before."""

MOST_NUMBERS = 16
"""Numbers that a step may read from elsewhere: rates of groups, a loss's scale, whether gradients are finite."""


def strangers(plan: Plan, step: Step, names: Mapping[int, str]) -> list[str]:
    """Names what an optimizer's step reads that is not its own.

    Args:
        plan: That of the tape.
        step: The step.
        names: Slot to name.
    """
    tape, sizes = plan.tape, plan.largest
    own = {
        tape.refs[index][0]
        for group in step.groups
        for p in group.parameters
        if p.gradient is not None
        for index in (p.ref, p.gradient, *p.state.values())
    } - _shared(plan)
    found, numbers = list[str](), set[int]()
    for op in range(step.begin, step.end):
        node = tape.nodes[op]
        if is_collective(node):
            found.append(f"{step.optimizer} exchanges with other ranks within its step (operation {op}, {node.op})")
        for slot in _read(plan, node):
            if slot in own:
                continue
            if sizes.get(slot, 0) <= ONE_NUMBER:
                numbers.add(slot)
                continue
            found.append(
                f"{step.optimizer} reads {names.get(slot, f'slot {slot}')}, which is none of its parameters, gradients "
                f"and state (operation {op}, {node.op})"
            )
            own.add(slot)
        own |= {slot for slot, _ in node.births}
    if len(numbers) > MOST_NUMBERS:
        found.append(f"{step.optimizer} reads {len(numbers)} numbers from elsewhere, which may be anything")
    return found


@dataclass(slots=True)
class Mixed:
    """What gradients were mixed with on their way to the optimizers.

    Attributes:
        reasons: What is written into gradients that does not come from gradients alone.
        brings: Collectives to which this rank contributes something else, by operation.
    """

    reasons: list[str] = field(default_factory=list)
    brings: set[int] = field(default_factory=set)


def mixed_in(plan: Plan, names: Mapping[int, str], foreign: Collection[int] = ()) -> Mixed:
    """Says what gradients are mixed with after the backward pass.

    Args:
        plan: That of the tape.
        names: Slot to name.
        foreign: Collectives to which another rank contributes what does not come from gradients alone, by operation.
    """
    tape, claims, sizes = plan.tape, plan.claims, plan.largest
    made = {
        tape.refs[i][0] for b in claims.backwards for g in b.gradients for i in (g.before, g.after) if i is not None
    }
    read = {
        tape.refs[p.gradient][0] for s in claims.steps for g in s.groups for p in g.parameters if p.gradient is not None
    }
    gradients, found, whose = made | read, Mixed(), _leaves(plan, names)
    made -= _shared(plan)
    numbers, entered = dict[int, set[_Number]](), set[_Number]()
    for op in plan.forward:
        node = tape.nodes[op]
        slots = set(_read(plan, node))
        other = {slot for slot in slots if slot not in made and sizes.get(slot, 0) > ONE_NUMBER}
        few = {(slot, plan.version(slot, op)) for slot in slots - made - other}
        few = few.union(*(numbers.get(slot, ()) for slot in slots & made))
        if len(few) > MOST_NUMBERS:  # so many may be anything
            other |= {slot for slot, _ in few}
        collective = is_collective(node)
        written = {tape.refs[i][0] for i in results(node)} if collective else plan.writes.get(op, set())
        if collective and other:
            found.brings.add(op)
        if not other and op not in foreign:
            born = plan.births.get(op, set())
            made |= {slot for slot in born if not few or sizes.get(slot, 0) > ONE_NUMBER}
            for slot in written & made if few else ():
                numbers[slot] = numbers.get(slot, set()) | few
            if written & gradients:
                entered |= few
            continue
        for slot in sorted(written & gradients):
            what = (
                ", ".join(names.get(each, f"slot {each}") for each in sorted(other)[:2]) or "what other ranks brought"
            )
            found.reasons.append(
                f"the gradient {whose.get(slot, f'in slot {slot}')} is changed by {what} before the step "
                f"(operation {op}, {node.op})"
            )
        made -= written - gradients
    if len(entered) > MOST_NUMBERS:
        found.reasons.append(f"{len(entered)} numbers from elsewhere go into gradients before the step")
    return found


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
