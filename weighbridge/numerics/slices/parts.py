"""What makes a part of an operation's results: boxes of its operands, and settings that are others than the whole's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weighbridge.numerics.arrays.windows import Box, Shape
from weighbridge.numerics.bounds import gamma
from weighbridge.numerics.schemas import Op, argument_names

Tensor = torch.Tensor


@dataclass(frozen=True)
class Rows:
    """Rows of an operand that are read because another operand, the index, names them.

    Attributes:
        operand: Whose rows.
        dim: The dimension that counts them.
        index: The operand that names them.
        count: How many rows the index may name.
        within: None if the values of the index are the rows. Else rows are the places of the index at which it has
            one of these values (first, and last + 1): they are added up in that part of the result.
    """

    operand: str
    dim: int
    index: str
    count: int
    within: tuple[int, int] | None = None


@dataclass(frozen=True)
class Slice:
    """What makes a part of the results.

    Attributes:
        boxes: Of each tensor that is read, by name.
        makes: Of each result that is made, by its place among those that the operation returns.
        zeros: How many zeros stand before and after such a box, in each dimension.
        settings: Plain operands that are others than those of the whole.
        rows: Which rows of an operand are read, if another one names them.
        blank: Tensors of which only the shape counts, by name: zeros stand for them.
        counted: (operand, elements of the whole) if the bound grows with the elements of that operand.
        worst: The operand, all of whose rows the bound reads for its worst one: the part is made with that row too.
    """

    boxes: dict[str, Box]
    makes: dict[int, Box] = field(default_factory=dict)
    zeros: dict[str, Box] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    rows: Rows | None = None
    blank: dict[str, Box] = field(default_factory=dict)
    counted: tuple[str, int] | None = None
    worst: str | None = None

    def operands(
        self, op: Op, args: Sequence[Any], kwargs: Mapping[str, Any], parts: Mapping[str, Tensor]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Returns what the operation is called with.

        Args:
            op: The overload.
            args: Positional operands of the whole.
            kwargs: Keyword operands of the whole.
            parts: Of the tensors, what the boxes hold.
        """
        given = self.settings | {name: _padded(part, self.zeros.get(name)) for name, part in parts.items()}
        names = argument_names(op)[0][: len(args)]
        positional = [given.get(name, value) for name, value in zip(names, args, strict=True)]
        return positional, {**kwargs, **{name: value for name, value in given.items() if name not in names}}

    def growth(self, parts: Mapping[str, Tensor]) -> float:
        """Returns by what the bound of the part is multiplied, so that it counts what the whole counts.

        Args:
            parts: As for `operands`.
        """
        if self.counted is None:
            return 1.0
        name, whole = self.counted
        return gamma(whole + 4) / gamma(parts[name].numel() + 4)


def _padded(part: Tensor, zeros: Box | None) -> Tensor:
    sides = [side for each in reversed(zeros or ()) for side in each]
    return torch.nn.functional.pad(part, sides) if any(sides) else part


def enclosing(shape: Shape, start: int, stop: int) -> Box:
    """Returns the least box, in this sense, that holds elements `start` to `stop` of a row-major tensor.

    It is one index wide in the first dimensions, as long as the first and the last of these elements agree, and whole
    in those behind the first in which they differ.
    """
    box: list[tuple[int, int]] = []
    first, last = _index(shape, start), _index(shape, stop - 1)
    apart = False
    for size, low, high in zip(shape, first, last, strict=True):
        box.append((0, size) if apart else (low, high + 1))
        apart |= low != high
    return tuple(box)


def at_borders(shape: Shape, start: int, stop: int) -> list[tuple[int, int]]:
    """Returns elements `start` to `stop` of a row-major tensor as the ranges that are made one by one.

    The box of elements that lie in two rows, matrices or larger parts of the tensor, the end of one and the beginning
    of the next, would have all of both. So there are two ranges then, one on either side. If a third part lies between
    them, it is among the elements as a whole: no more than these are in each of the three, and there is one range.
    """
    inner = [math.prod(shape[d + 1 :]) for d in range(len(shape) - 1)]  # elements of a part, the largest parts first
    size = next((each for each in inner if start // each != (stop - 1) // each), 0)
    if not size or (stop - 1) // size - start // size > 1:
        return [(start, stop)]
    border = (stop - 1) // size * size
    return [(start, border), (border, stop)]


def all_of(shape: Shape) -> Box:
    """Returns the box that is the whole of a shape."""
    return tuple((0, int(size)) for size in shape)


def _index(shape: Shape, at: int) -> list[int]:
    found = []
    for size in reversed(shape):
        found.append(at % size)
        at //= size
    return found[::-1]
