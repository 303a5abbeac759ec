"""Which parts of its operands an operation reads for a part of its result.

A result is cut into boxes of its indices. For a box the table says which box of each operand is needed, so that the
operation on these boxes has, element for element, the bound that the whole has: what a bound counts (terms of a sum) is
never cut. The value of an element may differ in its last bits, since a library may add up in another order in another
shape. It stays within the bound, so one rounding log gives both the same rounded result: that is why only strict bounds
may be used so. Every overload that no class names is `whole`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weighbridge.core.digests import record_digest
from weighbridge.numerics.arrays import windows
from weighbridge.numerics.arrays.windows import Box, Shape
from weighbridge.numerics.bounds import reduced
from weighbridge.numerics.rule_table import base_name
from weighbridge.numerics.schemas import Op, argument_names

Tensor = torch.Tensor

VERSION = 2
"""Counts what `digest` cannot see: changes of which boxes a class reads."""

_ELEMENT = """
abs.default add.Scalar add.Tensor addcdiv.default addcmul.default acos.default acosh.default asin.default asinh.default
atan.default atan2.default atanh.default bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor bitwise_xor.Tensor
ceil.default clamp.Tensor clamp.default clamp_max.Tensor clamp_max.default clamp_min.Tensor clamp_min.default
copysign.Tensor cos.default cosh.default div.Scalar div.Tensor elu.default elu_backward.default eq.Scalar eq.Tensor
erf.default erfc.default exp.default exp2.default expm1.default floor.default ge.Scalar ge.Tensor gelu.default
gelu_backward.default gt.Scalar gt.Tensor hardsigmoid.default hardsigmoid_backward.default hardswish.default
hardswish_backward.default hardtanh.default hardtanh_backward.default hypot.default isfinite.default isinf.default
isnan.default le.Scalar le.Tensor leaky_relu.default leaky_relu_backward.default lerp.Scalar lerp.Tensor log.default
log10.default log1p.default log2.default logaddexp.default logaddexp2.default logical_and.default logical_not.default
logical_or.default logical_xor.default lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor maximum.default
minimum.default mish.default mish_backward.default mul.Scalar mul.Tensor ne.Scalar ne.Tensor neg.default
pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal.default relu.default round.default rsqrt.default rsub.Scalar
rsub.Tensor sigmoid.default sigmoid_backward.default sign.default silu.default silu_backward.default sin.default
sinh.default softplus.default softplus_backward.default sqrt.default sub.Scalar sub.Tensor tan.default tanh.default
tanh_backward.default threshold.default threshold_backward.default trunc.default where.self xlogy.Tensor
"""
"""Each element of the result depends on one element of each operand, which may be broadcast."""

_ROW = """
_softmax.default _safe_softmax.default _log_softmax.default _softmax_backward_data.default
_log_softmax_backward_data.default cumsum.default cumprod.default
"""
"""An element depends on those along `dim`, of operands that are shaped as the result."""

_PRODUCT = {
    "mm.default": ("self", "mat2"), "bmm.default": ("self", "mat2"), "addmm.default": ("mat1", "mat2"),
    "baddbmm.default": ("batch1", "batch2"),
}  # fmt: skip
"""An element depends on a row of one operand and a column of the other, and on one element of what is added."""


_REDUCTION = """
sum.dim_IntList nansum.default amax.default amin.default prod.dim_int logsumexp.default linalg_vector_norm.default
norm.ScalarOpt_dim var.correction std.correction var.dim std.dim any.dim any.dims all.dim all.dims argmax.default
argmin.default
"""
"""An element depends on those along `dim` of the only operand, at its own place in the other dimensions."""

_INDEXED = {
    "embedding.default": ("weight", "indices"), "index_select.default": ("self", "index"),
    "gather.default": ("self", "index"),
}  # fmt: skip
"""An element is one of the first operand, in the row along `dim` (0 for embeddings) that the second one names."""

_WINDOW = ("convolution.default",)
"""An element depends on a window of the input, in the channels of its group, and on one filter."""


@dataclass(frozen=True)
class Slice:
    """What makes a part of a result.

    Attributes:
        boxes: Of each tensor among the operands, by name.
        zeros: How many zeros stand before and after such a box, in each dimension.
        settings: Plain operands that are others than those of the whole.
        rows: (operand, dimension, the operand that names which of its rows are needed), if there is one.
    """

    boxes: dict[str, Box]
    zeros: dict[str, Box] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    rows: tuple[str, int, str] | None = None

    def operands(
        self, op: Op, args: Sequence[Any], kwargs: Mapping[str, Any], parts: Mapping[str, Tensor]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Returns what the operation is called with.

        Args:
            op: The overload.
            args: Positional operands of the whole.
            kwargs: Keyword operands of the whole.
            parts: Of the tensors, what the boxes hold.
        """
        given = self.settings | {name: _padded(part, self.zeros.get(name)) for name, part in parts.items()}
        names = argument_names(op)[0][: len(args)]
        positional = [given.get(name, value) for name, value in zip(names, args, strict=True)]
        return positional, {**kwargs, **{name: value for name, value in given.items() if name not in names}}


