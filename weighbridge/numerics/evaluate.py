"""Applies a rule to one operation.

`evaluate` is the single definition of what an operation means here. The Recorder calls it with a `Context` that writes
the rounding log, the executor with one that follows it; nothing else differs between recording and replay.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from weighbridge.errors import RefusedOperationError
from weighbridge.numerics import chains, composed, embeddings, moduli, quotients, randomness, sums, writes
from weighbridge.numerics.bounds import Call, summation_bound, without_growth
from weighbridge.numerics.memo import per_op
from weighbridge.numerics.narrow import NARROW
from weighbridge.numerics.physical import dense_strides, flat, is_dense, lay_out
from weighbridge.numerics.policy import STRICT, Policy
from weighbridge.numerics.rounding import Bound
from weighbridge.numerics.rules import FLOAT64_EXACT, Kind, Op, Rule, base_name, find, mutated

Strides = tuple[int, ...] | None
Layout = Callable[[int], Strides]
Tensor = torch.Tensor


class Context(ABC):
    """What one step's operations are evaluated in."""

    policy: Policy = STRICT

    @abstractmethod
    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """Rounds a dense wide result to `dtype`, logging or following contested roundings."""

    @abstractmethod
    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """Canonicalises NaN in a flat float32, bfloat16 or float16 result in place and accounts for its checksum.

        Args:
            bits: The result.
            checksum: Its checksum, if the caller has canonicalised it.
        """

    @abstractmethod
    def draw(self, generator: torch.Generator | None, device: torch.device) -> randomness.Draw:
        """Returns the key of the next random draw and advances the counter."""

    @abstractmethod
    def host(self, value: bool | int | float) -> bool | int | float:
        """Records or checks a value that Python gets to see."""


def row_major(_: int) -> Strides:
    """The layout callback of a caller that has no wish: the kernel's own layout is kept."""
    return None


@per_op
def argument_names(op: Op) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the names of an overload's operands, and what they are where a call leaves them out."""
    arguments = op._schema.arguments
    return tuple(a.name for a in arguments), {a.name: a.default_value for a in arguments}


