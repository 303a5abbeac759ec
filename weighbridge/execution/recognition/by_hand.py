"""What a backward pass does that no derivative does.

The numbers of a step confirm a gradient with the data of this step. A hook or a backward pass of one's own can do more
with other data: add a tensor of the batch that is zero here, or multiply by one that is one here. Derivatives are
linear: nothing but gradients is ever added to a gradient. And what a gradient is multiplied by is of the operation of
the forward pass whose derivative is taken: its operands, its results, and what follows from these alone.

Where in the forward pass a gradient is, is followed from the loss on. Operations that are linear, or have one tensor
only, may be passed without a trace. So this finds what has nothing to do with the place, and not every change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weighbridge.execution.recognition.structure import read_by
from weighbridge.execution.recognition.update_range import ONE_NUMBER
from weighbridge.execution.recognition.values import Plan
from weighbridge.program.gradient_paths import floating, is_view, makes_anew, results
from weighbridge.program.written_bytes import Coverage
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.tape import Node
from weighbridge.transcript.training_claims import Backward

_ADDING = frozenset({"add", "sub", "rsub", "cat", "stack", "lerp", "where"})
"""Operations whose operands are added to each other, or stand beside each other in the result."""

_ADDING_TO_FIRST = frozenset(
    {"addmm", "addmv", "addbmm", "baddbmm", "addr", "addcmul", "addcdiv", "index_add", "scatter_add"}
)
"""Operations that add to their first operand what they make of the others."""

_THROUGH_LAST = frozenset({"convolution", "native_layer_norm", "native_batch_norm", "native_group_norm"})
"""Operations with a bias behind the other operands."""

_MOST = 20


@dataclass(slots=True)
class ByHand:
    """What was found in a backward pass.

    Attributes:
        added: What is added to gradients, and is none.
        foreign: What gradients meet that has nothing to do with where they are.
        numbers: How many single numbers that is true of.
    """

    added: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    numbers: int = 0


@dataclass(slots=True)
class _Place:
    """One operation of the forward pass.

    Attributes:
        own: Its operands and results.
        knows: Contents that its derivative may read: these, and those of the operations that made its operands, since
            one operation of autograd may be several of the tape.
        into: Contents of which it makes its results.
        through: Those of them whose gradient follows from that of its results without reading anything large.
    """

    own: frozenset[int]
    knows: frozenset[int]
    into: frozenset[int]
    through: frozenset[int]


def find(plan: Plan, backward: Backward, names: Mapping[int, str]) -> ByHand:
    """Looks for it in a backward pass of a run on one chip.

    Args:
        plan: That of the tape.
        backward: The backward pass.
        names: Slot to name.
    """
    walk = _Walk(plan, names)
    inside = set(range(len(plan.tape.nodes))) - set(plan.forward)
    for op in range(backward.begin):
        walk.forward(op, plan.tape.nodes[op], op not in inside)
    walk.begin(backward)
    for op in range(backward.begin, backward.end):
        walk.back(op, plan.tape.nodes[op])
    walk.found.numbers = len(walk.numbers)
    return walk.found


class _Walk:
    """Goes through a tape; *contents* are numbers for what storages hold, equal for what equal operations make."""

    def __init__(self, plan: Plan, names: Mapping[int, str]) -> None:
        self.found = ByHand()
        self._plan, self._tape, self._names = plan, plan.tape, names
        self._contents: dict[int, int] = {}
        self._count = 0
        self._known: dict[Any, int] = {}
        self._sources: dict[int, tuple[int, ...] | None] = {}
        """By contents: of which others they follow; None of what was there before."""
        self._slots: dict[int, int] = {}
        self._producers: dict[int, _Place] = {}
        self._places: dict[int, frozenset[int]] = {}
        """By slot with a gradient: of which contents it may be the gradient."""
        self._constant: set[int] = set()
        self.numbers: set[int] = set()
        self._loss: frozenset[int] = frozenset()
        self._ones = 0
        """Gradients of ones that the backward pass itself still has to make."""

    # -- the forward pass ----------------------------------------------------------------------------------------------

    def forward(self, op: int, node: Node, in_forward: bool) -> None:
        """Takes in an operation before the backward pass."""
        if is_view(self._tape, node):
            return
        before = self._read(node)
        made = self._made(op, node)
        if not in_forward or makes_anew(node):
            return
        into = frozenset(before[n] for n, r in enumerate(self._operands(node)) if floating(self._tape.refs[r]))
        own = frozenset(before) | frozenset(made)
        beside = [self._producers[content].own for content in before if content in self._producers]
        place = _Place(own, own.union(*beside), into, self._through(node, before))
        for content in made:
            self._producers[content] = place

    def _through(self, node: Node, read: list[int]) -> frozenset[int]:
        base = node.op.partition(".")[0].removesuffix("_")
        named = self._operands(node)
        large = [n for n, r in enumerate(named) if not self._small(self._tape.refs[r][0])]
        if len(large) < 2 or base in _ADDING or base == "copy":
            return frozenset(read)
        if base in _ADDING_TO_FIRST:
            return frozenset(read[:1])
        return frozenset(read[-1:]) if base in _THROUGH_LAST else frozenset()

    def _operands(self, node: Node) -> list[int]:
        return read_by(node)

    def _read(self, node: Node) -> list[int]:
        return [self._content(self._tape.refs[r][0]) for r in self._operands(node)]

    def _content(self, slot: int) -> int:
        if slot not in self._contents:
            self._contents[slot] = self._new(slot, None)
        return self._contents[slot]

    def _new(self, slot: int, sources: tuple[int, ...] | None) -> int:
        self._count += 1
        self._sources[self._count] = sources
        self._slots[self._count] = slot
        return self._count

    def _made(self, op: int, node: Node) -> list[int]:
        """Gives what an operation writes its contents: what equal operations made before, or others."""
        sources = () if makes_anew(node) else tuple(self._read(node))
        called = self._encoded((node.args, tuple(sorted(node.kwargs.items()))))
        written = sorted(self._plan.writes.get(op, ()))
        made = []
        for number, slot in enumerate(written):
            key = node.op, called, number
            if node.draw is not None or is_collective(node):
                content = self._new(slot, () if node.draw is not None else None)
            elif key in self._known:
                content = self._known[key]
            else:
                content = self._known[key] = self._new(slot, sources)
            made.append(content)
        for slot, content in zip(written, made, strict=True):
            self._contents[slot] = content
        return made

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, tuple):
            if len(value) == 2 and value[0] == "t" and type(value[1]) is int:
                slot, *window = self._tape.refs[value[1]]
                return (self._content(slot), *window)
            if len(value) == 2 and value[0] == "v":
                return "v"
            return tuple(self._encoded(each) for each in value)
        return value

    def _small(self, slot: int) -> bool:
        return self._plan.largest.get(slot, 0) <= ONE_NUMBER

    # -- the backward pass ---------------------------------------------------------------------------------------------

    def begin(self, backward: Backward) -> None:
        """Puts gradients where a backward pass begins and where earlier ones left theirs."""
        refs = self._tape.refs
        self._loss = frozenset(self._content(refs[index][0]) for index in backward.losses)
        self._ones = sum(seed is None for seed in backward.seeds)
        for seed in backward.seeds:
            if seed is not None:
                self._places[refs[seed][0]] = self._loss
        for gradient in backward.gradients:
            if gradient.before is not None:
                self._places[refs[gradient.before][0]] = frozenset({self._content(refs[gradient.leaf][0])})

    def back(self, op: int, node: Node) -> None:
        """Takes in an operation of the backward pass."""
        if is_view(self._tape, node) or is_collective(node):
            return
        written = self._plan.writes.get(op, set())
        base = node.op.partition(".")[0].removesuffix("_")
        if makes_anew(node):
            self._made(op, node)
            for slot in written:
                self._places.pop(slot, None)
                if node.draw is None:
                    self._constant.add(slot)
                if base == "ones_like" and self._ones:
                    self._ones -= 1
                    self._places[slot] = self._loss
            return
        read = [self._tape.refs[r][0] for r in self._operands(node)]
        if base == "copy":
            read = read[1:] + read[:1]  # what is written to comes last, and counts if a part of it is left
        gradients = [slot for slot in read if slot in self._places]
        others = [slot for slot in read if slot not in self._places and not self._small(slot)]
        foreign = [slot for slot in others if slot not in self._constant]
        if not gradients:
            self._made(op, node)
            if read and all(slot in self._constant for slot in read):
                self._constant |= written
            else:
                self._constant.difference_update(written)
            return
        if base == "copy" and gradients == read[1:]:  # over a gradient comes something else
            if foreign and not self._whole(op):
                self._note(self.found.added, op, node, foreign)
            elif foreign:
                for slot in written:
                    self._places.pop(slot, None)
            self._made(op, node)
            return
        place = frozenset[int]().union(*(self._places[slot] for slot in gradients))
        self.numbers |= {self._content(slot) for slot in read if self._unknown_number(slot, place)}
        if foreign and self._adds(base, read):
            self._note(self.found.added, op, node, foreign)
        elif foreign:
            place = self._met(op, node, place, foreign)
        self._made(op, node)
        for slot in written | {self._tape.refs[r][0] for r in results(node)}:
            self._constant.discard(slot)
            self._places[slot] = place

    def _whole(self, op: int) -> bool:
        """Whether an operation writes to all of a storage."""
        return all(Coverage(self._plan.largest.get(ref[0], 0)).add(ref) for ref in self._plan.places.get(op, ()))

    def _adds(self, base: str, read: list[int]) -> bool:
        """Whether an operation adds something to a gradient that is none."""
        if base == "where":
            read = read[1:]
        if base in _ADDING:
            return any(self._foreign(slot) for slot in read) and any(slot in self._places for slot in read)
        if base in _ADDING_TO_FIRST:
            product = any(slot in self._places for slot in read[1:])
            return self._foreign(read[0]) if product else read[0] in self._places
        return False

    def _foreign(self, slot: int) -> bool:
        return slot not in self._places and slot not in self._constant and not self._small(slot)

    def _unknown_number(self, slot: int, place: frozenset[int]) -> bool:
        if not self._small(slot) or slot in self._places or slot in self._constant:
            return False
        content = [self._content(slot)]
        return not any(self._follows(content, each.knows) for each in self._around(place))

    def _follows(self, contents: list[int], known: frozenset[int]) -> bool:
        """Whether contents follow from known ones, constants and chance alone."""
        waiting, seen = list(contents), set(contents)
        while waiting:
            content = waiting.pop()
            if content in known:
                continue
            sources = self._sources[content]
            if sources is None:
                return False
            waiting += [each for each in sources if each not in seen]
            seen.update(sources)
        return True

    def _met(self, op: int, node: Node, place: frozenset[int], foreign: list[int]) -> frozenset[int]:
        """Where a gradient is after it met something."""
        contents = [self._content(slot) for slot in foreign]
        found = [each for each in self._around(place) if self._follows(contents, each.knows)]
        if not found:
            self._note(self.found.foreign, op, node, foreign)
            return place
        return frozenset[int]().union(place, *(each.into for each in found))

    def _around(self, place: frozenset[int]) -> list[_Place]:
        """The operations whose derivative may come next."""
        waiting, seen, found = list(place), set(place), list[_Place]()
        while waiting:
            producer = self._producers.get(waiting.pop())
            if producer is None:
                continue
            found.append(producer)
            further = producer.through - seen
            seen |= further
            waiting += further
        return found

    def _note(self, into: list[str], op: int, node: Node, slots: list[int]) -> None:
        inputs = self._roots([self._content(slot) for slot in slots])
        what = ", ".join(inputs[:2]) or f"slot {slots[0]}"
        if len(into) < _MOST:
            into.append(f"{what} (operation {op}, {node.op})")

    def _roots(self, contents: list[int]) -> list[str]:
        """Names of the inputs from which contents follow, those of the step's batch first."""
        waiting, seen, names = list(contents), set(contents), set[str]()
        while waiting:
            content = waiting.pop()
            sources = self._sources[content]
            if sources is None and (name := self._names.get(self._slots[content])):
                names.add(name)
            waiting += [each for each in sources or () if each not in seen]
            seen.update(sources or ())
        batch = {item.name for item in self._tape.inputs if item.origin in ("batch", "free")}
        return sorted(names, key=lambda name: (name not in batch, name))
