"""Layer norms and their gradients."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weighbridge.execution.second.bounds import Bound, Floats, U, gamma
from weighbridge.execution.second.memory import NotCoveredError
from weighbridge.execution.second.rules.sums import total
from weighbridge.execution.second.table import Call, Kind, Wide, rule


@jax.jit
def _normalise(x: Any, mean: Any, weight: Any, bias: Any, eps: Any) -> Any:
    centred = x - mean
    rstd = 1.0 / jnp.sqrt(jnp.sum(centred * centred, axis=1, keepdims=True) / x.shape[1] + eps)
    return centred * rstd * weight + bias, rstd


def _rows(call: Call, name: str) -> tuple[Floats, int]:
    """Returns an operand as rows that are normalised each by itself, and their length."""
    x, shape = call.wide(name), tuple(call["normalized_shape"])
    n = math.prod(shape)
    if not x.size or x.shape[x.ndim - len(shape) :] != shape:
        raise NotCoveredError(f"{call.name} of nothing, or of another shape")
    return x.reshape(-1, n), n


@rule("native_layer_norm.default", "input normalized_shape weight bias eps", Kind.ROUNDED)
def _layer_norm(call: Call) -> list[Wide]:
    """(x - mean)/sqrt(variance + eps)*weight + bias; the mean; and one over that root."""
    x, n = _rows(call, "input")
    weight, bias = call.perhaps("weight"), call.perhaps("bias")
    w = np.ones(n) if weight is None else weight.reshape(-1)
    b = np.zeros(n) if bias is None else bias.reshape(-1)
    mean = total(x, (1,), True) / n  # not by a factor of 1/n: means often lie half way between two float32 numbers
    out, rstd = (np.asarray(part) for part in _normalise(x, mean, w, b, float(call["eps"])))
    squares, g = np.sum(x * x, axis=1, keepdims=True), gamma(n + 8)
    e_mean, e_var = np.sqrt(squares) * (g / math.sqrt(n)), squares * (8 * g / n)
    with np.errstate(all="ignore"):
        relative = rstd * rstd * e_var / 2 + 8 * U

    def of_out() -> Bound:
        both = np.abs(w) if bias is None else np.abs(w) + np.abs(b)
        row = (rstd * e_mean + relative) * 2
        factors = (row.reshape(call.shape(1)), both.reshape(call["normalized_shape"]))
        return Bound(rel=2 * float(relative.max()) + 8 * U, factors=factors)

    def of_row(size: Floats) -> Any:
        return lambda: Bound(factors=(size.reshape(call.shape(1)),))

    return [
        Wide(out.reshape(call["input"].shape), of_out),
        Wide(mean.reshape(call.shape(1)), of_row(e_mean)),
        Wide(rstd.reshape(call.shape(2)), of_row(rstd * relative)),
    ]


@jax.jit
def _gradients(grad: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    n = x.shape[1]
    along, normal = grad * weight, (x - mean) * rstd
    rest = along - jnp.sum(along, axis=1, keepdims=True) / n
    rest = rest - normal * (jnp.sum(along * normal, axis=1, keepdims=True) / n)
    return rstd * rest, jnp.sum(grad * normal, axis=0), jnp.sum(grad, axis=0)


@rule(
    "native_layer_norm_backward.default",
    "grad_out input normalized_shape mean rstd weight bias output_mask",
    Kind.ROUNDED,
)
def _layer_norm_backward(call: Call) -> list[Wide | None]:
    """rstd*(a - mean(a) - xhat*mean(a*xhat)), a = g*weight; sums of g*xhat and of g over the rows."""
    x, n = _rows(call, "input")
    grad, rows = call.wide("grad_out").reshape(-1, n), x.shape[0]
    mean, rstd = call.wide("mean").reshape(-1, 1), call.wide("rstd").reshape(-1, 1)
    weight = call.perhaps("weight")
    w = np.ones(n) if weight is None else weight.reshape(-1)
    if not grad.shape[0] == mean.shape[0] == rstd.shape[0] == rows:
        raise ValueError("the operands have different numbers of rows")
    values = [np.asarray(part) for part in _gradients(grad, x, w, mean, rstd)]

    def of_input() -> Bound:
        along, normal = grad * w, (x - mean) * rstd
        size, spread = (np.sqrt(np.sum(t * t, axis=1, keepdims=True)) for t in (along, normal))
        largest, top = (np.max(np.abs(t), axis=1, keepdims=True) for t in (along, normal))
        shift = np.abs(mean * rstd)
        sums = size * (2 / math.sqrt(n)) + top * size * (spread + shift * (2 * math.sqrt(n))) * (2 / n)
        last = largest + size * spread * shift * (2 / n)
        row = np.abs(rstd) * (sums * gamma(n + 16) + last * (16 * U))
        return Bound(rel=16 * U, factors=(row.reshape(call["mean"].shape),))

    def of_weight() -> Bound:
        lost = np.sum(np.abs(grad) * (np.abs(x) + np.abs(mean)) * np.abs(rstd), axis=0)
        return Bound(factors=((lost * gamma(rows + 16)).reshape(call["normalized_shape"]),))

    def of_bias() -> Bound:
        return Bound(factors=((np.sum(np.abs(grad), axis=0) * gamma(rows + 4)).reshape(call["normalized_shape"]),))

    shapes = (call["input"].shape, tuple(call["normalized_shape"]), tuple(call["normalized_shape"]))
    results = zip(values, shapes, (of_input, of_weight, of_bias), call["output_mask"], strict=True)
    return [Wide(value.reshape(shape), bound) if wanted else None for value, shape, bound, wanted in results]
