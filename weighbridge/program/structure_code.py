"""The structure of programs in bits: how long a description of each tape is, given the tapes before it.

A tape chooses: its operations, their operands and references, which state they are, what survives. One that writes
`cat` over references into a table of all bytes spells whatever it likes. So the length of a tape's description is
counted. The description is a prefix code: a reader who knows the tapes before can rebuild the tape from it, so of all
tapes at most 2^n have a description of n bits or less, and no way to write a tape brings in more bits than are
counted. What cannot reach values is left out: module paths, what state is called (a name stands for "the third that
was made"), when storages die that are no state, and the order of tables. At which counters generators draw is counted
by `generator_starts`, in a channel whose budget is small.

Repetition is cheap, because programs repeat themselves: layers, parameters, and tapes that differ in little. An
operation is compared with an earlier one, its *model*: the successor of the last one's model while models hold, else
what followed the most recent place that looked the same. The *shape* of an operation is all of it but which storages it
names. Storages are compared with the model's by rules, and the first that holds is named. What no rule gives is spelled
out. Shapes are taken from operations in `operation_shapes`. The code in full: docs/formats/chosen-bits.md.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

from weighbridge.numerics.rule_table import RULES
from weighbridge.program.adaptive_code import AdaptiveCode, integer, natural, text
from weighbridge.program.operation_shapes import Shape, Shapes, ShapesOfTape, Site, Token
from weighbridge.program.state_names import Names, is_relative, space_of
from weighbridge.transcript.tape import DTYPES, MEMORY_FORMATS, Input, Node, Tape, extent

OPERATION_BITS = 13.0
"""Of an operation's name: a flag, and its index in the table of rules, which has room for 4,096."""

WORD_BITS = 7.0
"""Of a text that operands consist of: a flag, and its index in the list of `WORDS`, which has room for 64."""

WORDS = (
    "d", "dev", "l", "lay", "m", "s", *DTYPES, *MEMORY_FORMATS, "alpha", "beta", "bias", "copy", "device", "dim",
    "dtype", "generator", "implicit", "keepdim", "layout", "mean", "memory_format", "none", "non_blocking",
    "output_mask", "pin_memory", "reduce", "reduction", "rounding_mode", "scale", "self", "sum", "tanh", "value",
)  # fmt: skip
"""Texts that are the terms of operands, and no choice of a program's author."""

_WORDS = frozenset(WORDS)
_RULES = log2(6)
_START = -1
_END = ""


@dataclass(frozen=True, slots=True)
class Description:
    """How long the description of one tape is.

    Attributes:
        bits: Its length.
        op: The operation that brought most; -1 if there is none.
        op_bits: What it brought.
        sites: For each position of the values vector that an operation uses: where it is used first.
    """

    bits: int
    op: int
    op_bits: float
    sites: dict[int, Site]


class _Past(NamedTuple):
    """An operation that was described: its shape, the storages it named, how far back, and in which tape."""

    shape: int
    slots: tuple[int, ...]
    back: tuple[int, ...]
    tape: int


class StructureCode:
    """Describes one tape after another."""

    def __init__(self) -> None:
        self.code = AdaptiveCode()
        self.names = Names(self.code)
        self.shapes = Shapes()
        self.past: list[_Past] = []
        self.after: dict[Hashable, int] = {}
        self.latest: dict[str, int] = {}
        self.entered: dict[tuple[int, int], str] = {}
        self.tapes = 0

    def add(self, tape: Tape) -> Description:
        """Describes a tape, given all that were added before it.

        Args:
            tape: A tape that `Tape.decode` accepted.

        Raises:
            TapeError: All tapes together are too large to look at (`tape.too_large`).
        """
        described = _Walk(self, tape).run()
        self.tapes += 1
        return described


