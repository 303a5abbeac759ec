"""Operations that copy, compare, select or convert, and are run as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.operand_types import floats, is_float
from weighbridge.numerics.operations import writes
from weighbridge.numerics.overload_cache import per_op
from weighbridge.numerics.rounding.canonical_nan import make_canonical
from weighbridge.numerics.rounding.formats import NARROW
from weighbridge.numerics.rule_table import base_name
from weighbridge.numerics.schemas import Op, mutated

Tensor = torch.Tensor

_COMPUTE = """
abs ceil copysign floor frac hardshrink hardshrink_backward hardtanh_backward heaviside median nan_to_num neg round
sgn sign softshrink_backward threshold_backward trunc
"""
"""Moves that make new numbers of numbers; of a NaN, kernels make different ones."""
_JUDGED = frozenset({"hardshrink_backward", "hardtanh_backward", "softshrink_backward"})
"""Gradients whose kernels compare `self`. Where it is NaN, vector code gives 0; the code of a tail, or of a GPU, may
give the gradient that came in."""
_BY_WAY_OF_FLOAT32 = """
adaptive_max_pool2d adaptive_max_pool3d gather max_pool2d_with_indices max_pool3d_with_indices scatter
upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d
"""
"""Moves some of whose kernels widen 16 bits and narrow them again, which not every NaN survives."""


@per_op
def _traits(op: Op) -> tuple[str, tuple[str, ...], bool, bool]:
    """The name of an overload, what it changes, whether it computes, and whether it may compute by way of float32."""
    name = base_name(op)[0]
    return name, mutated(op), name in _COMPUTE.split(), name in _BY_WAY_OF_FLOAT32.split()


def _converts(dtype: torch.dtype, bound: dict[str, Any]) -> bool:
    """True if an operand is, or holds, floats of another type than `dtype`."""
    for v in bound.values():
        for t in v if isinstance(v, (list, tuple)) else (v,):
            if isinstance(t, Tensor) and t.dtype is not dtype and t.dtype.is_floating_point:
                return True
    return False


def _scatter_last(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any]) -> Any:
    """`scatter` where threads may write in any order; on the CPU the last write wins as it is."""
    x, dim = bound["self"], bound["dim"]
    longer = writes.scatter(x, dim, bound["index"], bound["src"]) if x.dim() and bound["index"].numel() else None
    if longer is None:
        return op(*args, **kwargs)
    result = longer[0].scatter(dim, *longer[1:]).narrow(dim, 0, x.shape[dim])
    return x.copy_(result) if mutated(op) else result.clone()


def _fitting(result: Tensor) -> Tensor:
    """Returns a result in a storage of its own size: behind some a kernel leaves whatever was in memory before."""
    return result if result.untyped_storage().nbytes() == result.nbytes else result.clone()


def _check_conversion(op: Op, bound: dict[str, Any]) -> None:
    """Refuses float-to-integer conversions without one right answer (NaN, infinities, out of range).

    Minus infinity has one as int64, the least of them, on every processor; T5 takes the logarithm of a distance of 0.
    """
    source = bound.get("src", bound.get("self"))
    target = bound["dtype"] if "dtype" in bound else bound["self"].dtype
    if target is None or not is_float(source) or target.is_floating_point or target.is_complex or target is torch.bool:
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


def evaluate(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any]) -> Any:
    """Evaluates a move; operands and result as of `weighbridge.numerics.evaluate.evaluate`.

    A NaN that is only moved keeps its bits. One that is converted or computed with becomes the canonical NaN.
    """
    name, changed, computes, widens = _traits(op)
    if name in ("_to_copy", "copy"):
        _check_conversion(op, bound)
    if name == "scatter" and "src" in bound and bound["self"].is_cuda:
        out = _scatter_last(op, args, kwargs, bound)
    elif name == "copysign" and is_float(other := bound["other"]) and other.dtype is not bound["self"].dtype:
        # Code that converts the other operand first may lose the sign of a NaN.
        out = op(bound["self"], torch.where(other.signbit(), -1.0, 1.0).to(other.dtype))
    else:
        out = op(*args, **kwargs)
    if name in _JUDGED and is_float(bound["self"]):
        out.masked_fill_(bound["self"].isnan(), 0.0)
    if name == "unique_consecutive":
        out = tuple(_fitting(each) for each in out)
    for result in floats(bound[changed[0]] if changed else out):
        if computes or (widens and result.dtype in NARROW) or _converts(result.dtype, bound):
            make_canonical(result)
    return out
