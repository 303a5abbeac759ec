"""Operations that are computed in a wider type and rounded back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.arrays.physical import dense_strides, lay_out
from weighbridge.numerics.bounds import Call, probable_growth, reduced, without_growth
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.context import Context, Layout, Strides
from weighbridge.numerics.operand_types import RULED, all_float32, floats, is_float, result_types, widen
from weighbridge.numerics.operations import prescribed_products, sums, unit_limits
from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rule_table import Rule, base_name
from weighbridge.numerics.schemas import Op, argument_names, mutated

Tensor = torch.Tensor
_STRICT = nullcontext()
_JUDGED = {"elu_backward": "self_or_result", "hardswish_backward": "self"}
"""Gradients whose kernels compare this operand. Where it is NaN, vector code gives NaN; the code of a tail may not."""
_PARTIAL = frozenset({"lgamma", "digamma"})
"""Whose bounds refuse operands, so that they are asked whether or not anyone needs the bounds."""
_QUIETED = frozenset({"pow", "hypot"})
"""Whose vector code takes a signalling NaN for a quiet one, and the code of a tail does not; bfloat16 has such NaNs."""
_MEANS = {"native_layer_norm": "input", "var_mean": "self", "std_mean": "self"}
"""Whose second result is the mean of this operand, by algorithms that round on the way."""


def evaluate(
    op: Op,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    bound: dict[str, Any],
    rule: Rule,
    context: Context,
    layout: Layout,
) -> Any:
    """Evaluates a rounded operation; operands and result as of `weighbridge.numerics.evaluate.evaluate`."""
    names, _ = argument_names(op)
    by_name = {**dict(zip(names, args, strict=False)), **kwargs}
    plain = all_float32(by_name.values())
    has_floats = plain or any([floats(v) for v in by_name.values()])
    if not has_floats:
        if "_backward" in base_name(op)[0]:  # no training has them, and some kernels divide by zero and die of it
            raise RefusedOperationError(f"{op} without floating operands is no gradient of anything", operation=str(op))
        out = op(*args, **kwargs)
        if not floats(out):
            return out  # integer or boolean work
    types = None if plain else result_types(op, by_name)
    if types is None:
        with growth(context.policy, torch.float64):
            summed = sums.evaluate(op, bound, bounded=context.bounded)
        if summed is not None:
            (limit,) = scaled([summed[1]], base_name(op)[0], context.policy, torch.float64)
            return context.rounded(laid_out(summed[0], layout(0)), limit, torch.float32)
    changed = [n for n in mutated(op) if is_float(by_name.get(n))]
    ends = [*(types or []), *(by_name[n].dtype for n in changed)]
    single = types is None or torch.float32 in ends
    wide_type = torch.float64 if single else torch.float32
    wide = {k: widen(v, wide_type, integers=not has_floats) for k, v in by_name.items()}
    if not has_floats and "dtype" in names:
        wide["dtype"] = torch.float64
    name, overload = base_name(op)
    bounded = (context.bounded and (single or context.bounds_halves)) or name in _PARTIAL
    if name in _QUIETED:
        wide = {k: _quiet(v) for k, v in wide.items()}
    if name in _JUDGED:
        judged = wide[_JUDGED[name]]
        wide["grad_output"] = torch.where(judged.isnan(), judged, wide["grad_output"])
    before = {**bound, **wide, "__overload__": overload}
    # What the operation overwrites must still be there as it was when the bound is computed.
    for n in changed if bounded else ():
        before[n] = widen(by_name[n], wide_type)
    positional = names[: len(args)]
    named = {k: v for k, v in wide.items() if k not in positional} if len(wide) > len(positional) else {}
    way = prescribed_products.way_for(op, by_name.values(), context.policy, wide_type)
    outputs = prescribed_products.evaluate(op, [wide[n] for n in positional], named, way)
    targets = [(n, wide[n]) for n in changed]
    returned = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    if name in _MEANS and wide_type is torch.float64:
        returned[1] = _mean(wide[_MEANS[name]], before, returned[1])
    aliases = {id(t): by_name[n] for n, t in targets}
    fresh = [(i, t) for i, t in enumerate(returned) if is_float(t) and id(t) not in aliases]
    call = Call(name, before, [t for _, t in fresh] + [t for _, t in targets], bound, way.block)
    limited = bounded and not way.exact
    unlimited = [Bound(exact=way.exact)] * len(call.results)
    limits = unlimited
    if limited:
        as_unit = way.unit is not None
        limits = (
            unit_limits.limits(op, before, way, len(call.results)) if as_unit
            else _limits(rule, call, context.policy, wide_type)
        )  # fmt: skip
    if len(limits) < len(call.results):
        raise RefusedOperationError(
            f"the rule of {op} bounds {len(limits)} of {len(call.results)} results", operation=str(op)
        )
    for (i, t), limit in zip(fresh, limits, strict=False):
        narrow = torch.float32 if types is None else types[i] or torch.float32
        returned[i] = context.rounded(laid_out(t, layout(i)), limit, narrow)
    for (n, t), limit in zip(targets, limits[len(fresh) :], strict=False):
        by_name[n].copy_(context.rounded(t.contiguous(), limit, by_name[n].dtype))
    returned = [aliases.get(id(t), t) if isinstance(t, Tensor) else t for t in returned]
    if isinstance(outputs, list):
        return returned
    return tuple(returned) if isinstance(outputs, tuple) else returned[0]


def _mean(x: Tensor, args: dict[str, Any], own: Tensor) -> Tensor:
    """Returns means as sums over counts, in the shape of the operation's `own`.

    A sum of few float32 numbers of similar size is exact in float64, so every device has the same mean. Means of 2^k
    numbers often lie halfway between two float32 numbers, and Welford's algorithm has them on either side.
    """
    if not x.numel() or not own.numel():
        return own
    shape = args.get("normalized_shape")
    dims = reduced(x, args.get("dim")) if shape is None else list(range(x.dim() - len(shape), x.dim()))
    return x.mean(dims).view(own.shape) if dims else own


def laid_out(t: Tensor, wanted: Strides) -> Tensor:
    """Returns a result in dense strides: those wanted, its own, or row-major ones."""
    if t.is_contiguous() and (wanted is None or wanted == t.stride()):
        return t
    return lay_out(t, dense_strides(t.shape, wanted or t.stride()))


@per_op
def unconditional(op: Op) -> bool:
    """True if `wide_results` gives what `evaluate` rounds, where some operands are floats that rules compute with.

    Not of operations that change operands, judge them, refuse some, or are computed in other ways.
    """
    name = base_name(op)[0]
    apart = {"index_put", "embedding_dense_backward"}
    return not mutated(op) and name not in _JUDGED and name not in _PARTIAL and name not in apart


@per_op
def summed_apart(op: Op) -> bool:
    """True of operations that may be summed in another way where neither operands nor results have 16 bits."""
    return base_name(op)[0] in ("sum", "linalg_vector_norm")


def wide_results(
    op: Op, args: Sequence[Any], kwargs: dict[str, Any], wide_type: torch.dtype, policy: Policy
) -> list[Any]:
    """Returns what an operation for which `unconditional` holds returns in a wide type, nothing rounded."""
    wide = [_widened(v, wide_type) for v in args]
    named = {k: _widened(v, wide_type) for k, v in kwargs.items()}
    if base_name(op)[0] in _QUIETED:
        wide = [_quiet(v) for v in wide]
    way = prescribed_products.way_for(op, [*args, *kwargs.values()], policy, wide_type)
    outputs = prescribed_products.evaluate(op, wide, named, way)
    returned = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    operand = _MEANS.get(base_name(op)[0])
    if operand is not None and wide_type is torch.float64:
        by_name = {**dict(zip(argument_names(op)[0], wide, strict=False)), **named}
        returned[1] = _mean(by_name[operand], by_name, returned[1])
    return returned


def _widened(value: Any, wide_type: torch.dtype) -> Any:
    """What `widen` does, without a copy of what is wide already."""
    if isinstance(value, Tensor):
        return value.to(wide_type) if value.dtype in RULED else value
    if type(value) is list:
        return [_widened(v, wide_type) for v in value]
    return wide_type if isinstance(value, torch.dtype) and value in RULED else value


def _quiet(value: Any) -> Any:
    """An operand that was widened, with quiet NaNs: conversions to float64 make them so, and a product by 1 does."""
    return value * 1 if isinstance(value, Tensor) and value.dtype is torch.float32 else value


def _limits(rule: Rule, call: Call, policy: Policy, wide: torch.dtype) -> list[Bound]:
    """Returns the bounds of a call under a policy; the rules state them for float64."""
    assert rule.bound is not None
    with growth(policy, wide):
        limits = rule.bound(call)
    return scaled(limits, call.name, policy, wide)


def growth(policy: Policy, wide: torch.dtype) -> AbstractContextManager[None]:
    """How bounds of what is computed in a wide type count roundings under a policy."""
    found = policy.at(wide)
    return without_growth() if found.calibrated else probable_growth() if found.probabilistic else _STRICT


def scaled(limits: list[Bound], name: str, policy: Policy, wide: torch.dtype) -> list[Bound]:
    """Returns float64's bounds of an operation as a policy has them for a wide type."""
    scale = policy.at(wide).factor(name) * (1.0 if wide is torch.float64 else 2.0**29)
    return limits if scale == 1.0 else [limit.scaled(scale) for limit in limits]