class _Walk:
    """Describes one tape, from its first operation to its last, and then what is not in operations."""

    def __init__(self, whole: StructureCode, tape: Tape) -> None:
        self._whole, self._code, self._tape = whole, whole.code, tape
        self._shapes = ShapesOfTape(whole.shapes, tape)
        self._looks = whole.shapes.looks
        self._inputs = {item.slot: item for item in tape.inputs}
        self._known: set[int] = set()
        self._alike: dict[int, tuple[int, int]] = {}
        self._top = -1
        self._map: dict[tuple[int, int], int] = {}
        self._follow: dict[int, int] = {}
        self._shift = 0
        self._last = _START
        self._rule = ""
        self._context = (_START, _START, _START)
        self._op = ""
        self._hits = self._expectations = 0
        self._model: int | None = None
        self._spare: int | None = None

    def run(self) -> Description:
        """Describes it."""
        bits, most, most_at = self._whole.names.begin(self._tape), 0.0, -1
        for index, node in enumerate(self._tape.nodes):
            added = self._operation(self._shapes.next(node), node)
            bits += added
            if added > most:
                most, most_at = added, index
        bits += self._operation(Shape(_END), None)
        self._shapes.remember()
        bits += self._code.bits(self._tail(), (("tail",),), self._spelled_tail)
        return Description(math.ceil(bits), most_at, most, self._shapes.sites)

    # How long its description is.

    def _operation(self, shape: Shape, node: Node | None) -> float:
        whole = self._whole
        number = whole.shapes.number(shape)
        near, far = self._context[-1:], self._context
        at = self._model
        if at is None:
            at = whole.after.get(far, self._spare if self._spare is not None else whole.after.get(near))
        self._spare = None if at is None else at + 1
        model = None if at is None else whole.past[at]
        bits, hit = 0.0, False
        if model is not None:
            hit = model.shape == number
            bits += self._code.bits(hit, (("hit", self._hits),), 1.0)
        if not hit:
            bits += self._spelled_operation(shape, model)
            if model is None or self._looks[model.shape][0] != shape.op:
                latest = whole.latest.get(shape.op)
                model, at = (None, None) if latest is None else (whole.past[latest], None)
            bits += self._spelled_shape(shape, () if model is None else self._looks[model.shape])
        bits += self._storages(shape, number, model, hit)
        here = len(whole.past) - 1
        whole.after[far] = whole.after[near] = whole.latest[shape.op] = here
        self._model = None
        if at is not None and model is not None and len(model.slots) == len(shape.slots):
            self._model = at + 1
        self._context, self._op = (*far[1:], number), shape.op
        self._hits = (self._hits << 1 | hit) & 7
        return bits if node is None else bits + self._entered(shape, node)

    def _spelled_operation(self, shape: Shape, model: _Past | None) -> float:
        """The bits of which operation it is, given its model's and the one before it."""
        op = None if model is None else self._looks[model.shape][0]
        contexts = (("op", op, self._op), ("op", self._op), ("op",))
        return self._code.bits(shape.op, contexts, lambda: _operation_bits(shape.op))

    def _spelled_shape(self, shape: Shape, model: tuple[Any, ...]) -> float:
        """The bits of a shape that is not its model's: part for part, given the model's part in the same place."""
        op, code, tape, bits = shape.op, self._code, self._whole.tapes, 0.0
        before: Token = ()
        for place, token in enumerate(shape.tokens, 1):
            contexts: tuple[Hashable, ...] = (
                ("part", op, place, before),
                ("part", op, place),
                ("kind", before[:1]),
                ("any",),
            )
            if place < len(model):
                contexts = ("turned", tape, model[place]), *contexts
            bits += code.bits(token, contexts, lambda token=token: self._spelled(token))  # type: ignore[misc]
            before = token
        return bits

    def _spelled(self, token: Token) -> float:
        """The bits of a part that is known nowhere."""
        kind = token[0]
        bits = self._code.bits(kind, (("kinds",),), 4.0)
        if kind == "view":
            return bits + self._spelled_view(token[1])
        if kind == "text":
            return bits + (WORD_BITS if token[1] in _WORDS else 1.0 + text(token[1]))
        return bits + (integer(int(token[1])) if len(token) > 1 else 0.0)

    def _spelled_view(self, number: int) -> float:
        """The bits of a reference without its storage: type, size, strides, offset."""
        dtype, size, stride, offset = self._whole.shapes.views[number]
        code = self._code
        bits = code.bits(dtype, (("dtype",),), 4.0) + code.bits(len(size), (("dimensions",),), 5.0 + 1.0)
        packed = 1
        for n, s in zip(reversed(size), reversed(stride), strict=True):
            bits += code.bits(n, (("size",),), lambda n=n: natural(n))  # type: ignore[misc]
            bits += code.bits(s == packed, (("packed",),), 1.0)
            if s != packed:
                bits += code.bits(s, (("stride",),), lambda s=s: natural(s))  # type: ignore[misc]
            packed = n * s
        return bits + code.bits(offset, (("offset",),), lambda: natural(offset))

    def _storages(self, shape: Shape, number: int, model: _Past | None, hit: bool) -> float:
        """The bits of which storages an operation names."""
        bits, expected = 0.0, False
        if model is not None and len(model.slots) == len(shape.slots):
            expected = self._expected(shape.slots, model)
            bits += self._code.bits(expected, (("storages", self._expectations, hit),), 1.0)
            self._expectations = (self._expectations << 1 | expected) & 7
        back = []
        for place, slot in enumerate(shape.slots):
            theirs = model.slots[place] if model is not None and place < len(model.slots) else None
            back.append(self._top - slot)
            if not expected:
                alike = None if theirs is None else model
                bits += self._storage(slot, place, alike, number if hit else shape.op)
            self._follow[self._last] = slot
            self._last = slot
            self._top = max(self._top, slot)
            if model is not None and theirs is not None:
                self._map[model.tape, theirs] = slot
                self._alike.setdefault(slot, (model.tape, theirs))
        self._whole.past.append(_Past(number, tuple(shape.slots), tuple(back), self._whole.tapes))
        return bits

    def _expected(self, slots: list[int], model: _Past) -> bool:
        """Tells whether all storages are what the model's became before, or those as far back as they are there."""
        top = self._top
        for slot, theirs, back in zip(slots, model.slots, model.back, strict=True):
            if self._map.get((model.tape, theirs), top - back) != slot:
                return False
            top = max(top, slot)
        return True

    def _storage(self, slot: int, place: int, model: _Past | None, where: Hashable) -> float:
        theirs = None if model is None else model.slots[place]
        rule = "spelled"
        if model is not None and theirs is not None:
            if self._map.get((model.tape, theirs)) == slot:
                rule = "map"
            elif self._top - model.back[place] == slot:
                rule = "near"
            elif theirs + self._shift == slot:
                rule = "shift"
        if rule == "spelled" and self._follow.get(self._last) == slot:
            rule = "follow"
        if slot > self._top + 1:
            rule = "beyond"
        bits = self._code.bits(rule, (("rule", where, place), ("rule", self._rule)), _RULES)
        if rule == "spelled":
            back = self._top - slot
            bits += self._code.bits(back, (("back", where, place),), log2(self._top + 2))
        elif rule == "beyond":
            bits += self._code.bits(slot - self._top, (), lambda: natural(slot - self._top))
        if theirs is not None and rule != "near":
            self._shift = slot - theirs
        self._rule = rule
        return bits

    # What enters and what is left behind.

    def _entered(self, shape: Shape, node: Node) -> float:
        """The bits of the inputs that an operation is the first to name."""
        bits = 0.0
        self._known.update(slot for slot, _ in node.births)
        for slot in shape.slots:
            if slot not in self._known:
                self._known.add(slot)
                bits += self._input(self._inputs[slot])
        return bits

    def _input(self, item: Input) -> float:
        code, whole, first = self._code, self._whole, self._shapes.first.get(item.slot)
        bits = code.bits(item.origin, (("origin",),), 2.0)
        whole_ref = first is not None and extent(self._tape.refs[first]) == item.bytes
        bits += code.bits(whole_ref, (("whole",),), 1.0)
        if not whole_ref:
            bits += code.bits(item.bytes, (("bytes",),), lambda: natural(item.bytes))
        alike = self._alike.get(item.slot)
        model = None if alike is None else whole.entered.get(alike)
        whole.entered[whole.tapes, item.slot] = item.name
        return bits + whole.names.entering(space_of(item.origin), item.name, model)

    def _tail(self) -> Hashable:
        tape, freed = self._tape, {slot for _, slot in self._tape.frees}
        gone = tuple(sorted(i.slot for i in tape.inputs if i.origin == "state" and i.slot in freed))
        unused = tuple((i.slot, i.bytes, i.origin, i.name) for i in tape.inputs if i.slot not in self._known)
        return tuple(tape.survivors), tuple(tape.batch_views), unused, gone, tape.values, tape.hosts

    def _spelled_tail(self) -> float:
        """The bits of what is in no operation: what survives, where the batch is, what enters unused, what is freed."""
        tape, code, names = self._tape, self._code, self._whole.names
        unused = [item for item in tape.inputs if item.slot not in self._known]
        counts = len(tape.survivors), len(tape.batch_views), len(unused)
        bits = math.fsum(code.bits(n, (), natural(n)) for n in counts)
        gap = last = 0
        for slot, name in tape.survivors:
            bits += code.bits(slot - last, (("gap", gap), ("gap",)), lambda: integer(slot - last))  # noqa: B023
            gap, last = slot - last, slot
            bits += names.surviving(slot, name)
        last = 0
        for path, ref in tape.batch_views:
            bits += names.entering("view", path, None) + code.bits(ref[0] - last, (), integer(ref[0] - last))
            token, last = ("view", self._whole.shapes.view(ref)), ref[0]
            bits += code.bits(token, (("kind", ("view",)),), lambda: self._spelled(token))  # noqa: B023
        for item in unused:
            bits += code.bits(item.slot, (), natural(item.slot)) + self._input(item)
        freed = {slot for _, slot in tape.frees}
        for item in tape.inputs:
            if item.origin == "state":
                bits += code.bits(item.slot in freed, (("freed", is_relative(item.name)),), 1.0)
        bits += code.bits(tape.values - self._shapes.values, (), integer(tape.values - self._shapes.values))
        return bits + code.bits(tape.hosts, (("hosts",),), lambda: natural(tape.hosts))


def _operation_bits(name: str) -> float:
    known = name in RULES or name == _END
    return OPERATION_BITS if known else 1.0 + text(name)
