"""What operations look like, which `structure_code` describes: the shape of an operation is all of it but its storages.

Operations are alike if they differ only in which storages they name. So an operation is taken apart into *tokens*, one
for each part of its operands, results and births, and the storages that it names, in order. A reference is told by how
its storage is viewed: as it was last, as an operand before it in the same operation, or in a way of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weighbridge.core.errors import TapeError
from weighbridge.program.state_names import space_of
from weighbridge.transcript.tape import Node, Ref, Tape, extent

MAX_TOKENS = 1 << 25
"""Most parts of operations, in all tapes of a transcript, that are looked at."""

Token = tuple[Any, ...]
View = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""A reference without its storage: type, size, stride, offset."""
Site = tuple[str, int]
"""Where a program uses a value: the operation's name, and which part of its shape."""


@dataclass(slots=True)
class Shape:
    """What one operation looks like.

    Attributes:
        op: Its name.
        tokens: Its parts.
        slots: The storages that it names.
        views: How its references view them, by the numbers of `Shapes.view`.
    """

    op: str
    tokens: list[Token] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    views: list[int] = field(default_factory=list)


class Shapes:
    """The views and shapes of all tapes of a transcript, by number.

    Attributes:
        views: By number.
        looks: Shapes by number: the operation's name, then its tokens.
        viewed: How what has a name was viewed last, by space and name.
    """

    def __init__(self) -> None:
        self.views: list[View] = []
        self.looks: list[tuple[Any, ...]] = []
        self.viewed: dict[tuple[str, str], int] = {}
        self._views: dict[View, int] = {}
        self._looks: dict[tuple[Any, ...], int] = {}
        self._left = MAX_TOKENS

    def view(self, ref: Ref) -> int:
        """Returns the number of a reference without its storage."""
        number = self._views.setdefault(ref[1:], len(self.views))
        if number == len(self.views):
            self.views.append(ref[1:])
        return number

    def number(self, shape: Shape) -> int:
        """Returns the number of a shape."""
        look = (shape.op, *shape.tokens)
        number = self._looks.setdefault(look, len(self.looks))
        if number == len(self.looks):
            self.looks.append(look)
        return number

    def spend(self, tokens: int) -> None:
        """Counts what was looked at.

        Raises:
            TapeError: All tapes together are too large to look at (`tape.too_large`).
        """
        self._left -= tokens
        if self._left < 0:
            raise TapeError(
                f"the programs have more than {MAX_TOKENS} parts, too many to describe; record fewer programs",
                code="tape.too_large",
            )


class ShapesOfTape:
    """Takes the operations of one tape apart, in order.

    Attributes:
        first: For each storage the reference that names it first.
        sites: For each position of the values vector that an operation uses: where it is used first.
        values: How many values the operations so far use: one more than the last position.
    """

    def __init__(self, shapes: Shapes, tape: Tape) -> None:
        self.first: dict[int, int] = {}
        self.sites: dict[int, Site] = {}
        self.values = 0
        self._shapes, self._tape = shapes, tape
        self._views = [shapes.view(ref) for ref in tape.refs]
        self._seen: dict[int, int | None] = {
            item.slot: shapes.viewed.get((space_of(item.origin), item.name)) for item in tape.inputs
        }

    def next(self, node: Node) -> Shape:
        """Returns the shape of the tape's next operation.

        Raises:
            TapeError: All tapes together are too large to look at (`tape.too_large`).
        """
        shape = Shape(node.op)
        tokens, slots = shape.tokens, shape.slots
        self._part(node.args, shape)
        tokens.append(("count", len(node.kwargs)))
        for name, operand in node.kwargs.items():
            tokens.append(("text", name))
            self._part(operand, shape)
        tokens.append(("count", len(node.outputs)))
        sizes: dict[int, int] = {}
        for output in node.outputs:
            if output is None:
                tokens.append(("none",))
            else:
                self._reference(output, shape)
                ref = self._tape.refs[output]
                sizes.setdefault(ref[0], extent(ref))
        tokens.append(("count", len(node.births)))
        for slot, size in node.births:
            tokens.append(("whole",) if sizes.get(slot) == size else ("number", size))
            slots.append(slot)
        if node.draw is None:
            tokens.append(("none",))
        else:
            tokens.append(("draw", node.draw[0]))  # where it draws is charged in the channel `generators`
        self._shapes.spend(len(tokens) + len(slots))
        return shape

    def remember(self) -> None:
        """Notes how what has a name was viewed last, for the tapes after this one."""
        viewed = self._shapes.viewed
        for item in self._tape.inputs:
            if (view := self._seen.get(item.slot)) is not None:
                viewed[space_of(item.origin), item.name] = view
        for slot, name in self._tape.survivors:
            if (view := self._seen.get(slot)) is not None:
                viewed["state", name] = viewed["state", f"~1/{slot}"] = view

    def _reference(self, index: int, shape: Shape) -> None:
        """Notes a storage, and how it is viewed: as it was last, as an operand before it, or in a way to be told."""
        slot, view = self._tape.refs[index][0], self._views[index]
        if self._seen.get(slot) == view:
            shape.tokens.append(("same",))
        elif view in shape.views:
            shape.tokens.append(("like", shape.views.index(view)))
        else:
            shape.tokens.append(("view", view))
        self._seen[slot] = view
        self.first.setdefault(slot, index)
        shape.slots.append(slot)
        shape.views.append(view)

    def _part(self, value: Any, shape: Shape) -> None:
        """Takes an encoded operand apart."""
        tokens = shape.tokens
        if isinstance(value, tuple):
            if len(value) == 2 and type(value[1]) is int:
                if value[0] == "t":
                    self._reference(value[1], shape)
                    return
                if value[0] == "v":
                    self.sites.setdefault(value[1], (shape.op, len(tokens)))
                    tokens.append(("value", value[1] - self.values))
                    self.values = max(self.values, value[1] + 1)
                    return
            tokens.append(("count", len(value)))
            for each in value:
                self._part(each, shape)
        elif value is None:
            tokens.append(("none",))
        elif isinstance(value, bool):
            tokens.append(("flag", value))
        elif isinstance(value, int):
            tokens.append(("number", value))
        else:
            tokens.append(("text", value))
