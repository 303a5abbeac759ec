"""Keeps what a step's storages held at the moments that recognition asks about, while a replay executes the step.

A storage has a *version* after each write to it. What is needed of it is kept as it is, and copied only when it is
written to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import torch

from weighbridge.program.effects import effects
from weighbridge.program.gradient_paths import operands, outside
from weighbridge.program.operands import tensor
from weighbridge.transcript.collectives import PREFIX
from weighbridge.transcript.tape import DTYPES, Ref, Tape, resized
from weighbridge.transcript.training_claims import Claims

Tensor = torch.Tensor
_KEY = tuple[int, int]


class Plan:
    """What is needed of a tape's storages, for all steps that run it.

    Attributes:
        sizes: Bytes of each slot's storage when it is made.
        largest: The most bytes that it has, for one that is resized.
        forward: The operations outside of backward passes and of optimizers' steps.
        writes: For each operation, the slots that it writes to or makes.
        targets: For each slot, the references by which it is written to.
        places: For each operation, the references by which it writes to memory that was there.
        writers: For each slot, the operations that write to it or make it, ascending.
    """

    def __init__(self, tape: Tape, claims: Claims) -> None:
        """Goes through the tape once.

        Args:
            tape: The tape.
            claims: What is claimed of it; its references exist.

        Raises:
            TapeError: An operation is not allowed.
        """
        self.tape, self.claims = tape, claims
        self.sizes = {item.slot: item.bytes for item in tape.inputs}
        for node in tape.nodes:
            self.sizes.update(node.births)
        self.largest = dict(self.sizes)
        for node in tape.nodes:
            for slot, size in resized(tape, node):
                self.largest[slot] = max(size, self.largest.get(slot, 0))
        self.forward = outside(len(tape.nodes), claims.ranges())
        self.writes: dict[int, set[int]] = {}
        self.births: dict[int, set[int]] = {}
        self.targets: dict[int, set[Ref]] = {}
        self.places: dict[int, list[Ref]] = {}
        for effect in effects(tape):
            if effect.targets:
                self.places[effect.op] = list(effect.targets)
            for ref in effect.targets:
                self.targets.setdefault(ref[0], set()).add(ref)
            written = {ref[0] for ref in effect.targets} | {slot for slot, _ in effect.grows}
            self.births[effect.op] = {slot for slot, _ in effect.births}
            if written | self.births[effect.op]:
                self.writes[effect.op] = written | self.births[effect.op]
        self.writers: dict[int, list[int]] = {}
        for op in sorted(self.writes):
            for slot in self.writes[op]:
                self.writers.setdefault(slot, []).append(op)
        self.needed: set[_KEY] = set()
        for op in self.forward:
            if tape.nodes[op].op.startswith(PREFIX):
                continue  # what they do does not depend on what they move
            for index in operands(tape.nodes[op]):
                self._need(op, index)
            if tape.nodes[op].draw is not None:
                for result in tape.nodes[op].outputs:
                    self._need(op + 1, result)
        for backward in claims.backwards:
            for named in (*backward.losses, *backward.seeds, *(g.before for g in backward.gradients)):
                self._need(backward.begin, named)
            for gradient in backward.gradients:
                self._need(backward.end, gradient.after)
        for step in claims.steps:
            for at in (step.begin, step.end):
                for parameter in (p for group in step.groups for p in group.parameters):
                    for named in (parameter.ref, parameter.gradient, *parameter.state.values()):
                        self._need(at, named)
        for slot in self.writers:
            self.needed.add((slot, len(self.writers[slot])))
        for item in tape.inputs:
            if item.slot in self.writers:
                self.needed.add((item.slot, 0))

    def version(self, slot: int, op: int) -> int:
        """How often a storage was written to before an operation."""
        return bisect_left(self.writers.get(slot, ()), op)

    def _need(self, op: int, index: int | None) -> None:
        if index is not None:
            slot = self.tape.refs[index][0]
            self.needed.add((slot, self.version(slot, op)))


class Values:
    """What the storages of one step held."""

    def __init__(self, plan: Plan) -> None:
        """Prepares for a step; `before` is to be called by what executes it."""
        self._plan = plan
        self._kept: dict[_KEY, Tensor] = {}
        self._version: dict[int, int] = {}

    def before(self, op: int, slots: Mapping[int, Tensor]) -> None:
        """Called before an operation, and after the last."""
        if op == 0:
            for slot in slots:
                self._keep(slot, slots)
        for slot in self._plan.writes.get(op - 1, ()):
            self._version[slot] = self._version.get(slot, 0) + 1
            if slot in slots:
                self._keep(slot, slots)
        for slot in self._plan.writes.get(op, ()):
            key = slot, self._version.get(slot, 0)
            if key in self._kept:
                self._kept[key] = self._kept[key].clone()

    def _keep(self, slot: int, slots: Mapping[int, Tensor]) -> None:
        key = slot, self._version.get(slot, 0)
        if key in self._plan.needed:
            self._kept[key] = slots[slot]

    def at(self, op: int, index: int) -> Tensor | None:
        """What a reference shows before an operation; None if its storage did not exist, or was smaller."""
        ref = self._plan.tape.refs[index]
        data = self._kept.get((ref[0], self._plan.version(ref[0], op)))
        if data is None or data.untyped_storage().nbytes() < _end(ref):
            return None
        return tensor(data, ref)


def _end(ref: Ref) -> int:
    """How many bytes of its storage a reference needs."""
    _, dtype, size, stride, offset = ref
    if 0 in size:
        return 0
    return (offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1) * DTYPES[dtype].itemsize
