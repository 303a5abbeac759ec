"""Does an optimizer's step work with nothing but parameters, their gradients and its own state?

Numbers confirm the steps that are looked at, with their data. What a program may do with other data is for its
structure to say: a term that a number in the batch switches on adds nothing in one step, and a model in the next. So no
tensor enters a step, or a gradient on its way to the step, beside what belongs there; single numbers may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weighbridge.execution.recognition.values import Plan
from weighbridge.program.gradient_paths import operands
from weighbridge.transcript.tape import Node
from weighbridge.transcript.training_claims import Step

ONE_NUMBER = 8
"""Bytes of a storage that holds one number: a rate, a factor, a norm."""

MOST_NUMBERS = 16
"""Numbers that a step may read from elsewhere: rates of groups, a loss's scale, whether gradients are finite."""


def strangers(plan: Plan, step: Step, names: Mapping[int, str]) -> list[str]:
    """Names what an optimizer's step reads that is not its own.

    Args:
        plan: That of the tape.
        step: The step.
        names: Slot to name.
    """
    tape, sizes = plan.tape, _sizes(plan)
    own = {
        tape.refs[index][0]
        for group in step.groups
        for p in group.parameters
        for index in (p.ref, p.gradient, *p.state.values())
        if index is not None
    }
    found, numbers = list[str](), set[int]()
    for op in range(step.begin, step.end):
        node = tape.nodes[op]
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


def mixed_in(plan: Plan, names: Mapping[int, str]) -> list[str]:
    """Names what is written into gradients after the backward pass that does not come from gradients alone.

    Args:
        plan: That of the tape.
        names: Slot to name.
    """
    tape, claims, sizes = plan.tape, plan.claims, _sizes(plan)
    made = {
        tape.refs[i][0] for b in claims.backwards for g in b.gradients for i in (g.before, g.after) if i is not None
    }
    read = {
        tape.refs[p.gradient][0] for s in claims.steps for g in s.groups for p in g.parameters if p.gradient is not None
    }
    gradients, found = made | read, list[str]()
    for op in plan.forward:
        node = tape.nodes[op]
        other = {slot for slot in _read(plan, node) if slot not in made and sizes.get(slot, 0) > ONE_NUMBER}
        written = plan.writes.get(op, set())
        if not other:
            made |= plan.births.get(op, set())
            continue
        for slot in sorted(written & gradients):
            what = ", ".join(names.get(each, f"slot {each}") for each in sorted(other)[:2])
            found.append(
                f"the gradient {names.get(slot, f'in slot {slot}')} is changed by {what} before the step "
                f"(operation {op}, {node.op})"
            )
    return found


def _read(plan: Plan, node: Node) -> Iterable[int]:
    return [plan.tape.refs[index][0] for index in operands(node)]


def _sizes(plan: Plan) -> dict[int, int]:
    sizes = {item.slot: item.bytes for item in plan.tape.inputs}
    for node in plan.tape.nodes:
        sizes.update(node.births)
    return sizes
