"""Which numbers the next step of a known tape has, told without running the function that computes them.

A tape leaves numbers out: they are its step's vector of values, and the host values that it gives to Python. The next
step's are known if all that the function computes them from is known. Host values are what a counter in the state will
have become. A value follows from a declared formula, or has been the same in each step although the formulas near it
have not changed either. What neither holds for is not guessed: the step is recorded as ever, which teaches more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prover.capture.overload_facts import overload
from prover.capture.substitution import Place, Substitution
from prover.recording.compile_refusal import refused
from weighbridge.numerics.schemas import bind, mutated
from weighbridge.program.explanations import Candidate, Explanations, distance, pattern
from weighbridge.program.operands import resolve
from weighbridge.transcript.steps import Scalar, same_scalar
from weighbridge.transcript.tape import Node, Ref, Tape

_INCREMENTS = frozenset({"add_.Tensor", "add_.Scalar"})
READING = frozenset({"_local_scalar_dense.default", "equal.default"})
"""Operations that give Python a number."""


@dataclass(slots=True)
class _Value:
    """What is known of one value.

    Attributes:
        node: The number of its operation.
        place: How substitution knows it; None if nothing is put in its place.
        last: What it was in the last step that was recorded operation by operation.
        candidates: Formulas that have been near it in each of them.
        constant: Whether it was the same in all of them.
    """

    node: int
    place: Place | None
    last: Scalar | None = None
    candidates: frozenset[Candidate] | None = None
    constant: bool = True


class KnownValues:
    """The numbers of the steps of one tape."""

    def __init__(self, tape: Tape) -> None:
        """Prepares for the steps of a tape."""
        self._tape = tape
        self._values: list[_Value] = [_Value(0, None) for _ in range(tape.values)]
        for number, node in enumerate(tape.nodes):
            for index, placed in _numbers(node):
                self._values[index] = _Value(number, (node.op, number, index) if placed else None)
        self._observed = 0

    def forget(self) -> None:
        """Begins anew: something that the values follow from was set to something else."""
        for each in self._values:
            each.last, each.candidates, each.constant = None, None, True
        self._observed = 0

    @property
    def observed(self) -> int:
        """Steps that were looked at since the beginning."""
        return self._observed

    def observe(self, values: Sequence[Scalar], substitution: Substitution) -> None:
        """Looks at the values of a step that was recorded operation by operation, and is the last one."""
        self._observed += 1
        step = substitution.step
        for known, value in zip(self._values, values, strict=True):
            known.constant &= known.last is None or same_scalar(known.last, value)
            known.last = value
            if known.place is None or type(value) is not float:
                continue
            near, _ = substitution.candidates(known.place)
            if known.candidates is not None:
                near &= known.candidates
            known.candidates = step.near(value, near).candidates if near else near

    def refusal(self) -> str | None:
        """Returns why the values cannot be told, if there is no hope that further steps will say."""
        for index, known in enumerate(self._values):
            if not known.constant and not known.candidates:
                node = self._tape.nodes[known.node]
                where = self._tape.path_of(known.node)
                return (
                    f"number {index} of its tape, an operand of operation {known.node} ({node.op}"
                    f"{'' if where is None else f' in {where}'}), changes from step to step by no declared formula. "
                    "Let a scheduler of PyTorch's set it and attach() that scheduler, or declare the number with "
                    "Recorder(formulas=...)"
                )
        return None

    def expected(self, step: Explanations, hosts: Sequence[Scalar], substitution: Substitution) -> list[Scalar] | int:
        """Returns the values of the next step, or the index of the first that formulas leave open.

        Args:
            step: What formulas give in it.
            hosts: Its host values.
            substitution: What it would be recorded with.
        """
        read = {abs(float(each)) for each in hosts}
        found: list[Scalar] = []
        given: dict[frozenset[Candidate], int | None] = {}
        for index, known in enumerate(self._values):
            candidates = known.candidates or frozenset()
            if known.place is not None:
                others, constant = substitution.candidates(known.place)
                candidates = candidates if constant else candidates | others
                if not constant and known.constant and _comes_near(step, known.last):
                    return index
            if not candidates:
                if known.last is None or not known.constant:
                    return index
                found.append(known.last)
                continue
            if candidates not in given:
                given[candidates] = _agreed(step, candidates, len(hosts), read)
            bits = given[candidates]
            if bits is None or (known.constant and bits != pattern(_float(known.last))):
                return index
            found.append(_number(bits))
        return found


def _comes_near(step: Explanations, value: Scalar | None) -> bool:
    """Whether substitution may put a formula's value in a constant's place, which it does where operands change.

    Structures have such a place in common: each has its own constant there.
    """
    return type(value) is float and bool(step.near(value, step.all()).apart)


def _float(value: Any) -> float:
    assert type(value) is float
    return value


def _number(bits: int) -> float:
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])


def _agreed(step: Explanations, candidates: frozenset[Candidate], hosts: int, read: set[float]) -> int | None:
    """Returns the bits of the number that all candidates give, or None; `read` has the sizes of what is read."""
    bits: int | None = None
    for name, index in candidates:
        if index >= hosts:
            return None
        value = step.gives((name, index))
        mine = pattern(float(value[0]))
        if value[0] != value[0] or (bits is not None and mine != bits):
            return None
        bits = mine
        for each in read:  # a number that was read goes before one that is near it
            for number in (each, -each):
                if pattern(number) != mine and distance(number, value) is not None:
                    return None
    return bits


def _numbers(node: Node) -> Iterator[tuple[int, bool]]:
    """Yields the values of an operation, and whether a formula's may have been put in the place of the program's."""
    what = overload(resolve(node.op))
    for place, value in enumerate(node.args):
        for index in _indices(value):
            yield index, what.computes and place in what.positions
    for name, value in node.kwargs.items():
        for index in _indices(value):
            yield index, what.computes and name in what.names


def _indices(value: Any) -> Iterator[int]:
    if isinstance(value, tuple) and len(value) == 2:
        if value[0] == "v":
            yield value[1]
        elif value[0] == "l":
            for each in value[1]:
                yield from _indices(each)


# -- host values -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that a step reads: what a tensor of the state holds, and what is added to it before.

    Attributes:
        ref: The tensor.
        added: Which values are added to it.
    """

    ref: Ref
    added: tuple[int, ...]

    def will_be(self, t: torch.Tensor, values: Sequence[Scalar | None]) -> float | None:
        """Returns what will be read.

        Args:
            t: The tensor before the step.
            values: The step's values, as far as they are constant.
        """
        now = np.float32(t.item())
        for index in self.added:
            added = values[index]
            if added is None:
                return None
            now = np.float32(now + np.float32(added))
        return float(now)


