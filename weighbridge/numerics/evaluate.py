"""Applies a rule to one operation.

`evaluate` is the single definition of what an operation means here. The Recorder calls it with a `Context` that writes
the rounding log, the executor with one that follows it; nothing else differs between recording and replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from weighbridge.errors import RefusedOperationError
from weighbridge.numerics import randomness
from weighbridge.numerics.bounds import Call
from weighbridge.numerics.rounding import Bound, dense_strides, flat, is_dense, lay_out
from weighbridge.numerics.rules import Kind, Op, Rule, base_name, find, mutated

Strides = tuple[int, ...] | None
Layout = Callable[[int], Strides]
Tensor = torch.Tensor


class Context(ABC):
    """What one step's operations are evaluated in."""

    @abstractmethod
    def rounded(self, wide: Tensor, bound: Bound) -> Tensor:
        """Rounds a dense wide result to float32, logging or following contested roundings."""

    @abstractmethod
    def exact(self, bits: Tensor) -> None:
        """Canonicalises NaN in a flat float32 result in place and accounts for its checksum."""

    @abstractmethod
    def draw(self, generator: torch.Generator | None, device: torch.device) -> randomness.Draw:
        """Returns the key of the next random draw and advances the counter."""

    @abstractmethod
    def host(self, value: bool | int | float) -> bool | int | float:
        """Records or checks a value that Python gets to see."""


def row_major(_: int) -> Strides:
    """The layout callback of a caller that has no wish: the kernel's own layout is kept."""
    return None


@cache
def _argument_names(op: Op) -> tuple[tuple[str, ...], dict[str, Any]]:
    arguments = op._schema.arguments
    return tuple(a.name for a in arguments), {a.name: a.default_value for a in arguments}


