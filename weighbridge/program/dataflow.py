"""Which inputs of a tape reach which state, and where a tape overwrites state instead of changing it.

This looks at the program only, storage by storage: it does not know values. A result depends on whatever its operation
reads, so `weights * 0 + x` still depends on `weights` here; only evaluation could tell that it does not. What content
the inputs have, from all steps before, is the business of `whole_run`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from weighbridge.core.errors import TapeError
from weighbridge.program.effects import MANY, Effect, effects
from weighbridge.program.written_bytes import Coverage, whole
from weighbridge.transcript.tape import RESIZE, Ref, Tape

MAX_WORK = 1 << 33
"""Most bits that may be looked at: inputs times operations."""


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

    Sources are sets of bits: bit i stands for input i of the tape, bit `len(inputs)` for randomness, and the next one
    for what other ranks gave, or an operation that is none of PyTorch's (`others`).

    Attributes:
        reaches: For each state that the step changes or makes: what its value afterwards depends on.
        overwrites: State that was replaced.
        trained: Names of state that was changed in dependence on its old value and on something else that entered.
        given: For each state that is written: what the operands of each write depend on, the state itself left out
            unless another operand depends on it.
        fed: As `given`, but only what those operands had been calculated from.
        computed: For each state that the step changes or makes: what its value afterwards was calculated from; the
            rest of `reaches` was only moved there.
        own: For each state that enters: the inputs that hold what it holds, or held earlier in the run.
    """

    reaches: dict[str, int] = field(default_factory=dict)
    overwrites: list[Overwrite] = field(default_factory=list)
    trained: set[str] = field(default_factory=set)
    given: dict[str, set[int]] = field(default_factory=dict)
    fed: dict[str, set[int]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)


def flow(
    tape: Tape, returned: Mapping[str, Collection[str]] = {}, opaque: Collection[str] = (), *, by_host: bool = False
) -> Flow:
    """Follows the data through a tape.

    Args:
        tape: A decoded tape.
        returned: By name of an undeclared tensor, the state of an earlier step that it holds, in some execution.
        opaque: Names of state on which nothing has bearing that is written to it: what depends on such state later in
            the step depends on nothing else for that reason. So it is with another storage that takes its name.
        by_host: Whether every number and every draw after a value was read on the host depends on that value too.

    Raises:
        TapeError: It names an operation that is not allowed, or is too large to look at (`tape.too_large`).
    """
    if (len(tape.inputs) + 1) * (len(tape.nodes) + 1) > MAX_WORK:
        raise TapeError("the tape is too large to follow its data", code="tape.too_large")
    walk = _Walk(tape, returned, opaque, by_host)
    for effect in effects(tape):
        walk.operation(effect)
    return walk.finish()


def others(tape: Tape) -> int:
    """Returns the bit that stands for what other ranks gave, or an operation that is none of PyTorch's."""
    return 2 << len(tape.inputs)