def _padded(part: Tensor, zeros: Box | None) -> Tensor:
    sides = [side for each in reversed(zeros or ()) for side in each]
    return torch.nn.functional.pad(part, sides) if any(sides) else part


def enclosing(shape: Shape, start: int, stop: int) -> Box:
    """Returns the least box, in this sense, that holds elements `start` to `stop` of a row-major tensor.

    It is one index wide in the first dimensions, as long as the first and the last of these elements agree, and whole
    in those behind the first in which they differ.
    """
    box: list[tuple[int, int]] = []
    first, last = _index(shape, start), _index(shape, stop - 1)
    apart = False
    for size, low, high in zip(shape, first, last, strict=True):
        box.append((0, size) if apart else (low, high + 1))
        apart |= low != high
    return tuple(box)


def widened(op: Op, bound: dict[str, Any], shape: Shape, box: Box) -> Box:
    """Returns the part of the result that is computed for a box: whole rows, whole groups of channels."""
    key = ".".join(base_name(op))
    if key in _WINDOW:
        return windows.widened(bound["input"].shape, bound["weight"].shape, bound, shape, box)
    if key not in _ROW_NAMES or not shape:
        return box
    dim = bound["dim"] % len(shape)
    return tuple((0, size) if d == dim else part for d, (size, part) in enumerate(zip(shape, box, strict=True)))


def slice_of(op: Op, bound: dict[str, Any], shape: Shape, box: Box) -> Slice | None:
    """Returns what makes a box of the result that was `widened`.

    Args:
        op: The overload.
        bound: Its operands by name; of tensors only the shape matters.
        shape: Of the result.
        box: Of the result.

    Returns:
        None if the operation has to be executed whole.
    """
    found = _slice(op, bound, shape, box)
    if found is None or any(not _within(bound[name].shape, part) for name, part in found.boxes.items()):
        return None  # operands that do not fit each other are found out by executing the whole
    if found.rows is not None and bound[found.rows[2]].dtype not in (torch.int32, torch.int64):
        return None
    return found


def _within(shape: Shape, box: Box) -> bool:
    return len(shape) == len(box) and all(0 <= a <= b <= size for (a, b), size in zip(box, shape, strict=True))


