"""Goes through a forward and a backward pass, and follows where gradients are and what they meet.

Memory is taken whole: a storage holds a gradient, a constant or something else. Where gradients or zeros are put into
parts of something else, as into a bucket, it is something else until they cover it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from weighbridge.execution.recognition.contents import Contents
from weighbridge.execution.recognition.structure import read_by
from weighbridge.execution.recognition.update_range import ONE_NUMBER
from weighbridge.execution.recognition.values import Plan
from weighbridge.program.gradient_paths import floating, is_view, makes_anew, results
from weighbridge.program.written_bytes import Coverage
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.tape import Node, Ref, references
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

Window = tuple[str, int, tuple[tuple[int, int], ...]]
"""Type, offset, and (stride, length) of dimensions, ascending."""


@dataclass(slots=True)
class ByHand:
    """What was found in a backward pass.

    Attributes:
        added: What is added to gradients, and is none.
        foreign: What gradients meet that has nothing to do with where they are.
        numbers: Contents of single numbers that are so.
        exchanged: By collective up to the end of the pass: a number, equal for those that are the same on this rank.
        contributed: Collectives to which this rank contributes gradients.
    """

    added: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    exchanged: dict[int, int] = field(default_factory=dict)
    contributed: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a rank knows of what other ranks do in collectives, by operation of its own tape.

    Attributes:
        same: A number for each collective, different for those that are known to differ on some rank.
        gradients: Collectives to which some rank contributes a gradient.
    """

    same: Mapping[int, int] = field(default_factory=dict)
    gradients: Collection[int] = ()


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


def window(ref: Ref) -> Window:
    """Returns which elements of a storage a reference shows, in whatever order of its dimensions."""
    _, dtype, shape, stride, offset = ref
    return dtype, offset, tuple(sorted((st, n) for n, st in zip(shape, stride, strict=True) if n != 1))


