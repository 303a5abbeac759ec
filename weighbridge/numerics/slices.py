"""Which parts of its operands an operation reads for a part of its result.

A result is cut into boxes of its indices. For a box the table says which box of each operand is needed, so that the
operation on these boxes has, element for element, the bound that the whole has: what a bound counts (terms of a sum) is
never cut. The value of an element may differ in its last bits, since a library may add up in another order in another
shape. It stays within the bound, so one rounding log gives both the same rounded result: that is why only strict bounds
may be used so. Every overload that no class names is `whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weighbridge.numerics.rule_table import base_name
from weighbridge.numerics.schemas import Op

Box = tuple[tuple[int, int], ...]
"""First index and last + 1, for each dimension."""
Shape = Sequence[int]
Boxes = Callable[[dict[str, Any], Shape, Box], dict[str, Box]]
Tensor = torch.Tensor

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
    """Returns the part of the result that is computed for a box: the whole rows of an operation on rows."""
    if ".".join(base_name(op)) not in _ROW_NAMES or not shape:
        return box
    dim = bound["dim"] % len(shape)
    return tuple((0, size) if d == dim else part for d, (size, part) in enumerate(zip(shape, box, strict=True)))


def operand_boxes(op: Op, bound: dict[str, Any], shape: Shape, box: Box) -> dict[str, Box] | None:
    """Returns which box of each tensor among the operands is needed for a box of the result that was `widened`.

    Args:
        op: The overload.
        bound: Its operands by name; of tensors only the shape matters.
        shape: Of the result.
        box: Of the result.

    Returns:
        By name of the operand; None if the operation has to be executed whole.
    """
    key = ".".join(base_name(op))
    tensors = {name: value for name, value in bound.items() if isinstance(value, Tensor)}
    lists = any(isinstance(v, (list, tuple)) and any(isinstance(t, Tensor) for t in v) for v in bound.values())
    if lists or not tensors or not shape:
        return None
    if key in _ELEMENT_NAMES:
        return {name: _broadcast(tuple(value.shape), box) for name, value in tensors.items()}
    if key in _ROW_NAMES:
        alike = all(tuple(value.shape) == tuple(shape) for value in tensors.values())
        return dict.fromkeys(tensors, box) if alike else None
    if key in _PRODUCT:
        left, right = _PRODUCT[key]
        *outer, row, column = box
        inner = (0, int(tensors[left].shape[-1]))
        boxes = {left: (*outer, row, inner), right: (*outer, inner, column)}
        return boxes | {n: _broadcast(tuple(t.shape), box) for n, t in tensors.items() if n not in boxes}
    return None


def sliced(key: str) -> bool:
    """Whether the overload of a line of the table can be executed for a part of its result."""
    return key in _ELEMENT_NAMES or key in _ROW_NAMES or key in _PRODUCT


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
