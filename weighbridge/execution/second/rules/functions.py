"""Functions of single elements, activations among them, and their gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

from weighbridge.execution.second.bounds import Bound, U
from weighbridge.execution.second.memory import NotCoveredError
from weighbridge.execution.second.table import Call, Kind, Wide, rule

_PLAIN = {
    "exp": jnp.exp, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p, "log2": jnp.log2, "sin": jnp.sin,
    "cos": jnp.cos, "tanh": jnp.tanh, "erf": special.erf,
}  # fmt: skip
_COMPILED = {name: jax.jit(function) for name, function in _PLAIN.items()}
_ROOT_HALF, _DENSITY = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def _relative(ulps: float) -> Any:
    return lambda: Bound(rel=ulps * 2 * U)


@rule(" ".join(f"{name}.default" for name in _PLAIN), "self", Kind.ROUNDED)
def _plain(call: Call) -> Wide:
    """The function."""
    return Wide(np.asarray(_COMPILED[call.name](call.wide("self"))), _relative(8))


@jax.jit
def _inverse_root(x: Any) -> Any:
    return 1.0 / jnp.sqrt(x)


@rule("rsqrt.default", "self", Kind.ROUNDED)
def _rsqrt(call: Call) -> Wide:
    """1 over the square root."""
    return Wide(np.asarray(_inverse_root(call.wide("self"))), _relative(4))


@jax.jit
def _logistic(x: Any) -> Any:
    return 1.0 / (1.0 + jnp.exp(-x))


@rule("sigmoid.default", "self", Kind.ROUNDED)
def _sigmoid(call: Call) -> Wide:
    """1/(1 + exp(-x))."""
    return Wide(np.asarray(_logistic(call.wide("self"))), _relative(8))


@jax.jit
def _swish(x: Any) -> Any:
    return x / (1.0 + jnp.exp(-x))


@rule("silu.default", "self", Kind.ROUNDED)
def _silu(call: Call) -> Wide:
    """x/(1 + exp(-x))."""
    return Wide(np.asarray(_swish(call.wide("self"))), _relative(8))


@jax.jit
def _swish_backward(grad: Any, x: Any) -> Any:
    share = _logistic(x)
    return grad * share * (1.0 + x * (1.0 - share))


@rule("silu_backward.default", "grad_output self", Kind.ROUNDED)
def _silu_backward(call: Call) -> Wide:
    """G * s * (1 + x*(1 - s)), s being the sigmoid."""
    grad, x = call.wide("grad_output"), call.wide("self")
    return Wide(
        np.asarray(_swish_backward(grad, x)),
        lambda: Bound(rel=16 * U, factors=(np.abs(grad) * (np.abs(x) + 1) * (32 * U),)),
    )


@partial(jax.jit, static_argnums=1)
def _gaussian(x: Any, tanh: bool) -> Any:
    if tanh:
        return 0.5 * x * (1.0 + jnp.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x)))
    return 0.5 * x * special.erfc(-x * _ROOT_HALF)


@partial(jax.jit, static_argnums=2)
def _gaussian_backward(grad: Any, x: Any, tanh: bool) -> Any:
    if tanh:
        # By the logistic function: 1 - tanh^2 of a tanh next to 1 is an error alone, which x^3 makes large.
        twice = 2 * _TANH_SCALE * (x + _TANH_CUBE * x * x * x)
        rest = jnp.exp(-jnp.abs(twice))
        slope = _TANH_SCALE * (1.0 + 3 * _TANH_CUBE * x * x)
        return grad * (_logistic(twice) + 2.0 * (x * slope * rest) / ((1.0 + rest) * (1.0 + rest)))
    return grad * (0.5 * special.erfc(-x * _ROOT_HALF) + x * _DENSITY * jnp.exp(-0.5 * x * x))


def _by_tanh(call: Call) -> bool:
    if call["approximate"] not in ("none", "tanh"):
        raise NotCoveredError(f"gelu by {str(call['approximate'])[:20]}")
    return bool(call["approximate"] == "tanh")


@rule("gelu.default", "self approximate=none", Kind.ROUNDED)
def _gelu(call: Call) -> Wide:
    """X times the normal distribution function at x, or its approximation by tanh."""
    x = call.wide("self")
    return Wide(np.asarray(_gaussian(x, _by_tanh(call))), lambda: Bound(rel=64 * U, factors=(np.abs(x) * (64 * U),)))


@rule("gelu_backward.default", "grad_output self approximate=none", Kind.ROUNDED)
def _gelu_backward(call: Call) -> Wide:
    """The gradient of that."""
    grad, x = call.wide("grad_output"), call.wide("self")
    return Wide(
        np.asarray(_gaussian_backward(grad, x, _by_tanh(call))),
        lambda: Bound(rel=32 * U, factors=(np.abs(grad) * (128 * U),)),
    )


@jax.jit
def _tanh_slope(grad: Any, out: Any) -> Any:
    return grad * (1.0 - out * out)


@jax.jit
def _logistic_slope(grad: Any, out: Any) -> Any:
    return grad * (1.0 - out) * out


@rule("tanh_backward.default sigmoid_backward.default", "grad_output output", Kind.ROUNDED)
def _by_output(call: Call) -> Wide:
    """g*(1 - y^2), or g*(1 - y)*y."""
    slope = _tanh_slope if call.name == "tanh_backward" else _logistic_slope
    return Wide(np.asarray(slope(call.wide("grad_output"), call.wide("output"))), _relative(8))


@jax.jit
def _power(x: Any, exponent: Any) -> Any:
    return jnp.power(x, exponent)


@rule("pow.Tensor_Scalar", "self exponent", Kind.ROUNDED)
def _raised(call: Call) -> Wide:
    """X to a power."""
    return Wide(np.asarray(_power(call.wide("self"), float(call["exponent"]))), _relative(32))