class Walk:
    """Goes through a tape.

    Attributes:
        found: What was found so far.
    """

    def __init__(self, plan: Plan, names: Mapping[int, str], exchange: Exchange) -> None:
        """Prepares for the first operation.

        Args:
            plan: That of the tape.
            names: Slot to name.
            exchange: What is known of what other ranks do.
        """
        self.found = ByHand()
        self._plan, self._tape = plan, plan.tape
        self._contents = Contents(plan, names, exchange.same)
        self.found.exchanged = self._contents.exchanged
        self._exchange = exchange
        self._producers: dict[int, _Place] = {}
        self._places: dict[int, frozenset[int]] = {}
        """By slot with a gradient: of which contents it may be the gradient."""
        self._constant: set[int] = set()
        self._filling: dict[int, Coverage] = {}
        """By slot of something else, into parts of which gradients were put: these parts."""
        self._windows: dict[int, set[Window]] = {}
        """By such a slot: what shows these parts, and nothing else."""
        self._loss: frozenset[int] = frozenset()
        self._ones = 0
        """Gradients of ones that the backward pass itself still has to make."""

    # -- the forward pass ----------------------------------------------------------------------------------------------

    def forward(self, op: int, node: Node, in_forward: bool) -> None:
        """Takes in an operation before the backward pass."""
        if is_view(self._tape, node):
            return
        if is_collective(node):
            sent = frozenset(self._contents.of(self._tape.refs[index][0]) for index in references(node.args[1]))
            made = self._contents.made(op, node)
            if in_forward:  # linear
                own = sent.union(made)
                self._producers.update(dict.fromkeys(made, _Place(own, own, sent, sent)))
            return
        before = self._contents.read(node)
        made = self._contents.made(op, node)
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

    def _small(self, slot: int) -> bool:
        return self._plan.largest.get(slot, 0) <= ONE_NUMBER

    # -- the backward pass ---------------------------------------------------------------------------------------------

    def begin(self, backward: Backward) -> None:
        """Puts gradients where a backward pass begins and where earlier ones left theirs."""
        refs = self._tape.refs
        self._loss = frozenset(self._contents.of(refs[index][0]) for index in backward.losses)
        self._ones = sum(seed is None for seed in backward.seeds)
        for seed in backward.seeds:
            if seed is not None:
                self._places[refs[seed][0]] = self._loss
        for gradient in backward.gradients:
            if gradient.before is not None:
                self._places[refs[gradient.before][0]] = frozenset({self._contents.of(refs[gradient.leaf][0])})

    def back(self, op: int, node: Node) -> None:
        """Takes in an operation of the backward pass."""
        if is_view(self._tape, node):
            return
        if is_collective(node):
            self._through_ranks(op, node)
            return
        written = self._plan.writes.get(op, set())
        base = node.op.partition(".")[0].removesuffix("_")
        if makes_anew(node):
            self._anew(op, node, base, written)
            return
        named = [self._tape.refs[r] for r in self._operands(node)]
        if base == "copy":
            named = named[1:] + named[:1]  # what is written to comes last, and counts if a part of it is left
            if self._filled(op, named) or self._scratched(named):
                self._contents.made(op, node)
                return
        read = [ref[0] for ref in named]
        self._use(op, node, named[: 1 if base == "copy" else None])
        self._refilled(written)
        gradients = [slot for slot in read if slot in self._places]
        others = [slot for slot in read if slot not in self._places and not self._small(slot)]
        foreign = [slot for slot in others if slot not in self._constant]
        if not gradients:
            self._contents.made(op, node)
            if read and all(slot in self._constant for slot in read):
                self._constant |= written
            else:
                self._constant.difference_update(written)
            return
        place = frozenset[int]().union(*(self._places[slot] for slot in gradients))
        self.found.numbers |= {self._contents.of(slot) for slot in read if self._unknown_number(slot, place)}
        if base == "copy" and gradients == read[1:]:  # over a gradient comes something else
            if foreign and not self._whole(op):
                self._note(self.found.added, op, node, foreign)
            elif foreign:
                for slot in written:
                    self._places.pop(slot, None)
            self._contents.made(op, node)
            return
        if foreign and self._adds(base, read):
            self._note(self.found.added, op, node, foreign)
        elif foreign:
            place = self._met(op, node, place, foreign)
        self._contents.made(op, node)
        for slot in written | {self._tape.refs[r][0] for r in results(node)}:
            self._constant.discard(slot)
            self._places[slot] = place

    def _anew(self, op: int, node: Node, base: str, written: set[int]) -> None:
        """Takes in what follows from nothing."""
        constant = node.draw is None
        for slot in written:
            if not self._covered(op, slot):  # a part of something is that still
                continue
            self._forget(slot)
            if constant:
                self._constant.add(slot)
            if base == "ones_like" and self._ones:
                self._ones -= 1
                self._places[slot] = self._loss
        if constant:
            self._fill(op, {slot for slot in written if self._foreign(slot)})
        self._contents.made(op, node)

    def _filled(self, op: int, named: list[Ref]) -> bool:
        """Takes in a gradient that is put into memory of something else, as into a bucket; says whether it is one."""
        if len(named) != 2:
            return False
        (source, *_), (target, *_) = named
        if source not in self._places or target == source or not self._shown(named[0]):
            return False
        if target not in self._filling and (not self._foreign(target) or self._whole(op)):
            return False
        fresh = target not in self._places
        self._places[target] = self._places[source].union(self._places.get(target, ()))
        self._windows.setdefault(target, set()).add(window(named[1]))
        self._fill(op, {target} if fresh else set())
        return True

    def _shown(self, ref: Ref) -> bool:
        """Whether a reference to memory with a gradient shows nothing else: of memory that is being filled, a part."""
        return ref[0] not in self._filling or window(ref) in self._windows.get(ref[0], ())

    def _scratched(self, named: list[Ref]) -> bool:
        """Takes in that memory which is used for this and that is used for something else again."""
        if len(named) != 2 or named[1][0] not in self._filling or named[0][0] in self._places:
            return False
        target = named[1][0]
        if window(named[1]) not in self._windows.get(target, ()):
            return False
        self._windows[target].discard(window(named[1]))
        if not self._windows[target]:
            self._forget(target)
        else:  # it is never covered
            self._filling[target] = Coverage(1 << 62, doubted=True)
        return True

    def _forget(self, slot: int) -> None:
        self._places.pop(slot, None)
        self._filling.pop(slot, None)
        self._windows.pop(slot, None)

    def _fill(self, op: int, begun: set[int]) -> None:
        """Takes in that gradients, or constants, are put into parts of memory of something else.

        Args:
            op: The operation that does it.
            begun: Memory that was something else until now.
        """
        for ref in self._plan.places.get(op, ()):
            slot = ref[0]
            if slot in begun and slot not in self._filling:
                self._filling[slot] = Coverage(self._plan.largest.get(slot, 0), doubted=True)
            if slot in self._filling and self._filling[slot].add(ref):
                del self._filling[slot]
                self._windows.pop(slot, None)
                if slot not in self._places:
                    self._constant.add(slot)

    def _use(self, op: int, node: Node, refs: Iterable[Ref]) -> None:
        """Names memory that is read while gradients cover a part of it, and this is not that part."""
        for ref in refs:
            if ref[0] in self._filling and not self._shown(ref):
                if ref[0] in self._places:
                    self._note(self.found.added, op, node, [ref[0]])
                self._filling.pop(ref[0])
                self._windows.pop(ref[0], None)

    def _refilled(self, slots: Iterable[int]) -> None:
        """Takes in that something else is written to memory that was being cleared."""
        for slot in slots:
            if slot not in self._places:
                self._filling.pop(slot, None)

    def _through_ranks(self, op: int, node: Node) -> None:
        """Takes in a collective of the backward pass."""
        refs = self._tape.refs
        outs, ins = ([refs[index][0] for index in references(side)] for side in node.args[:2])
        self._use(op, node, [refs[index] for index in references(node.args[1])])
        self._refilled(outs)
        given = [slot for slot in ins if slot in self._places]
        if given:
            self.found.contributed.add(op)
        place = frozenset[int]().union(*(self._places[slot] for slot in given)) or self._loss
        foreign = [slot for slot in ins if self._foreign(slot)]
        gradient = bool(given) or op in self._exchange.gradients
        if foreign and gradient:
            self._note(self.found.added, op, node, foreign)
        self._contents.made(op, node)
        for slot in outs if not gradient else ():
            self._places.pop(slot, None)
            self._constant.discard(slot)
        for slot in outs if gradient else ():
            self._constant.discard(slot)
            self._places[slot] = place

    def _covered(self, op: int, slot: int) -> bool:
        """Whether an operation makes a storage, or writes to all of it."""
        return slot in self._plan.births.get(op, ()) or self._contents.covers(slot, self._plan.places.get(op, ()))

    def _whole(self, op: int) -> bool:
        """Whether an operation writes to all of each storage that it writes to."""
        places = self._plan.places.get(op, ())
        return all(self._contents.covers(ref[0], places) for ref in places)

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
        content = [self._contents.of(slot)]
        return not any(self._contents.follow(content, each.knows) for each in self._around(place))

    def _met(self, op: int, node: Node, place: frozenset[int], foreign: list[int]) -> frozenset[int]:
        """Where a gradient is after it met something."""
        contents = [self._contents.of(slot) for slot in foreign]
        found = [each for each in self._around(place) if self._contents.follow(contents, each.knows)]
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
        inputs = self._contents.roots([self._contents.of(slot) for slot in slots])
        what = ", ".join(inputs[:2]) or f"slot {slots[0]}"
        if len(into) < _MOST:
            into.append(f"{what} (operation {op}, {node.op})")