def bind(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the operands of a call by schema name, defaults filled in."""
    names, defaults = argument_names(op)
    bound = defaults.copy()
    bound.update(zip(names, args, strict=False))
    if kwargs:
        bound.update(kwargs)
    return bound


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _floats(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [v for v in value if _is_float(v)]
    return [value] if _is_float(value) else []


def _all_float32(values: Iterable[Any]) -> bool:
    """True if there are tensors among the operands of a call, all that are not integers are float32, and no type is."""
    found = False
    for v in values:
        for t in v if isinstance(v, (list, tuple)) else (v,):
            if isinstance(t, Tensor):
                dtype = t.dtype
                if dtype is torch.float32:
                    found = True
                elif dtype.is_floating_point or dtype.is_complex:
                    return False
            elif isinstance(t, torch.dtype):
                return False
    return found


def _refuse_types(op: Op, bound: dict[str, Any], policy: Policy) -> None:
    """Refuses operand types that a computing rule does not cover."""
    for value in bound.values():
        for t in _floats(value):
            if t.dtype != torch.float32 and not (policy.calibrated and t.dtype in NARROW):
                advice = (
                    "compute in float32, or make it before the Recorder begins; there is no wider type behind float64"
                    if t.dtype == torch.float64
                    else 'reduced precision needs calibrated bounds; pass policy="calibrated" to the Recorder'
                )
                raise RefusedOperationError(f"{op} on {t.dtype}: {advice}", operation=str(op), dtype=str(t.dtype))
        if isinstance(value, Tensor) and value.is_complex():
            raise RefusedOperationError(f"{op} on {value.dtype}: complex arithmetic has no rule", operation=str(op))
        if value is torch.float64:
            raise RefusedOperationError(f"{op} with dtype float64: there is no wider type behind it", operation=str(op))


_RULED = (torch.float32, *NARROW)


def _widen(value: Any, wide: torch.dtype, integers: bool = False) -> Any:
    if isinstance(value, Tensor):
        if value.dtype in _RULED or (integers and not value.is_floating_point()):
            return value.to(wide, copy=True)
        return value
    if isinstance(value, (list, tuple)):
        return [_widen(v, wide, integers) for v in value]
    return wide if isinstance(value, torch.dtype) and value in _RULED else value


_PLANS: dict[Any, list[torch.dtype | None]] = {}


def _result_types(op: Op, by_name: dict[str, Any]) -> list[torch.dtype | None] | None:
    """Types of the returned tensors where 16-bit operands take part, or None where all is float32."""
    if not any([_has_narrow(v) for v in by_name.values()]):
        return None
    key = (op, tuple(by_name), tuple([_trait(v) for v in by_name.values()]))
    if key not in _PLANS:
        try:
            out = op(**{k: _meta(v) for k, v in by_name.items()})
        except ZeroDivisionError:  # gradients of means of nothing
            out = op(**{k: _meta(v, least=1) for k, v in by_name.items()})
        returned = out if isinstance(out, (tuple, list)) else [out]
        _PLANS[key] = [t.dtype if isinstance(t, Tensor) and t.is_floating_point() else None for t in returned]
    return _PLANS[key]


def _trait(value: Any) -> Any:
    """What of an operand can decide the types of results: not the values of numbers, but which results are asked for.

    A convolution's `output_mask` is such a thing: a plan made where no gradient of the bias was wanted must not serve
    a call that wants one.
    """
    if isinstance(value, Tensor):
        return value.dtype, value.dim() == 0
    if isinstance(value, (list, tuple)):
        return tuple(_trait(v) for v in value)
    return value if value is None or isinstance(value, (bool, torch.dtype)) else type(value)


def _has_narrow(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dtype in NARROW
    if isinstance(value, (list, tuple)):
        return any([_has_narrow(v) for v in value])
    return isinstance(value, torch.dtype) and value in NARROW


def _meta(value: Any, least: int = 0) -> Any:
    """Operands without memory, each size at least `least`."""
    if isinstance(value, Tensor):
        sizes = [max(n, least) for n in value.shape]
        return torch.empty_strided(sizes, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_meta(v, least) for v in value]
    return torch.device("meta") if isinstance(value, torch.device) else value


def _rounded(
    op: Op,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    bound: dict[str, Any],
    rule: Rule,
    context: Context,
    layout: Layout,
) -> Any:
    names, _ = argument_names(op)
    by_name = {**dict(zip(names, args, strict=False)), **kwargs}
    plain = _all_float32(by_name.values())
    has_floats = plain or any([_floats(v) for v in by_name.values()])
    if not has_floats:
        if "_backward" in base_name(op)[0]:  # no training has them, and some kernels divide by zero and die of it
            raise RefusedOperationError(f"{op} without floating operands is no gradient of anything", operation=str(op))
        out = op(*args, **kwargs)
        if not _floats(out):
            return out  # integer or boolean work
    types = None if plain else _result_types(op, by_name)
    if types is None:
        with _growth(context.policy):
            summed = sums.evaluate(op, bound)
        if summed is not None:
            (limit,) = _scaled([summed[1]], base_name(op)[0], context.policy, torch.float64)
            return context.rounded(_laid_out(summed[0], layout(0)), limit, torch.float32)
    changed = [n for n in mutated(op) if _is_float(by_name.get(n))]
    ends = [*(types or []), *(by_name[n].dtype for n in changed)]
    wide_type = torch.float64 if types is None or torch.float32 in ends else torch.float32
    wide = {k: _widen(v, wide_type, integers=not has_floats) for k, v in by_name.items()}
    if not has_floats and "dtype" in names:
        wide["dtype"] = torch.float64
    name, overload = base_name(op)
    before = {**bound, **wide, "__overload__": overload}
    for n in changed:  # what the operation overwrites must still be there as it was when the bound is computed
        before[n] = _widen(by_name[n], wide_type)
    positional = names[: len(args)]
    named = {k: v for k, v in wide.items() if k not in positional} if len(wide) > len(positional) else {}
    outputs = op(*[wide[n] for n in positional], **named)
    targets = [(n, wide[n]) for n in changed]
    returned = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    aliases = {id(t): by_name[n] for n, t in targets}
    fresh = [(i, t) for i, t in enumerate(returned) if _is_float(t) and id(t) not in aliases]
    call = Call(name, before, [t for _, t in fresh] + [t for _, t in targets], bound)
    limits = _limits(rule, call, context.policy, wide_type)
    if len(limits) < len(call.results):
        raise RefusedOperationError(
            f"the rule of {op} bounds {len(limits)} of {len(call.results)} results", operation=str(op)
        )
    for (i, t), limit in zip(fresh, limits, strict=False):
        narrow = torch.float32 if types is None else types[i] or torch.float32
        returned[i] = context.rounded(_laid_out(t, layout(i)), limit, narrow)
    for (n, t), limit in zip(targets, limits[len(fresh) :], strict=False):
        by_name[n].copy_(context.rounded(t.contiguous(), limit, by_name[n].dtype))
    returned = [aliases.get(id(t), t) if isinstance(t, Tensor) else t for t in returned]
    if isinstance(outputs, list):
        return returned
    return tuple(returned) if isinstance(outputs, tuple) else returned[0]


def _laid_out(t: Tensor, wanted: Strides) -> Tensor:
    """Returns a result in dense strides: those wanted, its own, or row-major ones."""
    if t.is_contiguous() and (wanted is None or wanted == t.stride()):
        return t
    return lay_out(t, dense_strides(t.shape, wanted or t.stride()))


def _limits(rule: Rule, call: Call, policy: Policy, wide: torch.dtype) -> list[Bound]:
    """Returns the bounds of a call under a policy; the rules state them for float64."""
    assert rule.bound is not None
    with _growth(policy):
        limits = rule.bound(call)
    return _scaled(limits, call.name, policy, wide)


_STRICT = nullcontext()


def _growth(policy: Policy) -> AbstractContextManager[None]:
    """How bounds count roundings under a policy."""
    return without_growth() if policy.calibrated else _STRICT


def _scaled(limits: list[Bound], name: str, policy: Policy, wide: torch.dtype) -> list[Bound]:
    scale = policy.factor(name) * (1.0 if wide is torch.float64 else 2.0**29)
    return limits if scale == 1.0 else [limit.scaled(scale) for limit in limits]


def _exact_narrow(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any], context: Context) -> Any:
    """One operation in float32, rounded to 16 bits: two roundings to nearest, each with one right answer."""
    names, _ = argument_names(op)
    by_name = {**dict(zip(names, args, strict=False)), **kwargs}
    changed = mutated(op)
    types = _result_types(op, by_name)
    wide = {k: _widen(v, torch.float32) for k, v in by_name.items()}
    positional = names[: len(args)]
    if moduli.is_modulus(op):
        result = moduli.evaluate(op, {**bound, **wide})
    elif quotients.is_quotient(op):
        result = quotients.evaluate(op, {**bound, **wide})
    else:
        result = op(*[wide[n] for n in positional], **{k: v for k, v in wide.items() if k not in positional})
    dtype = by_name[changed[0]].dtype if changed else types[0] if types is not None else None
    narrow = result if dtype is None else result.to(dtype).contiguous()
    if narrow.numel() and narrow.is_floating_point():
        context.exact(flat(narrow))
    return by_name[changed[0]].copy_(narrow) if changed else narrow


def _all_float64(bound: dict[str, Any]) -> bool:
    types = {t.dtype for v in bound.values() for t in _floats(v)}
    return types == {torch.float64}


@per_op
def _exactly(op: Op) -> tuple[tuple[str, ...], bool, bool]:
    """What an exact overload changes, whether PyTorch's kernels give its right answer, and whether it is a modulus."""
    jumps = moduli.is_modulus(op)
    return mutated(op), not jumps and not quotients.is_quotient(op), jumps


def _exact(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any], context: Context) -> Any:
    for v in bound.values():
        if isinstance(v, Tensor) and v.dtype in NARROW:
            return _exact_narrow(op, args, kwargs, bound, context)
    changed, native, jumps = _exactly(op)
    if jumps and not moduli.covers(bound):
        return op(*args, **kwargs)
    if native:
        out = op(*args, **kwargs)
    elif base_name(op) in FLOAT64_EXACT and _all_float64(bound):
        if base_name(op)[0] == "reciprocal":
            return op(*args, **kwargs)
        out = quotients.in_float64(bound["self"], bound["other"])
        return bound[changed[0]].copy_(out) if changed else out
    else:
        _refuse_types(op, bound, context.policy)
        out = (moduli if jumps else quotients).evaluate(op, bound)
        if changed:
            out = out.contiguous()
            context.exact(flat(out))
            return bound[changed[0]].copy_(out)
    result = bound[changed[0]] if changed else out
    if not isinstance(result, Tensor) or result.dtype != torch.float32 or result.numel() == 0:
        return out  # integers, and other floating types, whose sums and products have one right answer too
    if result.is_contiguous() or (is_dense(result) and not changed):
        context.exact(flat(result))
    else:
        # A changed operand may be a strided view; its elements are checked in row-major order whatever its layout.
        temporary = result.contiguous()
        context.exact(flat(temporary))
        if temporary.data_ptr() != result.data_ptr():
            result.copy_(temporary)
    return out


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

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        return self._context.rounded(wide, bound, dtype)

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""

    def draw(self, generator: torch.Generator | None, device: torch.device) -> randomness.Draw:
        """See `Context.draw`."""
        return self._context.draw(generator, device)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        return self._context.host(value)


