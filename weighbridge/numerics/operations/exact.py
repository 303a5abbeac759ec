"""Operations with one right answer, which not every kernel gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weighbridge.numerics.arrays.physical import flat, is_dense
from weighbridge.numerics.context import Context
from weighbridge.numerics.operand_types import all_float64, is_float, refuse_types, result_types, widen
from weighbridge.numerics.operations import moduli, quotients
from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.rounding.canonical_nan import make_canonical
from weighbridge.numerics.rounding.formats import NARROW
from weighbridge.numerics.rule_table import FLOAT64_EXACT, base_name
from weighbridge.numerics.schemas import Op, argument_names, mutated

Tensor = torch.Tensor

_ZEROS = frozenset({"softshrink"})
"""Whose kernels for vectors give +0 where those for single elements, at the end of a row, give the operand's sign."""


def _exact_narrow(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any], context: Context) -> Any:
    """One operation in float32, rounded to 16 bits: two roundings to nearest, each with one right answer."""
    names, _ = argument_names(op)
    by_name = {**dict(zip(names, args, strict=False)), **kwargs}
    changed = mutated(op)
    types = result_types(op, by_name)
    wide = {k: widen(v, torch.float32) for k, v in by_name.items()}
    positional = names[: len(args)]
    if moduli.is_modulus(op):
        result = moduli.evaluate(op, {**bound, **wide})
    elif quotients.is_quotient(op):
        result = quotients.evaluate(op, {**bound, **wide})
    else:
        result = op(*[wide[n] for n in positional], **{k: v for k, v in wide.items() if k not in positional})
    if base_name(op)[0] in _ZEROS:
        result.add_(0.0)  # -0 + 0 is +0, and nothing else changes
    dtype = by_name[changed[0]].dtype if changed else types[0] if types is not None else None
    narrow = result if dtype is None else result.to(dtype).contiguous()
    if narrow.dtype is torch.float64:
        make_canonical(narrow)
    elif narrow.numel() and narrow.is_floating_point():
        context.exact(flat(narrow))
    return by_name[changed[0]].copy_(narrow) if changed else narrow


@per_op
def _exactly(op: Op) -> tuple[tuple[str, ...], bool, bool]:
    """What an exact overload changes, whether PyTorch's kernels give its right answer, and whether it is a modulus."""
    jumps = moduli.is_modulus(op)
    return mutated(op), not jumps and not quotients.is_quotient(op), jumps


def evaluate(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any], context: Context) -> Any:
    """Evaluates an exact operation; operands and result as of `weighbridge.numerics.evaluate.evaluate`."""
    for v in bound.values():
        if isinstance(v, Tensor) and v.dtype in NARROW:
            return _exact_narrow(op, args, kwargs, bound, context)
    changed, native, jumps = _exactly(op)
    if jumps and not moduli.covers(bound):
        return op(*args, **kwargs)
    if native:
        out = op(*args, **kwargs)
        if base_name(op)[0] in _ZEROS:
            (bound[changed[0]] if changed else out).add_(0.0)
    elif base_name(op) in FLOAT64_EXACT and all_float64(bound):
        if base_name(op)[0] == "reciprocal":
            out = op(*args, **kwargs)
        else:
            out = quotients.in_float64(bound["self"], bound["other"])
            out = bound[changed[0]].copy_(out) if changed else out
    else:
        refuse_types(op, bound, context.policy)
        out = (moduli if jumps else quotients).evaluate(op, bound)
        if changed:
            out = out.contiguous()
            context.exact(flat(out))
            return bound[changed[0]].copy_(out)
    result = bound[changed[0]] if changed else out
    if not isinstance(result, Tensor) or result.dtype != torch.float32 or result.numel() == 0:
        if is_float(result):  # a type whose sums and products have one right answer too
            make_canonical(result)
        return out
    if result.is_contiguous() or (is_dense(result) and not changed):
        context.exact(flat(result))
    else:
        # A changed operand may be a strided view; its elements are checked in row-major order whatever its layout.
        temporary = result.contiguous()
        context.exact(flat(temporary))
        if temporary.data_ptr() != result.data_ptr():
            result.copy_(temporary)
    return out