def counters(tape: Tape, others: Set[int] = frozenset()) -> list[Counter]:
    """Returns which counters a tape's host values are.

    Args:
        tape: The tape.
        others: Operations that read something else, which is known otherwise.

    Raises:
        CompileError: One is something else.
    """
    states = {item.slot for item in tape.inputs if item.origin == "state"}
    added: dict[int, list[tuple[int, int]] | None] = {}
    found: list[Counter] = []
    for number, node in enumerate(tape.nodes):
        if node.op in READING:
            if number in others:
                continue
            index = node.args[0][1]
            ref = tape.refs[index]
            changes = added.get(ref[0], [])
            if (
                node.op == "equal.default"
                or changes is None
                or ref[0] not in states
                or ref[1] != "f32"
                or any(i != index for i, _ in changes)
            ):
                raise refused(
                    f"operation {number} reads a number that is no counter of an optimizer; return the tensor and "
                    "read it after the step"
                )
            found.append(Counter(ref, tuple(value for _, value in changes)))
            continue
        op = resolve(node.op)
        changed = mutated(op)
        if not changed:
            continue
        operands = bind(op, node.args, node.kwargs)
        for slot in {tape.refs[index][0] for name in changed for index in _tensors(operands[name])}:
            simple = node.op in _INCREMENTS and operands.get("alpha", 1) == 1 and _value(operands["other"]) is not None
            before = added.setdefault(slot, [])
            if before is None or not simple:
                added[slot] = None
            else:
                before.append((operands["self"][1], operands["other"][1]))
    return found


def _value(encoded: Any) -> int | None:
    return encoded[1] if isinstance(encoded, tuple) and len(encoded) == 2 and encoded[0] == "v" else None


def _tensors(encoded: Any) -> Iterator[int]:
    if isinstance(encoded, tuple) and len(encoded) == 2:
        if encoded[0] == "t":
            yield encoded[1]
        elif encoded[0] == "l":
            for each in encoded[1]:
                yield from _tensors(each)


def constants(known: KnownValues) -> list[Scalar | None]:
    """Returns the values that have been the same in each step; None for others."""
    return [each.last if each.constant else None for each in known._values]


Lookup = Callable[[Ref], torch.Tensor]


def read_ahead(found: Sequence[Counter], tensor: Lookup, known: KnownValues) -> list[Scalar] | None:
    """Returns what a step will read, or None if that is open."""
    values = constants(known)
    hosts = [counter.will_be(tensor(counter.ref), values) for counter in found]
    return None if any(each is None for each in hosts) else [each for each in hosts if each is not None]