def _composed(op: Op, bound: dict[str, Any], context: Context) -> Any:
    def summed(total: Tensor, absolute: Tensor, least: Tensor, addends: int) -> Tensor:
        with _growth(context.policy):
            limits = [summation_bound(absolute, least, addends)]
        (limit,) = _scaled(limits, "sum", context.policy, torch.float64)
        return context.rounded(total, limit, torch.float32)

    def step(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return evaluate(op, args, kwargs, within)

    within = _Within(context)
    return composed.evaluate(op, bound, step=step, summed=summed, exact=context.exact)


def _select(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any], context: Context) -> Any:
    """Maxima, minima and clamps; a zero becomes +0, because kernels disagree about which of two zeros is larger."""
    out = op(*args, **kwargs)
    changed = mutated(op)
    for result in _floats(bound[changed[0]] if changed else out):
        if not result.numel():
            continue
        result.add_(0.0)  # -0 + 0 is +0, and nothing else changes
        if result.dtype in _RULED:
            temporary = result if is_dense(result) and not changed else result.contiguous()
            context.exact(flat(temporary))
            if temporary.data_ptr() != result.data_ptr():
                result.copy_(temporary)
    return out


def _scatter_last(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any]) -> Any:
    """`scatter` where threads may write in any order; on the CPU the last write wins as it is."""
    x, dim = bound["self"], bound["dim"]
    longer = writes.scatter(x, dim, bound["index"], bound["src"]) if x.dim() and bound["index"].numel() else None
    if longer is None:
        return op(*args, **kwargs)
    result = longer[0].scatter(dim, *longer[1:]).narrow(dim, 0, x.shape[dim])
    return x.copy_(result) if mutated(op) else result.clone()


