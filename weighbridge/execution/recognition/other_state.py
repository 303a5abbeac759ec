"""Accounts for all state that a step changes beside what its optimizers do: averages, statistics, and back doors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from weighbridge.execution.recognition import structure
from weighbridge.execution.recognition.acceptance import excess
from weighbridge.execution.recognition.noise import unit
from weighbridge.execution.recognition.update_range import MOST_NUMBERS, ONE_NUMBER
from weighbridge.execution.recognition.values import Plan, Values
from weighbridge.program.gradient_paths import operands
from weighbridge.program.written_bytes import Coverage
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.tape import DTYPES, Ref
from weighbridge.transcript.training_claims import Backward, Step

Tensor = torch.Tensor


class Others:
    """What a step does to its state, besides updates.

    Attributes:
        averages: State that follows other state as an average, with the factor.
        statistics: State that changes and on which no loss depends.
        carried: State on which a loss depends and that no update changes.
    """

    def __init__(self, plan: Plan, names: Mapping[int, str]) -> None:
        self._plan, self._tape, self._names = plan, plan.tape, names
        self.averages: list[str] = []
        self.statistics: list[str] = []
        self.carried: list[str] = []
        self._needed: set[int] = set()
        self._updated: dict[int, list[tuple[int, int]]] = {}
        self._confirmed: dict[int, set[Ref]] = {}
        self._numbers = 0
        self._forms: dict[tuple[Any, ...], int] = {}
        self._large = {i.slot for i in self._tape.inputs if plan.largest.get(i.slot, 0) > ONE_NUMBER}
        self._state = {i.slot: i.name for i in self._tape.inputs if i.origin == "state"}

    def depend(self, backward: Backward) -> None:
        """Takes in on what a loss depends."""
        self._needed |= structure.depends(self._plan, backward).inputs

    def contribute(self, sent: Collection[int]) -> None:
        """Takes in on what depends that other ranks' losses get from collectives, given by operation."""
        self._needed |= structure.contributes(self._plan, sent).inputs

    def update(self, step: Step) -> None:
        """Takes in what an optimizer's step changes."""
        for parameter in (p for g in step.groups for p in g.parameters if p.gradient is not None):
            for index in (parameter.ref, *parameter.state.values()):
                ref = self._tape.refs[index]
                self._updated.setdefault(ref[0], []).append((step.begin, step.end))
                self._confirmed.setdefault(ref[0], set()).add(ref)

    def account(self, leaves: set[int], values: Values, reason: Callable[[str], None]) -> None:
        """Looks at every change of state.

        Args:
            leaves: Slots of the parameters whose gradients were taken.
            values: What the storages held.
            reason: Takes what is not recognised.
        """
        tape, claims = self._tape, self._plan.claims
        ranges = [(s.begin, s.end) for s in claims.steps]
        gradients = {
            tape.refs[index][0]
            for b in claims.backwards
            for g in b.gradients
            for index in (g.before, g.after)
            if index is not None
        } | {
            tape.refs[p.gradient][0]
            for s in claims.steps
            for g in s.groups
            for p in g.parameters
            if p.gradient is not None
        }
        changed: dict[int, list[int]] = {}
        for slot, writers in self._plan.writers.items():
            if slot in self._state or slot in self._updated:
                changed[slot] = writers
        for slot, writers in changed.items():
            name, own = self._names.get(slot, f"slot {slot}"), self._updated.get(slot, [])
            outside = [op for op in writers if not any(begin <= op < end for begin, end in own)]
            if not outside or (slot in gradients and not own and slot not in leaves):
                continue
            op = outside[0]
            if own or slot in leaves:
                reason(f"{name} is changed beside its optimizer's step (operation {op}, {tape.nodes[op].op})")
            elif any(begin <= op < end for begin, end in ranges for op in outside):
                reason(f"an optimizer's step changes {name}, which is none of its parameters (operation {op})")
            elif not self._average(slot, name, values):
                self._other(slot, name, op, reason)
        if self._numbers > MOST_NUMBERS:
            reason(f"{self._numbers} numbers change otherwise than by an optimizer, and a loss depends on them")
        self._replaced(gradients, reason)
        self._whole(reason)
        for slot, name in self._state.items():
            if slot in self._needed and slot not in self._updated and self._plan.sizes[slot]:
                self.carried.append(name)

    def _whole(self, reason: Callable[[str], None]) -> None:
        """Sees to it that of what optimizers change, all is confirmed and not a part."""
        for slot, refs in self._confirmed.items():
            covered = Coverage(self._plan.sizes.get(slot, 0))
            if any([covered.add(ref) for ref in sorted(refs)]):
                continue
            name = self._names.get(slot, f"slot {slot}")
            if self._plan.targets.get(slot, set()) <= refs:  # the shard of a rank with less than the others is padded
                self.carried.append(f"a part of {name}")
            else:
                reason(f"an optimizer's step changes {name}, of which it claims a part only")

    def _other(self, slot: int, name: str, op: int, reason: Callable[[str], None]) -> None:
        if slot in self._needed and self._plan.sizes[slot] > ONE_NUMBER:
            node = self._tape.nodes[op].op
            reason(f"{name} changes otherwise than by an optimizer, and a loss depends on it (operation {op}, {node})")
        elif self._plan.sizes[slot]:
            self._numbers += slot in self._needed
            self.statistics.append(name)

    def _replaced(self, gradients: set[int], reason: Callable[[str], None]) -> None:
        """Looks at names that other memory took."""
        known = {i.name for i in self._tape.inputs if i.origin in ("state", "dropped")}
        left = {self._plan.largest.get(slot, 0) for slot, name in self._tape.survivors if name.startswith("~")}
        for slot, name in self._state.items():
            size = self._plan.sizes[slot]
            replaced = name.startswith("~") and slot in self._needed and slot not in self._updated
            if replaced and size in left and size > ONE_NUMBER:
                reason(f"a loss depends on {name}, which is left from step to step; the step leaves other memory")
        for slot, name in self._tape.survivors:
            if name.startswith(("~", "kept/")) or slot in gradients or slot in self._updated:
                continue
            if name in known:
                reason(f"other memory takes the place of {name} (slot {slot})")
            else:
                self.statistics.append(name)

    def _average(self, slot: int, name: str, values: Values) -> bool:
        """Whether state moved by one factor towards the weights after the step, or before it, as averages do.

        And by nothing else, whatever number in the batch may switch it on.
        """
        refs = [ref for ref in self._tape.refs if ref[0] == slot and DTYPES[ref[1]].is_floating_point]
        whole = max(refs, key=lambda ref: ref[2], default=None)
        if whole is None:
            return False
        index, last = self._tape.refs.index(whole), len(self._tape.nodes)
        old, new = values.at(0, index), values.at(last, index)
        if old is None or new is None or not old.numel():
            return False
        for other in self._updated:
            target = self._weights(other, whole)
            if target is None:
                continue
            for when in (last, 0):
                weights = values.at(when, target)
                if weights is None:
                    continue
                factor = _factor(old.double(), new.double(), weights.double(), unit(new.dtype))
                if factor is not None and self._follows(slot, other):
                    self.averages.append(f"{name} of {self._names.get(other, other)} by {factor:.4g}")
                    return True
        return False

    def _follows(self, slot: int, other: int) -> bool:
        """Whether nothing but a parameter, the average itself and single numbers is ever written to an average."""
        tape, known, numbers = self._tape, {slot, other}, set[tuple[int, int]]()
        carried: dict[int, set[tuple[int, int]]] = {}
        for op in self._makers(slot, other):
            node = tape.nodes[op]
            read = {tape.refs[r][0] for r in operands(node)}
            born = {birth for birth, _ in node.births}
            few = {(each, self._plan.version(each, op)) for each in read - known
                   if self._plan.largest.get(each, 0) <= ONE_NUMBER}  # fmt: skip
            few = few.union(*(carried.get(each, ()) for each in read & known))
            strange = any(each not in known and self._plan.largest.get(each, 0) > ONE_NUMBER for each in read)
            written = self._plan.writes.get(op, set())
            if slot in written:
                if strange or is_collective(node):
                    return False
                numbers |= few
            if strange or is_collective(node):
                known -= written - {slot, other}
                continue
            if not few or any(self._plan.largest.get(each, 0) > ONE_NUMBER for each in born):
                known |= born
            for each in written & known - {other} if few else ():
                carried.setdefault(each, set()).update(few)
        return len(numbers) <= MOST_NUMBERS

    def _makers(self, slot: int, other: int) -> list[int]:
        """The operations that make what an average is made of, ascending; not those that make the parameter.

        What an operation is made of that reads any other large input is left out: it is none of an average's.
        """
        wanted, seen, found = [slot], {slot, other}, set[int]()
        while wanted:
            for op in set(self._plan.writers.get(wanted.pop(), ())) - found:
                found.add(op)
                read = {self._tape.refs[index][0] for index in operands(self._tape.nodes[op])} - seen
                if not read & self._large:
                    seen |= read
                    wanted += read
        return sorted(found)

    def _weights(self, slot: int, like: Ref) -> int | None:
        """A reference of a parameter with the form of an average."""
        if not self._forms:
            for index, ref in enumerate(self._tape.refs):
                self._forms.setdefault((ref[0], *ref[1:4]), index)
        return self._forms.get((slot, *like[1:4]))


def _factor(old: Tensor, new: Tensor, weights: Tensor, error: float) -> float | None:
    """Returns f if new is old + f * (weights - old), up to a few roundings; None if it is not."""
    direction, moved = weights - old, new - old
    accepted = 8 * error * (old.abs() + weights.abs()) + 1e-37
    length = float((direction / accepted).square().sum())  # the finest numbers say most about the factor
    if not length:
        return 0.0 if excess(moved, accepted) <= 1 else None
    factor = float((moved / accepted * (direction / accepted)).sum()) / length
    factor = min(max(factor, 0.0), 1.0)  # roundings alone may put it beside either
    return factor if excess(moved - factor * direction, accepted) <= 1 else None