def _slice(op: Op, bound: dict[str, Any], shape: Shape, box: Box) -> Slice | None:
    key = ".".join(base_name(op))
    tensors = {name: value for name, value in bound.items() if isinstance(value, Tensor)}
    lists = any(isinstance(v, (list, tuple)) and any(isinstance(t, Tensor) for t in v) for v in bound.values())
    if lists or not tensors or not shape:
        return None
    if key in _ELEMENT_NAMES:
        return Slice({name: _broadcast(tuple(value.shape), box) for name, value in tensors.items()})
    if key in _ROW_NAMES:
        alike = all(tuple(value.shape) == tuple(shape) for value in tensors.values())
        return Slice(dict.fromkeys(tensors, box)) if alike else None
    if key in _PRODUCT:
        left, right = _PRODUCT[key]
        *outer, row, column = box
        inner = (0, int(tensors[left].shape[-1]))
        boxes = {left: (*outer, row, inner), right: (*outer, inner, column)}
        return Slice(boxes | {n: _broadcast(tuple(t.shape), box) for n, t in tensors.items() if n not in boxes})
    if key in _REDUCTION_NAMES:
        return _along(tensors["self"].shape, bound, box) if len(tensors) == 1 else None
    if key in _INDEXED:
        return _picked(key, bound, box)
    return _window(bound, shape, box) if key in _WINDOW else None


def sliced(key: str) -> bool:
    """Whether the overload of a line of the table can be executed for a part of its result."""
    return any(key in names for names in (_ELEMENT_NAMES, _ROW_NAMES, _PRODUCT, _REDUCTION_NAMES, _INDEXED, _WINDOW))


def digest() -> bytes:
    """Returns the digest of this table (32 bytes); parties to a dispute need the same one."""
    named = [sorted(_ELEMENT_NAMES), sorted(_ROW_NAMES), sorted(_REDUCTION_NAMES), sorted(_WINDOW)]
    pairs = [[[key, *names] for key, names in sorted(table.items())] for table in (_PRODUCT, _INDEXED)]
    return record_digest("slices/1", [VERSION, named, pairs])


def _along(shape: Shape, bound: dict[str, Any], box: Box) -> Slice | None:
    """A reduction reads whole what it reduces; without `keepdim`, the result lacks these dimensions."""
    if not shape or bound["dim"] is None:
        return None
    over = {d % len(shape) for d in reduced(torch.empty(shape, device="meta"), bound["dim"])}
    rest = list(box)
    if bound["keepdim"]:
        rest = [part for d, part in enumerate(box) if d not in over]
    kept = iter(rest)
    return Slice({"self": tuple((0, size) if d in over else next(kept) for d, size in enumerate(shape))})


def _picked(key: str, bound: dict[str, Any], box: Box) -> Slice | None:
    table, index = _INDEXED[key]
    shape, named = bound[table].shape, bound[index].shape
    if not shape or not named:
        return None
    if key == "embedding.default":
        return Slice({table: ((0, int(shape[0])), box[-1]), index: box[:-1]}, rows=(table, 0, index))
    if len(shape) != len(box):
        return None
    dim = bound["dim"] % len(shape)
    rows = tuple((0, int(size)) if d == dim else part for d, (size, part) in enumerate(zip(shape, box, strict=True)))
    return Slice({table: rows, index: (box[dim],) if key == "index_select.default" else box}, rows=(table, dim, index))


def _window(bound: dict[str, Any], shape: Shape, box: Box) -> Slice | None:
    tensors = {name: bound[name] for name in ("input", "weight")}
    found = windows.part(tensors["input"].shape, tensors["weight"].shape, bound, shape, box)
    if found is None:
        return None
    there, zeros, filters, settings = found
    boxes = {"input": there, "weight": filters}
    if isinstance(bound["bias"], Tensor):
        boxes["bias"] = (box[1],)
    return Slice(boxes, {"input": zeros}, settings)


def _broadcast(shape: tuple[int, ...], box: Box) -> Box:
    last = box[len(box) - len(shape) :]
    return tuple((0, 1) if size == 1 else part for size, part in zip(shape, last, strict=True))


def _index(shape: Shape, at: int) -> list[int]:
    found = []
    for size in reversed(shape):
        found.append(at % size)
        at //= size
    return found[::-1]


_ELEMENT_NAMES, _ROW_NAMES = frozenset(_ELEMENT.split()), frozenset(_ROW.split())
_REDUCTION_NAMES = frozenset(_REDUCTION.split())