def _check_conversion(op: Op, bound: dict[str, Any]) -> None:
    """Refuses float-to-integer conversions without one right answer (NaN, infinities, out of range).

    Minus infinity has one as int64, the least of them, on every processor; T5 takes the logarithm of a distance of 0.
    """
    source = bound.get("src", bound.get("self"))
    target = bound["dtype"] if "dtype" in bound else bound["self"].dtype
    if target is None or not _is_float(source) or target.is_floating_point or target.is_complex or target is torch.bool:
        return
    limits = torch.iinfo(target)
    assert isinstance(source, Tensor)
    whole = source.to(torch.float64).trunc()
    # Both ends are powers of two or 0, so float64 has them exactly; the largest int64 itself it has not.
    inside = (whole >= float(limits.min)) & (whole < float(limits.max + 1))
    if target is torch.int64:
        inside |= whole == -math.inf
    if not bool(inside.all()):
        raise RefusedOperationError(
            f"{op}: a value is NaN or out of the range of {target}; clamp it first", operation=str(op)
        )


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
        name = base_name(op)[0]
        if name in ("_to_copy", "copy"):
            _check_conversion(op, bound)
        elif name == "scatter" and "src" in bound and bound["self"].is_cuda:
            return _scatter_last(op, args, kwargs, bound)
        return op(*args, **kwargs)
    if kind is _SELECT:
        return _select(op, args, kwargs, bound, context)
    if kind is _CHAIN or (kind is _EXACT and bound.get("alpha", 1) != 1):
        return _chain(op, bound, context)
    if kind is _COMPOSED:
        return _composed(op, bound, context)
    if kind is _EXACT:
        return _exact(op, args, kwargs, bound, context)
    if kind is _ROUNDED:
        if not _all_float32(bound.values()):
            _refuse_types(op, bound, context.policy)
        if base_name(op)[0] == "index_put" and not bound["accumulate"]:
            fewer = writes.index_put(bound["self"], bound["indices"], bound["values"])
            if fewer is not None:
                args, kwargs = [bound["self"], *fewer], {}
                bound = bind(op, args, kwargs)
        if base_name(op) == ("embedding_dense_backward", "default"):
            used, fewer = embeddings.used_rows(bound)
            compact = _rounded(op, fewer, {}, bind(op, fewer, {}), rule, context, row_major)
            return embeddings.spread(compact, used, bound["num_weights"])
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
