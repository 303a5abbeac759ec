"""Applies a rule to one operation.

`evaluate` is the single definition of what an operation means here. The Recorder calls it with a `Context` that writes
the rounding log, the executor with one that follows it; nothing else differs between recording and replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.arrays.physical import flat, is_dense
from weighbridge.numerics.context import Context, Layout, row_major
from weighbridge.numerics.families.sums import summation_bound
from weighbridge.numerics.operand_types import RULED, all_float32, floats, refuse_types
from weighbridge.numerics.operations import chains, composed, embeddings, exact, moves, rounded, writes
from weighbridge.numerics.operations.rounded import growth, scaled
from weighbridge.numerics.random import variates
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.canonical_nan import make_canonical
from weighbridge.numerics.rule_table import Kind, Rule, base_name, find
from weighbridge.numerics.schemas import Op, bind, mutated

Tensor = torch.Tensor


def _chain(op: Op, bound: dict[str, Any], context: Context) -> Any:
    name, _ = base_name(op)
    if not chains.covers(name, bound):
        raise RefusedOperationError(
            f"{op} on these operands has no rule; write its steps as operations of their own", operation=str(op)
        )
    return chains.evaluate(name, bound, change=bool(mutated(op)), exact=context.exact)


class _Within(Context):
    """What the steps of a composed operation are evaluated in: exact results between others do not count."""

    def __init__(self, context: Context) -> None:
        self._context, self.policy = context, context.policy
        self.bounded, self.bounds_halves = context.bounded, context.bounds_halves

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        return self._context.rounded(wide, bound, dtype)

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""

    def draw(self, generator: torch.Generator | None, device: torch.device) -> variates.Draw:
        """See `Context.draw`."""
        return self._context.draw(generator, device)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        return self._context.host(value)


def _composed(op: Op, bound: dict[str, Any], context: Context) -> Any:
    def summed(total: Tensor, absolute: Tensor, least: Tensor, addends: int) -> Tensor:
        if not context.bounded:
            return context.rounded(total, Bound(), torch.float32)
        with growth(context.policy, torch.float64):
            limits = [summation_bound(absolute, least, addends)]
        (limit,) = scaled(limits, "sum", context.policy, torch.float64)
        return context.rounded(total, limit, torch.float32)

    def step(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return evaluate(op, args, kwargs, within)

    within = _Within(context)
    return composed.evaluate(op, bound, step=step, summed=summed, exact=context.exact)


def _select(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any], context: Context) -> Any:
    """Maxima, minima and clamps; a zero becomes +0, because kernels disagree about which of two zeros is larger."""
    out = op(*args, **kwargs)
    changed = mutated(op)
    for result in floats(bound[changed[0]] if changed else out):
        if not result.numel():
            continue
        result.add_(0.0)  # -0 + 0 is +0, and nothing else changes
        if result.dtype in RULED:
            temporary = result if is_dense(result) and not changed else result.contiguous()
            context.exact(flat(temporary))
            if temporary.data_ptr() != result.data_ptr():
                result.copy_(temporary)
        else:
            make_canonical(result)
    return out


# Looking up a member of an enumeration costs as much as many an operation's whole rule.
_VIEW, _MOVE, _SELECT, _CHAIN = Kind.VIEW, Kind.MOVE, Kind.SELECT, Kind.CHAIN
_EXACT, _COMPOSED, _ROUNDED = Kind.EXACT, Kind.COMPOSED, Kind.ROUNDED


def evaluate(
    op: Op,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    context: Context,
    *,
    rule: Rule | None = None,
    bound: dict[str, Any] | None = None,
    layout: Layout = row_major,
) -> Any:
    """Evaluates one operation under its rule.

    Args:
        op: An ATen overload.
        args: Positional operands.
        kwargs: Keyword operands.
        context: Where roundings, checksums, draws and host values go.
        rule: The rule, if the caller has looked it up.
        bound: The operands by schema name, if the caller has bound them.
        layout: Strides wanted for the i-th returned tensor, or None for the kernel's own.

    Returns:
        What the operation returns, in float32 where the wide computation was in float64.

    Raises:
        UnknownOperationError: If it has no rule.
        RefusedOperationError: If its rule or its operand types refuse it.
    """
    if bound is None:
        bound = bind(op, args, kwargs)
    rule = rule or find(op, bound)
    kind = rule.kind
    if kind is _VIEW:
        return op(*args, **kwargs)
    if kind is _MOVE:
        return moves.evaluate(op, args, kwargs, bound)
    if kind is _SELECT:
        return _select(op, args, kwargs, bound, context)
    if kind is _CHAIN or (kind is _EXACT and bound.get("alpha", 1) != 1):
        return _chain(op, bound, context)
    if kind is _COMPOSED:
        return _composed(op, bound, context)
    if kind is _EXACT:
        return exact.evaluate(op, args, kwargs, bound, context)
    if kind is _ROUNDED:
        if not all_float32(bound.values()):
            refuse_types(op, bound, context.policy)
        if base_name(op)[0] == "index_put" and not bound["accumulate"]:
            fewer = writes.index_put(bound["self"], bound["indices"], bound["values"])
            if fewer is not None:
                args, kwargs = [bound["self"], *fewer], {}
                bound = bind(op, args, kwargs)
        if base_name(op) == ("embedding_dense_backward", "default"):
            used, fewer = embeddings.used_rows(bound)
            compact = rounded.evaluate(op, fewer, {}, bind(op, fewer, {}), rule, context, row_major)
            return embeddings.spread(compact, used, bound["num_weights"])
        return rounded.evaluate(op, args, kwargs, bound, rule, context, layout)
    if kind is Kind.EMPTY:
        return op(*args, **kwargs).zero_()
    if kind is Kind.RANDOM:
        out = variates.sample(op, args, kwargs, bound, context.draw)
        for result in floats(out):
            make_canonical(result)
        return out
    if kind is Kind.HOST:
        return context.host(op(*args, **kwargs))
    if rule.integers and not any(floats(v) for v in bound.values()):
        return op(*args, **kwargs)  # integers have one right answer
    raise RefusedOperationError(f"{op} is refused: {rule.note}", operation=str(op))
