"""Operations that copy, compare, select, convert or fill: there is nothing to round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weighbridge.core.errors import TapeError
from weighbridge.execution.second.memory import Array, NotCoveredError
from weighbridge.execution.second.table import Call, Kind, rule
from weighbridge.execution.second.types import cast, common

_COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_BITS = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
_LOGIC = {"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor}


def _converted(x: Array, kind: np.dtype[Any]) -> Array:
    """Converts to a type; of floats that have no place among its integers there is no right answer."""
    if x.dtype.kind == "f" and kind.kind in "iu":
        whole, limits = np.trunc(x.astype(np.float64)), np.iinfo(kind)
        inside = (whole >= float(limits.min)) & (whole < float(int(limits.max) + 1))
        if not inside.all():
            raise NotCoveredError(f"a conversion of a number that {kind} does not have")
    return cast(x, kind)


@rule("clone.default", "self memory_format=None", Kind.MOVE)
@rule("_to_copy.default", "self", Kind.MOVE)
def _copied(call: Call) -> Array:
    """self, in the type that the result has."""
    return _converted(call["self"], call.kind())


@rule("copy.default", "self src non_blocking=False", Kind.MOVE)
def _copy(call: Call) -> Array:
    """src, in the type of self."""
    return np.broadcast_to(_converted(call["src"], call["self"].dtype), call["self"].shape)


@rule("fill.Scalar fill.Tensor", "self value", Kind.MOVE)
def _filled(call: Call) -> Array:
    """The value, everywhere."""
    return np.broadcast_to(cast(call["value"], call["self"].dtype), call["self"].shape)


@rule("zero.default", "self", Kind.MOVE)
def _zeroed(call: Call) -> Array:
    """0, everywhere."""
    return np.zeros_like(call["self"], order="C")


@rule("zeros.default ones.default empty.memory_format", "size", Kind.MOVE)
@rule("empty_strided.default", "size stride", Kind.MOVE)
@rule("zeros_like.default ones_like.default empty_like.default", "self", Kind.MOVE)
@rule("new_zeros.default new_ones.default new_empty.default", "self size", Kind.MOVE)
@rule("new_empty_strided.default", "self size stride", Kind.MOVE)
def _constant(call: Call) -> Array:
    """Ones, or zeros: memory without a content is zeros too."""
    return np.full(call.shape(), "ones" in call.name, call.kind())


@rule("full.default", "size fill_value", Kind.MOVE)
@rule("full_like.default", "self fill_value", Kind.MOVE)
@rule("new_full.default", "self size fill_value", Kind.MOVE)
@rule("scalar_tensor.default", "s", Kind.MOVE)
def _full(call: Call) -> Array:
    """A number, everywhere."""
    return np.full(call.shape(), cast(call["s" if call.name == "scalar_tensor" else "fill_value"], call.kind()))


@rule("arange.default", "end", Kind.MOVE)
@rule("arange.start", "start end", Kind.MOVE)
@rule("arange.start_step", "start end step=1", Kind.MOVE)
def _ramp(call: Call) -> Array:
    """start, start + step, ... before end."""
    start, end, step = call.operands.get("start", 0), call["end"], call.operands.get("step", 1)
    if any(isinstance(v, float) for v in (start, end, step)):
        raise NotCoveredError("arange in fractions")
    return cast(range(start, end, step), call.kind())


@rule("cat.default", "tensors dim=0", Kind.MOVE)
def _joined(call: Call) -> Array:
    """Tensors one after the other; a flat one of nothing counts for nothing."""
    parts = [cast(t, call.kind()) for t in call["tensors"] if t.shape != (0,)]
    return np.concatenate(parts, axis=call["dim"]) if parts else np.empty((0,), call.kind())


@rule("stack.default", "tensors dim=0", Kind.MOVE)
def _stacked(call: Call) -> Array:
    """Tensors along a new dimension."""
    return np.stack([cast(t, call.kind()) for t in call["tensors"]], axis=call["dim"])


@rule("constant_pad_nd.default", "self pad value=0", Kind.MOVE)
def _padded(call: Call) -> Array:
    """A frame of a number; a negative width cuts off."""
    x, pad = call["self"], call["pad"]
    if any(width < 0 for width in pad):
        raise NotCoveredError("constant_pad_nd that cuts off")
    last = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    widths = [(0, 0)] * (x.ndim - len(last)) + last
    return np.pad(x, widths, constant_values=cast(call["value"], x.dtype))


def places(index: Array, rows: int, what: str) -> Array:
    """Returns indices that name one of so many rows.

    Raises:
        TapeError: One does not.
    """
    if index.size and (int(index.min()) < 0 or int(index.max()) >= rows):
        raise TapeError(f"{what} has an index outside 0..{rows - 1}", code="tape.out_of_bounds")
    return index


@rule("embedding.default", "weight indices padding_idx=-1 scale_grad_by_freq=False sparse=False", Kind.MOVE)
def _looked_up(call: Call) -> Array:
    """The rows of weight that indices name."""
    weight = call["weight"]
    return np.asarray(weight[places(call["indices"], weight.shape[0], "embedding")])


@rule("index_select.default", "self dim index", Kind.MOVE)
def _selected(call: Call) -> Array:
    """The places along one dimension that an index names."""
    x, dim = call["self"], call["dim"]
    return np.take(x, places(call["index"], x.shape[dim], "index_select"), axis=dim)


@rule("gather.default", "self dim index sparse_grad=False", Kind.MOVE)
def _gathered(call: Call) -> Array:
    """For each place of the index, the element of that line that it names."""
    x, dim, index = call["self"], call["dim"], call["index"]
    places(index, x.shape[dim], "gather")
    whole = tuple(slice(None) if d == dim % x.ndim else slice(0, n) for d, n in enumerate(index.shape))
    return np.take_along_axis(x[whole], index, axis=dim)


@rule("where.self", "condition self other", Kind.MOVE)
@rule("where.ScalarSelf where.ScalarOther where.Scalar", "condition self other", Kind.MOVE)
def _chosen(call: Call) -> Array:
    """Self where a condition holds, else other."""
    kind = call.kind()
    return np.where(call["condition"], cast(call["self"], kind), cast(call["other"], kind))


def _number(value: Any, kind: np.dtype[Any]) -> Array:
    """Returns a number in a type; one that a tensor holds is read as a Python number first, which makes NaN quiet."""
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        value = cast(value, np.dtype(np.float64))
    return cast(value, kind)


@rule("masked_fill.Scalar masked_fill.Tensor", "self mask value", Kind.MOVE)
def _masked(call: Call) -> Array:
    """A number where a mask is set, else self."""
    return np.where(call["mask"], _number(call["value"], call.kind()), call["self"])


@rule("tril.default triu.default", "self diagonal=0", Kind.MOVE)
def _triangle(call: Call) -> Array:
    """What lies on one side of a diagonal; 0 elsewhere."""
    x = call["self"]
    row, column = np.ogrid[: x.shape[-2], : x.shape[-1]]
    inside = column - row <= call["diagonal"] if call.name == "tril" else column - row >= call["diagonal"]
    return np.where(inside, x, cast(0, x.dtype))


@rule(" ".join(f"{name}.{form}" for name in _COMPARISONS for form in ("Scalar", "Tensor")), "self other", Kind.MOVE)
def _compared(call: Call) -> Array:
    """A comparison, in the type in which both meet."""
    kind = common(call["self"], call["other"])
    return cast(_COMPARISONS[call.name](cast(call["self"], kind), cast(call["other"], kind)), call.kind())


@rule(" ".join(f"{name}.{form}" for name in _BITS for form in ("Scalar", "Tensor")), "self other", Kind.MOVE)
def _bits(call: Call) -> Array:
    """An operation bit by bit."""
    kind = common(call["self"], call["other"])
    return cast(_BITS[call.name](cast(call["self"], kind), cast(call["other"], kind)), call.kind())


@rule(" ".join(f"{name}.default" for name in _LOGIC), "self other", Kind.MOVE)
def _logic(call: Call) -> Array:
    """An operation on truths."""
    return cast(_LOGIC[call.name](call["self"] != 0, call["other"] != 0), call.kind())


@rule("logical_not.default bitwise_not.default", "self", Kind.MOVE)
def _inverted(call: Call) -> Array:
    """What is not so."""
    return cast(np.equal(call["self"], 0), call.kind()) if call.name == "logical_not" else np.invert(call["self"])


@rule("isnan.default isinf.default isfinite.default", "self", Kind.MOVE)
def _kinds(call: Call) -> Array:
    """Whether numbers are such."""
    return np.asarray({"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}[call.name](call["self"]))


@rule("all.default any.default", "self", Kind.MOVE)
@rule("all.dim any.dim", "self dim keepdim=False", Kind.MOVE)
def _quantified(call: Call) -> Array:
    """Whether all, or any, are not zero."""
    judge = np.all if call.name == "all" else np.any
    return cast(
        judge(call["self"] != 0, axis=call.operands.get("dim"), keepdims=call.operands.get("keepdim", False)),
        call.kind(),
    )


@rule("neg.default", "self", Kind.MOVE, computes=True)
@rule("abs.default", "self", Kind.MOVE, computes=True)
def _signs(call: Call) -> Array:
    """Self with another sign, or with none."""
    return np.asarray((np.negative if call.name == "neg" else np.abs)(call["self"]))


@rule("select_backward.default", "grad_output input_sizes dim index", Kind.MOVE)
def _select_backward(call: Call) -> Array:
    """Zeros, and the gradient in the place that was selected."""
    out = np.zeros(call["input_sizes"], call.kind())
    np.moveaxis(out, call["dim"], 0)[call["index"]] = call["grad_output"]
    return out


@rule("slice_backward.default", "grad_output input_sizes dim start end step", Kind.MOVE)
def _slice_backward(call: Call) -> Array:
    """Zeros, and the gradient in the places that were sliced."""
    out = np.zeros(call["input_sizes"], call.kind())
    np.moveaxis(out, call["dim"], 0)[call["start"] : call["end"] : call["step"]] = np.moveaxis(
        call["grad_output"], call["dim"], 0
    )
    return out


@rule("_local_scalar_dense.default", "self", Kind.HOST)
def _read(call: Call) -> Any:
    """The number that a tensor holds."""
    value = call["self"].reshape(-1)[0].item()
    return math.nan if isinstance(value, float) and math.isnan(value) else value
