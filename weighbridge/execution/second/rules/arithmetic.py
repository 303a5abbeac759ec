"""Single IEEE operations, and fixed sequences of them: each step is rounded to nearest, and none is contracted."""

from __future__ import annotations

from typing import Any

import numpy as np

from weighbridge.execution.second.memory import Array, NotCoveredError
from weighbridge.execution.second.table import Call, Kind, rule
from weighbridge.execution.second.types import cast

_OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def _apply(operation: Any, *operands: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(operation(*operands))


def _pair(call: Call, left: Any, right: Any) -> tuple[Array, Array]:
    kind = call.kind()
    return cast(left, kind), cast(right, kind)


@rule("add.Tensor add.Scalar sub.Tensor sub.Scalar", "self other alpha=1", Kind.EXACT)
def _sum(call: Call) -> Array:
    """Self + other*alpha, or self - other*alpha; with a factor, its product is rounded first."""
    x, y = _pair(call, call["self"], call["other"])
    if call["alpha"] == 1 and call["alpha"] is not True:
        if x.dtype == np.bool_:
            raise NotCoveredError(f"{call.name} of booleans")
        return _apply(_OPERATIONS[call.name], x, y)
    if x.dtype != np.float32:
        raise NotCoveredError(f"{call.name} with a factor, not on float32")
    factor = call["alpha"] if call.name == "add" else -call["alpha"]
    return _apply(np.add, x, _apply(np.multiply, y, cast(factor, x.dtype)))


@rule("rsub.Scalar rsub.Tensor", "self other alpha=1", Kind.EXACT)
def _reversed(call: Call) -> Array:
    """Other - self."""
    if call["alpha"] != 1:
        raise NotCoveredError("rsub with a factor")
    x, y = _pair(call, call["self"], call["other"])
    return _apply(np.subtract, y, x)


@rule("mul.Tensor mul.Scalar", "self other", Kind.EXACT)
def _product(call: Call) -> Array:
    """Self * other."""
    x, y = _pair(call, call["self"], call["other"])
    return _apply(np.logical_and if x.dtype == np.bool_ else np.multiply, x, y)


@rule("div.Tensor div.Scalar", "self other", Kind.EXACT)
def _quotient(call: Call) -> Array:
    """Self / other."""
    x, y = _pair(call, call["self"], call["other"])
    if x.dtype.kind != "f":
        raise NotCoveredError("div of integers into integers")
    return _apply(np.divide, x, y)


@rule("reciprocal.default", "self", Kind.EXACT)
def _reciprocal(call: Call) -> Array:
    """1 / self."""
    one, x = _pair(call, 1.0, call["self"])
    return _apply(np.divide, one, x)


@rule("sqrt.default", "self", Kind.EXACT)
def _root(call: Call) -> Array:
    """The square root."""
    if call.kind() != np.float32:
        raise NotCoveredError("sqrt of another type than float32")
    return _apply(np.sqrt, cast(call["self"], call.kind()))


@rule("lerp.Scalar lerp.Tensor", "self end weight", Kind.EXACT)
def _interpolated(call: Call) -> Array:
    """Self + (end - self)*weight."""
    x, end, weight = _float32(call, "self", "end", "weight")
    return _apply(np.add, x, _apply(np.multiply, _apply(np.subtract, end, x), weight))


@rule("addcmul.default", "self tensor1 tensor2 value=1", Kind.EXACT)
def _plus_product(call: Call) -> Array:
    """Self + (tensor1*tensor2)*value."""
    x, first, second, value = _float32(call, "self", "tensor1", "tensor2", "value")
    return _apply(np.add, x, _apply(np.multiply, _apply(np.multiply, first, second), value))


@rule("addcdiv.default", "self tensor1 tensor2 value=1", Kind.EXACT)
def _plus_quotient(call: Call) -> Array:
    """Self + (tensor1/tensor2)*value."""
    x, first, second, value = _float32(call, "self", "tensor1", "tensor2", "value")
    return _apply(np.add, x, _apply(np.multiply, _apply(np.divide, first, second), value))


def _float32(call: Call, *names: str) -> list[Array]:
    for name in names:
        if isinstance(call[name], np.ndarray) and call[name].dtype != np.float32:
            raise NotCoveredError(f"{call.name} with {name} of another type than float32")
    return [cast(call[name], np.dtype(np.float32)) for name in names]