def bind(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the operands of a call by schema name, defaults filled in."""
    names, defaults = _argument_names(op)
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _floats(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [v for v in value if _is_float(v)]
    return [value] if _is_float(value) else []


def _refuse_types(op: Op, bound: dict[str, Any]) -> None:
    """Refuses operand types that a computing rule does not cover."""
    for value in bound.values():
        for t in _floats(value):
            if t.dtype != torch.float32:
                advice = (
                    "compute in float32; there is no wider type behind float64"
                    if t.dtype == torch.float64
                    else "reduced precision needs calibrated bounds, which this version does not have; train in float32"
                )
                raise RefusedOperationError(f"{op} on {t.dtype}: {advice}", operation=str(op), dtype=str(t.dtype))
        if isinstance(value, Tensor) and value.is_complex():
            raise RefusedOperationError(f"{op} on {value.dtype}: complex arithmetic has no rule", operation=str(op))
        if value is torch.float64:
            raise RefusedOperationError(f"{op} with dtype float64: there is no wider type behind it", operation=str(op))


def _widen(value: Any, integers: bool = False) -> Any:
    if isinstance(value, Tensor):
        if value.dtype == torch.float32 or (integers and not value.is_floating_point()):
            return value.to(torch.float64)
        return value
    if isinstance(value, (list, tuple)):
        return [_widen(v, integers) for v in value]
    return torch.float64 if value is torch.float32 else value


def _rounded(
    op: Op,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    bound: dict[str, Any],
    rule: Rule,
    context: Context,
    layout: Layout,
) -> Any:
    names, _ = _argument_names(op)
    by_name = {**dict(zip(names, args, strict=False)), **kwargs}
    has_floats = any(_floats(v) for v in by_name.values())
    if not has_floats:
        plain = op(*args, **kwargs)
        if not _floats(plain):
            return plain  # integer or boolean work
    wide = {k: _widen(v, integers=not has_floats) for k, v in by_name.items()}
    if not has_floats and "dtype" in names:
        wide["dtype"] = torch.float64
    changed = [n for n in mutated(op) if _is_float(by_name.get(n))]
    if base_name(op)[0] == "native_batch_norm" and not bound["training"]:
        changed = []
    # Operands that the operation overwrites must still be there as they were when the bound is computed.
    before = {**bound, **wide, **{n: _widen(by_name[n]) for n in changed}}
    positional = names[: len(args)]
    outputs = op(*[wide[n] for n in positional], **{k: v for k, v in wide.items() if k not in positional})
    targets = [(n, wide[n]) for n in changed]
    returned = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    aliases = {id(t): by_name[n] for n, t in targets}
    fresh = [(i, t) for i, t in enumerate(returned) if _is_float(t) and id(t) not in aliases]
    name, overload = base_name(op)
    call = Call(name, {**before, "__overload__": overload}, [t for _, t in fresh] + [t for _, t in targets])
    assert rule.bound is not None
    limits = rule.bound(call)
    if len(limits) < len(call.results):
        raise RefusedOperationError(
            f"the rule of {op} bounds {len(limits)} of {len(call.results)} results", operation=str(op)
        )
    for (i, t), limit in zip(fresh, limits, strict=False):
        returned[i] = context.rounded(lay_out(t, dense_strides(t.shape, layout(i) or t.stride())), limit)
    for (n, t), limit in zip(targets, limits[len(fresh) :], strict=False):
        by_name[n].copy_(context.rounded(t.contiguous(), limit))
    returned = [aliases.get(id(t), t) if isinstance(t, Tensor) else t for t in returned]
    if isinstance(outputs, list):
        return returned
    return tuple(returned) if isinstance(outputs, tuple) else returned[0]


def _exact(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any], context: Context) -> Any:
    out = op(*args, **kwargs)
    changed = mutated(op)
    result = bound[changed[0]] if changed else out
    if not isinstance(result, Tensor) or result.dtype != torch.float32 or result.numel() == 0:
        return out  # integers, and other floating types, whose sums and products have one right answer too
    if is_dense(result) and not changed:
        context.exact(flat(result))
    else:
        # A changed operand may be a strided view; its elements are checked in row-major order whatever its layout.
        temporary = result.contiguous()
        context.exact(flat(temporary))
        if temporary.data_ptr() != result.data_ptr():
            result.copy_(temporary)
    return out


def _check_conversion(op: Op, bound: dict[str, Any]) -> None:
    """Refuses float-to-integer conversions without one right answer (NaN, infinities, out of range)."""
    source = bound.get("src", bound.get("self"))
    target = bound["dtype"] if "dtype" in bound else bound["self"].dtype
    if target is None or not _is_float(source) or target.is_floating_point or target.is_complex or target is torch.bool:
        return
    limits = torch.iinfo(target)
    assert isinstance(source, Tensor)
    whole = source.to(torch.float64).trunc()
    # Both ends are powers of two or 0, so float64 has them exactly; the largest int64 itself it has not.
    inside = (whole >= float(limits.min)) & (whole < float(limits.max + 1))
    if not bool(inside.all()):
        raise RefusedOperationError(
            f"{op}: a value is NaN or out of the range of {target}; clamp it first", operation=str(op)
        )


def evaluate(
    op: Op,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    context: Context,
    *,
    rule: Rule | None = None,
    layout: Layout = row_major,
) -> Any:
    """Evaluates one operation under its rule.

    Args:
        op: An ATen overload.
        args: Positional operands.
        kwargs: Keyword operands.
        context: Where roundings, checksums, draws and host values go.
        rule: The rule, if the caller has looked it up.
        layout: Strides wanted for the i-th returned tensor, or None for the kernel's own.

    Returns:
        What the operation returns, in float32 where the wide computation was in float64.

    Raises:
        UnknownOperationError: If it has no rule.
        RefusedOperationError: If its rule or its operand types refuse it.
    """
    bound = bind(op, args, kwargs)
    rule = rule or find(op, bound)
    kind = rule.kind
    if kind is Kind.VIEW:
        return op(*args, **kwargs)
    if kind is Kind.MOVE:
        if op._schema.name in ("aten::_to_copy", "aten::copy_"):
            _check_conversion(op, bound)
        return op(*args, **kwargs)
    if kind is Kind.EXACT:
        if bound.get("alpha", 1) != 1:
            raise RefusedOperationError(f"{op} with alpha has no rule; scale the operand first", operation=str(op))
        return _exact(op, args, kwargs, bound, context)
    if kind is Kind.ROUNDED:
        _refuse_types(op, bound)
        return _rounded(op, args, kwargs, bound, rule, context, layout)
    if kind is Kind.EMPTY:
        return op(*args, **kwargs).zero_()
    if kind is Kind.RANDOM:
        return randomness.sample(op, args, kwargs, bound, context.draw)
    if kind is Kind.HOST:
        return context.host(op(*args, **kwargs))
    if rule.integers and not any(_floats(v) for v in bound.values()):
        return op(*args, **kwargs)  # integers have one right answer
    raise RefusedOperationError(f"{op} is refused: {rule.note}", operation=str(op))
