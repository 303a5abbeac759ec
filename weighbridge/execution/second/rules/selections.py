"""Operations that pick the larger or the smaller number, and the steps of activations that do so."""

from __future__ import annotations

from typing import Any

import numpy as np

from weighbridge.execution.second.memory import Array, NotCoveredError
from weighbridge.execution.second.table import Call, Kind, rule
from weighbridge.execution.second.types import cast


def _between(x: Array, low: Any, high: Any) -> Array:
    """Returns numbers between two ends, of which None is no end; NaN stay."""
    for end, pick in ((low, np.maximum), (high, np.minimum)):
        if end is not None:
            x = np.asarray(pick(x, cast(end, x.dtype)))
    return x


@rule("relu.default", "self", Kind.SELECT)
def _relu(call: Call) -> Array:
    """max(self, 0)."""
    return _between(call["self"], 0, None)


@rule("clamp.default", "self min=None max=None", Kind.SELECT)
@rule("clamp_min.default", "self min", Kind.SELECT)
@rule("clamp_max.default", "self max", Kind.SELECT)
@rule("hardtanh.default", "self min_val=-1.0 max_val=1.0", Kind.SELECT)
def _clamp(call: Call) -> Array:
    """Self between two numbers."""
    ends = ("min_val", "max_val") if call.name == "hardtanh" else ("min", "max")
    low, high = (call.operands.get(name) for name in ends)
    return _between(cast(call["self"], call.kind()), low, high)


@rule("maximum.default minimum.default", "self other", Kind.SELECT)
def _either(call: Call) -> Array:
    """The larger, or the smaller, of two."""
    pick = np.maximum if call.name == "maximum" else np.minimum
    return np.asarray(pick(cast(call["self"], call.kind()), cast(call["other"], call.kind())))


@rule("amax.default amin.default", "self dim=[] keepdim=False", Kind.SELECT)
def _extreme(call: Call) -> Array:
    """The largest, or the smallest, over some dimensions, all for none."""
    x = call["self"]
    if not x.size:
        raise NotCoveredError(f"{call.name} of nothing")
    pick = np.max if call.name == "amax" else np.min
    return np.asarray(pick(x, axis=tuple(call["dim"]) or None, keepdims=call["keepdim"]))


@rule("max.default min.default", "self", Kind.SELECT)
def _of_all(call: Call) -> Array:
    """The largest, or the smallest, of all."""
    if not call["self"].size:
        raise NotCoveredError(f"{call.name} of nothing")
    return np.asarray((np.max if call.name == "max" else np.min)(call["self"]))


@rule("threshold_backward.default", "grad_output self threshold", Kind.MOVE, computes=True)
def _threshold_backward(call: Call) -> Array:
    """The gradient where self is above the threshold, or not a number; 0 elsewhere."""
    x, grad = call["self"], call["grad_output"]
    return np.where(x <= cast(call["threshold"], x.dtype), cast(0, grad.dtype), grad)
