"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weighbridge.execution.second.bounds import Bound, U, gamma
from weighbridge.execution.second.memory import F32, NotCoveredError
from weighbridge.execution.second.table import Call, Kind, Wide, rule

_TYPES = ("dtype", "input_dtype")
"""Operands that name the type that is computed in, or that a gradient is of."""


@partial(jax.jit, static_argnums=(1, 2))
def _softmax(x: Any, dim: int, safe: bool) -> Any:
    top = jnp.max(x, axis=dim, keepdims=True)
    terms = jnp.exp(x - top)
    shares = terms / jnp.sum(terms, axis=dim, keepdims=True)
    return jnp.where(top == -jnp.inf, 0.0, shares) if safe else shares


@partial(jax.jit, static_argnums=1)
def _log_softmax(x: Any, dim: int) -> Any:
    centred = x - jnp.max(x, axis=dim, keepdims=True)
    return centred - jnp.log(jnp.sum(jnp.exp(centred), axis=dim, keepdims=True))


@partial(jax.jit, static_argnums=2)
def _softmax_backward(grad: Any, out: Any, dim: int) -> Any:
    return out * (grad - jnp.sum(grad * out, axis=dim, keepdims=True))


@partial(jax.jit, static_argnums=2)
def _log_softmax_backward(grad: Any, out: Any, dim: int) -> Any:
    return grad - jnp.exp(out) * jnp.sum(grad, axis=dim, keepdims=True)


def _lines(call: Call, name: str) -> tuple[Any, int, int]:
    """Returns an operand, the dimension along which it is normalised, and its length."""
    x = call.wide(name)
    if not x.ndim or not x.size:
        raise NotCoveredError(f"{call.name} of a number, or of nothing")
    kinds = [kind for kind in map(call.operands.get, _TYPES) if kind is not None]
    if call.operands.get("half_to_float") or any(kind is not F32 for kind in kinds):
        raise NotCoveredError(f"{call.name} of another type than float32")
    return x, call["dim"], x.shape[call["dim"]]


@rule("_softmax.default", "self dim half_to_float", Kind.ROUNDED)
@rule("_safe_softmax.default", "self dim dtype=None", Kind.ROUNDED)
def _shares(call: Call) -> Wide:
    """exp(x) over the sum of exp(x); by the safe form, a line of minus infinities has zeros."""
    x, dim, n = _lines(call, "self")
    value = np.asarray(_softmax(x, dim, call.name == "_safe_softmax"))
    return Wide(value, lambda: Bound(rel=gamma(n + 32) + 800 * U, absolute=2.0**-1000))


@rule("_softmax_backward_data.default", "grad_output output dim input_dtype", Kind.ROUNDED)
def _shares_backward(call: Call) -> Wide:
    """Out * (g - sum(g*out))."""
    out, dim, n = _lines(call, "output")
    grad = call.wide("grad_output")

    def bound() -> Bound:
        size = np.max(np.abs(grad), axis=dim, keepdims=True) + np.sum(np.abs(grad * out), axis=dim, keepdims=True)
        return Bound(factors=(np.abs(out), size * gamma(n + 8)))

    return Wide(np.asarray(_softmax_backward(grad, out, dim)), bound)


@rule("_log_softmax.default", "self dim half_to_float", Kind.ROUNDED)
def _logarithms(call: Call) -> Wide:
    """X - log(sum(exp(x)))."""
    x, dim, n = _lines(call, "self")

    def bound() -> Bound:
        absolute = gamma(n + 64) * 2 + 800 * U + 8 * U * math.log(max(n, 2))
        return Bound(
            rel=8 * U, absolute=absolute, factors=(np.abs(np.max(x, axis=dim, keepdims=True)) * (8 * U),)
        )  # fmt: skip

    return Wide(np.asarray(_log_softmax(x, dim)), bound)


@rule("_log_softmax_backward_data.default", "grad_output output dim input_dtype", Kind.ROUNDED)
def _logarithms_backward(call: Call) -> Wide:
    """G - exp(out)*sum(g)."""
    out, dim, n = _lines(call, "output")
    grad = call.wide("grad_output")

    def bound() -> Bound:
        size = np.sum(np.abs(grad), axis=dim, keepdims=True)
        return Bound(rel=8 * U, factors=(np.exp(out), size * gamma(n + 16)))

    return Wide(np.asarray(_log_softmax_backward(grad, out, dim)), bound)