class _Walk:
    def __init__(
        self, tape: Tape, returned: Mapping[str, Collection[str]], opaque: Collection[str], by_host: bool
    ) -> None:
        self._tape, self._by_host, self._host = tape, by_host, 0
        self._opaque = frozenset(opaque)
        self._random = 1 << len(tape.inputs)
        self._sources: dict[int, int] = {}
        self._computed: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._state: dict[int, str] = {}
        self._data = 0
        self._pieces: dict[int, tuple[Coverage, int, int]] = {}
        self._written: set[int] = set()
        self._flow = Flow()
        self._others = {i for i, node in enumerate(tape.nodes) if "::" in node.op and node.op != RESIZE}
        for index, item in enumerate(tape.inputs):
            known = returned.get(item.name, ()) if item.origin == "free" else ()
            for name in (item.name,) if item.origin in ("state", "dropped") else known:
                self._flow.own[name] = self._flow.own.get(name, 0) | 1 << index
            if item.origin == "dropped":
                continue
            self._sources[item.slot], self._sizes[item.slot] = 1 << index, item.bytes
            if item.origin in ("state", "batch") or known:
                self._data |= 1 << index
            if item.origin == "state":
                self._state[item.slot] = item.name
        self._becomes = {
            slot: self._flow.own[name]
            for slot, name in tape.survivors
            if name in self._opaque and name in self._flow.own and slot not in self._state
        }

    def operation(self, effect: Effect) -> None:
        """Follows one operation."""
        for slot in effect.dies:
            for known in (self._sources, self._computed, self._numbers, self._sizes, self._state, self._pieces):
                known.pop(slot, None)
        for slot, size in effect.grows:
            self._pieces.pop(slot, None)
            self._sizes[slot] = size
        drawn = self._random if effect.drawn else 0
        if effect.op in self._others:
            drawn |= others(self._tape)
        if self._by_host and (effect.drawn or effect.numbers):
            drawn |= self._host
        sources, given, fed, numbers = drawn, drawn, 0, effect.numbers
        for slot in effect.reads:
            sources |= self._sources.get(slot, 0)
            numbers += self._numbers.get(slot, 0)
        if effect.host:
            self._host |= sources
        for slot in effect.given:
            given |= self._sources.get(slot, 0)
            fed |= self._computed.get(slot, 0)
        computed = sources
        if not effect.computes:
            computed = 0
            for slot in effect.reads:
                computed |= self._computed.get(slot, 0)
        numbers = min(numbers, MANY)
        for slot, size in effect.births:
            self._sources[slot] = self._becomes.get(slot, sources)
            self._sizes[slot], self._numbers[slot] = size, numbers
            self._computed[slot] = computed
        for ref in effect.targets:
            if ref[0] in self._state:
                self._flow.given.setdefault(self._state[ref[0]], set()).add(given)
                self._flow.fed.setdefault(self._state[ref[0]], set()).add(fed)
            self._write(effect, ref, sources, given, computed, numbers)

    def _write(self, effect: Effect, ref: Ref, sources: int, given: int, computed: int, numbers: int) -> None:
        slot = ref[0]
        if slot not in self._sources or slot in self._becomes or self._state.get(slot) in self._opaque:
            return
        replaces = effect.replaces == "yes"
        own = self._flow.own[self._state[slot]] if slot in self._state else 0
        if own:
            self._written.add(slot)
            others = sources & self._data & ~own
            if others and (given & own if effect.replaces != "no" else self._sources[slot] & own):
                self._flow.trained.add(self._state[slot])
        if replaces and whole(ref, self._sizes[slot]):
            self._pieces.pop(slot, None)
            self._computed[slot] = computed
            self._replaced(effect.op, slot, sources, numbers)
            return
        self._computed[slot] = self._computed.get(slot, 0) | computed
        if replaces and own and self._piece(effect.op, ref, sources, numbers):
            return
        self._sources[slot] |= sources
        self._numbers[slot] = min(self._numbers.get(slot, 0) + numbers, MANY)

    def _replaced(self, op: int, slot: int, sources: int, numbers: int) -> None:
        self._sources[slot], self._numbers[slot] = sources, numbers
        if slot in self._state and not sources & self._flow.own[self._state[slot]]:
            self._flow.overwrites.append(Overwrite(self._state[slot], op, sources, numbers))

    def _piece(self, op: int, ref: Ref, sources: int, numbers: int) -> bool:
        """Part of a state was replaced: once every byte of it was, so was the state."""
        slot = ref[0]
        done, before, count = self._pieces.get(slot) or (Coverage(self._sizes[slot]), 0, 0)
        before, count = before | sources, min(count + numbers, MANY)
        if done.add(ref):
            self._pieces.pop(slot, None)
            self._replaced(op, slot, before, count)
            return True
        self._pieces[slot] = done, before, count
        return False

    def finish(self) -> Flow:
        """What the step leaves behind."""
        for slot, name in self._state.items():
            if slot in self._written:
                self._flow.reaches[name] = self._sources[slot]
                self._flow.computed[name] = self._computed.get(slot, 0)
        for slot, name in self._tape.survivors:
            sources = self._sources.get(slot, 0)
            self._flow.reaches[name], self._flow.computed[name] = sources, self._computed.get(slot, 0)
            own = self._flow.own.get(name)
            if own is None:
                continue
            self._flow.given.setdefault(name, set()).add(sources)
            self._flow.fed.setdefault(name, set()).add(self._flow.computed[name])
            if self._flow.computed[name] & own and sources & self._data & ~own:
                self._flow.trained.add(name)
            if not sources & own:
                numbers = self._numbers.get(slot, 0)
                self._flow.overwrites.append(Overwrite(name, len(self._tape.nodes), sources, numbers))
        return self._flow
