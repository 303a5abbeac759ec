"""One operation of a straight-line program, called as the Executor calls it: its rule decides how it is evaluated.

What the tape alone says is found once: the overload, its rule, where operands come from, and which storages it makes.
"""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.results import take
from weighbridge.execution.straight_line.frame import Frame
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rule_table import find, settled
from weighbridge.numerics.schemas import bind, mutated
from weighbridge.program.operands import UNFIT, check_indices, has_indices, resolve, unfit
from weighbridge.transcript.tape import Node, Tape

Tensor = torch.Tensor


class Prepared:
    """Operands of an operation, of which only tensors and numbers are still to be filled in."""

    __slots__ = ("_args", "_kwargs", "_places")

    def __init__(self, node: Node) -> None:
        self._args, self._kwargs = list(node.args), dict(node.kwargs)
        everywhere: list[tuple[int | str, Any]] = [*enumerate(node.args), *node.kwargs.items()]
        self._places = [(place, value) for place, value in everywhere if isinstance(value, tuple)]

    def __call__(self, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        """Returns positional and keyword operands."""
        args, kwargs = self._args.copy(), self._kwargs.copy()
        decode = frame.operands.decode
        for place, value in self._places:
            if type(place) is int:
                args[place] = decode(value)
            else:
                kwargs[place] = decode(value)  # type: ignore[index]
        return args, kwargs


class General:
    """An operation that was checked and executed before, with other content of the same shapes and types."""

    __slots__ = ("_births", "_changed", "_checks", "_number", "_op", "_operands", "_refs", "_rule", "_strides", "node")

    def __init__(self, number: int, node: Node, tape: Tape) -> None:
        self.node, self._number = node, number
        self._op = resolve(node.op)
        self._operands = Prepared(node)
        self._rule = settled(self._op)
        self._refs = [None if o is None else tape.refs[o] for o in node.outputs]
        self._strides = [None if ref is None else ref[3] for ref in self._refs]
        self._births, self._changed = dict(node.births), mutated(self._op)
        self._checks = has_indices(self._op)

    def __call__(self, frame: Frame) -> None:
        """Executes the operation.

        Raises:
            WeighbridgeError: As the Executor does.
        """
        number, node, op, context = self._number, self.node, self._op, frame.context
        context.begin(number, node)
        args, kwargs = self._operands(frame)
        bound = bind(op, args, kwargs)
        rule = self._rule or find(op, bound)
        try:
            if self._checks:
                check_indices(op, bound)
            out = evaluate(op, args, kwargs, context, rule=rule, bound=bound, layout=self._layout)
        except WeighbridgeError:
            raise
        except UNFIT as error:
            raise unfit(f"operation {number} ({node.op})", error) from None
        changed = {id(bound[name]) for name in self._changed}
        if args and out is args[0] and changed == {id(out)} and not self._births and len(self._refs) == 1:
            return  # changed where it is, which is what its reference said when it was executed first
        take(
            out, self._refs, self._births, [*args, *kwargs.values()], changed, frame.slots, frame.device,
            f"{number} ({node.op})",
        )  # fmt: skip

    def _layout(self, place: int) -> tuple[int, ...] | None:
        return self._strides[place] if place < len(self._strides) else None


class Exchanged:
    """A collective, performed by the context (`context.collective`) when all operations before it are complete."""

    __slots__ = ("_number", "_operands", "node")

    def __init__(self, number: int, node: Node) -> None:
        self.node, self._number, self._operands = node, number, Prepared(node)

    def __call__(self, frame: Frame) -> None:
        """Performs it.

        Raises:
            WeighbridgeError: As what performs it does.
        """
        frame.context.begin(self._number, self.node)
        (outs, ins, *_), _ = self._operands(frame)
        frame.context.collective(outs, ins)


class Release:
    """Lets go of storages that died."""

    __slots__ = ("_slots",)

    def __init__(self, slots: list[int]) -> None:
        self._slots = slots

    def __call__(self, frame: Frame) -> None:
        """Lets go of them."""
        for slot in self._slots:
            frame.release(slot)


class Reached:
    """A moment between two operations at which the storages that live are those that the tape has there."""

    __slots__ = ("_complete",)

    def __init__(self, complete: int) -> None:
        self._complete = complete

    def __call__(self, frame: Frame) -> None:
        """Reports it."""
        if frame.reached is not None:
            frame.reached(self._complete)
