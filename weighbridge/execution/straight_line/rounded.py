"""A rounded operation whose bounds are not asked for: widen, compute, round; with one trip over each result.

Where bounds are asked for (a rounding log has entries, or the tally looks at this output), or where a result does not
come out as it was recorded, the operation is evaluated by its rule instead. Nothing was changed by then.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from weighbridge.execution.straight_line.frame import Frame
from weighbridge.execution.straight_line.general import General, Prepared
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.operations.rounded import laid_out, summed_apart, unconditional, wide_results
from weighbridge.numerics.rounding import cpu_kernels, half_kernels
from weighbridge.numerics.rule_table import Kind, settled
from weighbridge.numerics.schemas import bind
from weighbridge.program.operands import UNFIT, check_indices, has_indices, resolve
from weighbridge.transcript.tape import DTYPES, Node, Ref, Tape, references

Tensor = torch.Tensor
_SMALL = frozenset({"bf16", "f16"})
_FLOATS = _SMALL | {"f32"}
_WHOLE = frozenset({"i64", "i32", "i16", "i8", "u8", "bool"})
"""Types of tensors that leave no choice of the wide type."""


def covers(node: Node, tape: Tape) -> bool:
    """True if an operation can be executed this way, by what its tape says."""
    op = resolve(node.op)
    rule = settled(op)
    if rule is None or rule.kind is not Kind.ROUNDED or not unconditional(op):
        return False
    operands = node.args, tuple(node.kwargs.values())
    tensors = {tape.refs[i][1] for i in references(operands)}
    named = _types_in(operands)
    if not tensors & _FLOATS or not tensors <= _FLOATS | _WHOLE or not named <= _FLOATS:
        return False
    if summed_apart(op) and not (tensors | named) & _SMALL:
        return False
    births = dict(node.births)
    made = [tape.refs[o] for o in node.outputs if o is not None]
    return len({ref[0] for ref in made}) == len(births) == len(made) and all(
        ref[1] in _FLOATS
        and ref[4] == 0
        and _dense(ref)
        and births.get(ref[0]) == DTYPES[ref[1]].itemsize * math.prod(ref[2])
        for ref in made
    )


def _types_in(value: Any) -> set[str]:
    """Returns the types that are operands themselves."""
    if isinstance(value, tuple):
        if len(value) == 2 and value[0] == "d":
            return {str(value[1])}
        return {name for v in value for name in _types_in(v)}
    return set()


def _wide(node: Node, tape: Tape) -> torch.dtype:
    """Returns the type that an operation is computed in: float32 if 16 bits take part and all its results have 16."""
    operands = node.args, tuple(node.kwargs.values())
    types = {tape.refs[i][1] for i in references(operands)} | _types_in(operands)
    results = {tape.refs[o][1] for o in node.outputs if o is not None}
    return torch.float64 if "f32" in results or not types & _SMALL else torch.float32


def _dense(ref: Ref) -> bool:
    """True if a reference names elements, and covers memory with them once, without gaps."""
    expected = 1
    for stride, size in sorted((st, sz) for st, sz in zip(ref[3], ref[2], strict=True) if sz != 1):
        if stride != expected:
            return False
        expected *= size
    return math.prod(ref[2]) > 0


class Rounded:
    """Such an operation."""

    __slots__ = (
        "_checks", "_general", "_number", "_op", "_operands", "_outputs", "_refs", "_rounds", "_small", "_wide"
    )  # fmt: skip

    def __init__(self, number: int, node: Node, tape: Tape) -> None:
        self._general = General(number, node, tape)
        self._number, self._op, self._operands = number, resolve(node.op), Prepared(node)
        self._outputs = node.outputs
        self._refs = [None if o is None else tape.refs[o] for o in node.outputs]
        self._rounds = sum(ref is not None for ref in self._refs)
        self._small = any(ref is not None and ref[1] in _SMALL for ref in self._refs)
        self._wide = _wide(node, tape)
        self._checks = has_indices(self._op)

    def __call__(self, frame: Frame) -> None:
        """Executes the operation.

        Raises:
            WeighbridgeError: As the Executor does.
        """
        context = frame.context
        context.begin(self._number, self._general.node)
        if context.wants_bounds(self._rounds, small=self._small):
            self._general(frame)
            return
        args, kwargs = self._operands(frame)
        try:
            if self._checks:
                check_indices(self._op, bind(self._op, args, kwargs))
            results = self._computed(args, kwargs, context.policy)
        except UNFIT:  # the rule says it in its own words
            results = None
        if results is None or not context.take_rounded([each for each in results if each is not None], self._wide):
            self._general(frame)
            return
        for reference, each, ref in zip(self._outputs, results, self._refs, strict=True):
            if reference is not None and each is not None and ref is not None:
                frame.born(reference, ref[0], each[0])

    def _computed(
        self, args: list[Any], kwargs: dict[str, Any], policy: Policy
    ) -> list[tuple[Tensor, int] | None] | None:
        """Returns results with their checksums, or None if something is not as the tape says."""
        returned = wide_results(self._op, args, kwargs, self._wide, policy)
        if len(returned) != len(self._refs):
            return None
        results: list[tuple[Tensor, int] | None] = []
        for value, ref in zip(returned, self._refs, strict=True):
            if ref is None:
                if isinstance(value, Tensor):
                    return None
                results.append(None)
                continue
            if not isinstance(value, Tensor) or value.dtype is not self._wide or tuple(value.shape) != ref[2]:
                return None
            x = laid_out(value, ref[3])
            if x.stride() != ref[3]:
                return None
            result = torch.empty_strided(ref[2], ref[3], dtype=DTYPES[ref[1]])
            places = x.data_ptr(), result.data_ptr(), x.numel()
            if ref[1] in _SMALL:
                double, code = self._wide is torch.float64, half_kernels.CODES[result.dtype]
                results.append((result, int(half_kernels.round_at(*places, double, code))))
            else:
                results.append((result, int(cpu_kernels.round_at(*places))))
        return results
