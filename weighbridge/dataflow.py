"""Which inputs of a tape reach which state, and where a tape overwrites state instead of changing it.

This looks at the program only, storage by storage: it does not know values. A result depends on whatever its operation
reads, so `weights * 0 + x` still depends on `weights` here; only evaluation could tell that it does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weighbridge.errors import TapeError
from weighbridge.numerics.rules import RULES, Kind, Op, base_name, mutated
from weighbridge.operands import resolve
from weighbridge.tape import DTYPES, Node, Ref, Tape, extent, references, resized

MAX_WORK = 1 << 36
"""Most bits that may be looked at: inputs times operations."""

_REPLACES = frozenset(
    {"copy", "fill", "zero", "normal", "uniform", "bernoulli", "random", "exponential", "log_normal", "cauchy", "eye"}
)
"""In-place operations whose result does not depend on what was there."""

_MANY = 1 << 20


@dataclass(frozen=True, slots=True)
class Overwrite:
    """State was replaced as a whole by something that does not depend on it.

    Attributes:
        name: The state's name on the tape.
        op: The operation that completed it; the number of operations if another storage took the name.
        sources: What the new value depends on, as bits; see `Flow`.
        numbers: How many numbers of the program (values) went into it.
    """

    name: str
    op: int
    sources: int
    numbers: int


@dataclass(slots=True)
class Flow:
    """Where data go in one tape.

    Sources are sets of bits: bit i stands for input i of the tape, bit `len(inputs)` for randomness.

    Attributes:
        reaches: For each state that the step changes or makes: what its value afterwards depends on.
        overwrites: State that was replaced.
        trained: Names of state that was changed in dependence on its old value and on something else that entered.
        given: For each state that is written: what the operands of each write depend on, the state itself left out
            unless another operand depends on it.
    """

    reaches: dict[str, int] = field(default_factory=dict)
    overwrites: list[Overwrite] = field(default_factory=list)
    trained: set[str] = field(default_factory=set)
    given: dict[str, set[int]] = field(default_factory=dict)


def flow(tape: Tape) -> Flow:
    """Follows the data through a tape.

    Raises:
        TapeError: It names an operation that is not allowed, or is too large to look at (`tape.too_large`).
    """
    if (len(tape.inputs) + 1) * (len(tape.nodes) + 1) > MAX_WORK:
        raise TapeError("the tape is too large to follow its data", code="tape.too_large")
    walk = _Walk(tape)
    frees: dict[int, list[int]] = {}
    for at, slot in tape.frees:
        frees.setdefault(at, []).append(slot)
    for index, node in enumerate(tape.nodes):
        for slot in frees.get(index, ()):
            walk.forget(slot)
        walk.operation(index, node)
    for slot in frees.get(len(tape.nodes), ()):
        walk.forget(slot)
    return walk.finish()


class _Walk:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._random = 1 << len(tape.inputs)
        self._sources: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._state: dict[int, str] = {}
        self._own: dict[int, int] = {}
        self._bit_of: dict[str, int] = {}
        self._data = 0
        self._pieces: dict[int, tuple[NDArray[np.bool_], int, int]] = {}
        self._written: set[int] = set()
        self._ops: dict[str, tuple[Op, str, frozenset[str], bool]] = {}
        self._flow = Flow()
        for index, item in enumerate(tape.inputs):
            if item.origin in ("state", "dropped"):
                self._bit_of[item.name] = 1 << index
            if item.origin == "dropped":
                continue
            self._sources[item.slot], self._sizes[item.slot] = 1 << index, item.bytes
            if item.origin in ("state", "batch"):
                self._data |= 1 << index
            if item.origin == "state":
                self._state[item.slot], self._own[item.slot] = item.name, 1 << index

    def forget(self, slot: int) -> None:
        """A storage died."""
        for known in (self._sources, self._numbers, self._sizes, self._state, self._pieces):
            known.pop(slot, None)

    def _resolve(self, name: str) -> tuple[Op, str, frozenset[str], bool]:
        if name not in self._ops:
            op = resolve(name)
            base, overload = base_name(op)
            rule = RULES.get(f"{base}.{overload}")
            view = rule is not None and rule.kind is Kind.VIEW
            self._ops[name] = op, base, frozenset(mutated(op)), view
        return self._ops[name]

    def operation(self, index: int, node: Node) -> None:
        """Follows one operation."""
        for slot, size in resized(self._tape, node):
            self._pieces.pop(slot, None)
            self._sizes[slot] = size
            return
        op, base, changed, view = self._resolve(node.op)
        if view and not node.births:
            return
        names = [a.name for a in op._schema.arguments]
        targets: list[int] = []
        sources = given = self._random if node.draw is not None else 0
        numbers = 0
        replaces = base in _REPLACES
        for name, operand in [*zip(names, node.args, strict=False), *node.kwargs.items()]:
            inner = references(operand)
            if name in changed:
                targets += inner
                if replaces:
                    continue
            for r in inner:
                slot = self._tape.refs[r][0]
                sources |= self._sources.get(slot, 0)
                given |= 0 if name in changed else self._sources.get(slot, 0)
                numbers += self._numbers.get(slot, 0)
            numbers += _values(operand)
        numbers = min(numbers, _MANY)
        for slot, size in node.births:
            self._sources[slot], self._sizes[slot], self._numbers[slot] = sources, size, numbers
        for r in targets:
            self._note(self._tape.refs[r][0], given)
            self._write(index, self._tape.refs[r], sources, numbers, replaces)

    def _note(self, slot: int, given: int) -> None:
        """Remembers what a write to state was made from."""
        if slot in self._state:
            self._flow.given.setdefault(self._state[slot], set()).add(given)

    def _write(self, index: int, ref: Ref, sources: int, numbers: int, replaces: bool) -> None:
        slot = ref[0]
        if slot not in self._sources:
            return
        own = self._own.get(slot, 0) if slot in self._state else 0
        if own:
            self._written.add(slot)
            others = sources & self._data & ~own
            if others and (sources & own or (not replaces and self._sources[slot] & own)):
                self._flow.trained.add(self._state[slot])
        if replaces and _whole(ref, self._sizes[slot]):
            self._pieces.pop(slot, None)
            self._replaced(index, slot, sources, numbers)
        elif replaces and own:
            self._piece(index, ref, sources, numbers)
        else:
            self._sources[slot] |= sources
            self._numbers[slot] = min(self._numbers.get(slot, 0) + numbers, _MANY)

    def _replaced(self, index: int, slot: int, sources: int, numbers: int) -> None:
        self._sources[slot], self._numbers[slot] = sources, numbers
        if slot in self._state and not sources & self._own[slot]:
            self._flow.overwrites.append(Overwrite(self._state[slot], index, sources, numbers))

    def _piece(self, index: int, ref: Ref, sources: int, numbers: int) -> None:
        """Part of a state was replaced: once every byte of it was, so was the state."""
        slot = ref[0]
        done, before, count = self._pieces.get(slot) or (np.zeros(self._sizes[slot], dtype=np.bool_), 0, 0)
        _mark(done, ref)
        before, count = before | sources, min(count + numbers, _MANY)
        if done.all():
            self._pieces.pop(slot, None)
            self._replaced(index, slot, before, count)
        else:
            self._pieces[slot] = done, before, count
            self._sources[slot] |= sources
            self._numbers[slot] = min(self._numbers.get(slot, 0) + numbers, _MANY)

    def finish(self) -> Flow:
        """What the step leaves behind."""
        for slot, name in self._state.items():
            if slot in self._written:
                self._flow.reaches[name] = self._sources[slot]
        for slot, name in self._tape.survivors:
            sources = self._sources.get(slot, 0)
            self._flow.reaches[name] = sources
            if name in self._bit_of:
                self._flow.given.setdefault(name, set()).add(sources)
            own = self._bit_of.get(name)
            if own is not None and not sources & own:
                numbers = self._numbers.get(slot, 0)
                self._flow.overwrites.append(Overwrite(name, len(self._tape.nodes), sources, numbers))
        return self._flow


def _values(operand: object) -> int:
    """How many entries of the values vector an encoded operand names."""
    if isinstance(operand, tuple):
        if len(operand) == 2 and operand[0] == "v":
            return 1
        return sum(_values(v) for v in operand)
    return 0


def _whole(ref: Ref, size: int) -> bool:
    """Whether a reference covers a storage without gaps."""
    _, dtype, shape, stride, offset = ref
    item = DTYPES[dtype].itemsize
    if offset or math.prod(shape) * item != size or extent(ref) != size:
        return size == 0
    expected = 1
    for step, length in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step != expected:
            return False
        expected *= length
    return True


def _mark(done: NDArray[np.bool_], ref: Ref) -> None:
    """Marks the bytes that a reference covers."""
    _, dtype, shape, stride, offset = ref
    if math.prod(shape) == 0:
        return
    item = DTYPES[dtype].itemsize
    window = np.lib.stride_tricks.as_strided(
        done[offset * item :], (*shape, item), (*(s * item for s in stride), 1), writeable=True
    )
    window[...] = True
