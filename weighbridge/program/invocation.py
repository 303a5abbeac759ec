"""How an operation on a tape is called, and whether it can be.

A replay asks this before it runs an operation. A Recorder asks it of every new tape: a Prover should not learn from a
Verifier that an honest transcript is malformed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from weighbridge.core.errors import RefusedOperationError, TapeError, UnknownOperationError
from weighbridge.numerics.rule_table import Kind, Rule, base_name, find
from weighbridge.numerics.schemas import Op, argument_names, bind, needed
from weighbridge.program.operands import SHAPED_BY_VALUES, UNFIT, Operands, check_shapes, check_sizes, resolve, unfit
from weighbridge.transcript.tape import DTYPES, RESIZE, Node, Ref, Tape

Tensor = torch.Tensor


class Invocation(NamedTuple):
    """One operation with its operands.

    Attributes:
        op: The overload.
        args: Positional operands.
        kwargs: Keyword operands.
        bound: All of them by name, with the defaults.
        rule: The rule for such operands.
        refs: The tensors that come out, as the tape says; None for what is no tensor.
    """

    op: Op
    args: list[Any]
    kwargs: dict[str, Any]
    bound: dict[str, Any]
    rule: Rule
    refs: list[Ref | None]


def invocation(node: Node, number: int, tape: Tape, operands: Operands) -> Invocation:
    """Decodes an operation.

    Args:
        node: The operation.
        number: Its place on the tape, for messages.
        tape: Where it stands.
        operands: Decodes what it is called with.

    Raises:
        TapeError: It may not stand on a tape, or its operands do not fit its schema.
        RefusedOperationError: There is a rule against such operands.
        UnknownOperationError: There is no rule for such operands.
    """
    op = resolve(node.op)
    args = [operands.decode(a) for a in node.args]
    kwargs = {k: operands.decode(v) for k, v in node.kwargs.items()}
    try:
        bound = bind(op, args, kwargs)
        names = argument_names(op)[0]
        fits = len(args) <= len(names) and all([name in names[len(args) :] for name in kwargs])
    except TypeError:
        fits = False
    if not fits:
        raise TapeError(f"operation {number} ({node.op}) has operands that do not fit it")
    # A view is not run, so nothing else would miss what it lacks.
    lacking = [name for name in needed(op) if name not in kwargs and name in names[len(args) :]]
    if lacking:
        raise TapeError(f"operation {number} ({node.op}) lacks its operand {lacking[0]!r}")
    refs = [None if o is None else tape.refs[o] for o in node.outputs]
    return Invocation(op, args, kwargs, bound, find(op, bound), refs)


class WithoutMemory(Operands):
    """Operands that have shapes and types only."""

    def _tensor(self, index: int) -> Tensor:
        _, dtype, size, stride, _ = self._tape.refs[index]
        return torch.empty_strided(size, stride, dtype=DTYPES[dtype], device="meta")


class Trial:
    """Tries the operations of tapes without running them; those that differ in their sizes only, once."""

    def __init__(self) -> None:
        self._tried: set[Any] = set()

    def __call__(self, tape: Tape, values: list[Any]) -> None:
        """Checks each operation of a tape as a replay will, as far as that needs no values of tensors.

        Args:
            tape: A tape.
            values: The host values of a step that follows it.

        Raises:
            TapeError: A replay would find the tape malformed.
        """
        operands = WithoutMemory(torch.device("meta"), tape, {}, values)
        for number, node in enumerate(tape.nodes):
            if node.op == RESIZE:
                continue
            key = node.op, _form(node.args, tape), _form(tuple(node.kwargs.items()), tape)
            if key in self._tried:
                continue
            try:
                _try(invocation(node, number, tape, operands), node)
            except (RefusedOperationError, UnknownOperationError) as error:
                raise TapeError(error.message, code="tape.forbidden", operation=node.op) from None
            except UNFIT as error:
                raise unfit(f"operation {number} ({node.op})", error) from None
            self._tried.add(key)


def _try(call: Invocation, node: Node) -> None:
    if call.rule.kind in (Kind.VIEW, Kind.COLLECTIVE):
        return
    if base_name(call.op)[0] not in SHAPED_BY_VALUES:
        check_shapes(call.op, call.args, call.kwargs, node, call.refs, call.rule.kind)
    check_sizes(call.op, call.bound)


def _form(value: Any, tape: Tape) -> Any:
    """An encoded operand without what does not matter to a check: of sizes, only whether they are 0, 1 or more."""
    match value:
        case ("t", int(index)):
            _, dtype, size, _, _ = tape.refs[index]
            return dtype, *(min(n, 2) for n in size)
        case ("v", _):
            return "v"
        case tuple() | list():
            return tuple([_form(v, tape) for v in value])
    return value
