"""Convolutions and their gradients: the gradients are the transposes of what the convolution is as a linear map."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weighbridge.execution.second.bounds import Bound, Floats, gamma, norm
from weighbridge.execution.second.memory import NotCoveredError
from weighbridge.execution.second.table import Call, Kind, Wide, rule

Setting = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Strides, padding and dilation, a number for each dimension in space."""


def _map(x: Any, filters: Any, setting: Setting) -> Any:
    stride, padding, dilation = setting
    return jax.lax.conv_general_dilated(
        x, filters, stride, [(width, width) for width in padding], rhs_dilation=dilation
    )


@partial(jax.jit, static_argnums=2)
def _convolve(x: Any, filters: Any, setting: Setting) -> Any:
    return _map(x, filters, setting)


@partial(jax.jit, static_argnums=(2, 3))
def _to_input(grad: Any, filters: Any, shape: tuple[int, ...], setting: Setting) -> Any:
    return jax.linear_transpose(lambda x: _map(x, filters, setting), jnp.zeros(shape))(grad)[0]


@partial(jax.jit, static_argnums=(2, 3))
def _to_filters(grad: Any, x: Any, shape: tuple[int, ...], setting: Setting) -> Any:
    return jax.linear_transpose(lambda filters: _map(x, filters, setting), jnp.zeros(shape))(grad)[0]


@partial(jax.jit, static_argnums=1)
def _sum_over(x: Any, axes: tuple[int, ...]) -> Any:
    return jnp.sum(x, axis=axes)


def _setting(call: Call, dimensions: int) -> Setting:
    if call["transposed"] or call["groups"] != 1 or dimensions < 1:
        raise NotCoveredError(f"{call.name}, transposed or in groups")

    def each(name: str) -> tuple[int, ...]:
        given = tuple(call[name])
        return given if len(given) == dimensions else given[:1] * dimensions

    return each("stride"), each("padding"), each("dilation")


def _vector(x: Floats, dimensions: int) -> Floats:
    return x.reshape(1, -1, *[1] * dimensions)


@rule(
    "convolution.default",
    "input weight bias stride padding dilation transposed output_padding groups",
    Kind.ROUNDED,
)
def _convolution(call: Call) -> Wide:
    """What filters find at each place, and a bias."""
    x, w, bias = call.wide("input"), call.wide("weight"), call.perhaps("bias")
    space = w.ndim - 2
    setting = _setting(call, space)
    if not x.size or x.ndim != w.ndim:
        raise NotCoveredError("convolution of nothing, or of one example alone")
    value = np.asarray(_convolve(x, w, setting))
    with np.errstate(all="ignore"):
        value = value if bias is None else value + _vector(bias, space)
    g = gamma(math.prod(w.shape[1:]) + 8)

    def bound() -> Bound:
        squares = np.sum(x * x, axis=1, keepdims=True)
        patches = np.sqrt(np.asarray(_convolve(squares, np.ones((1, 1, *w.shape[2:])), setting)))
        filters = norm(w, tuple(range(1, w.ndim))).reshape(-1)
        return Bound(rel=g, factors=(patches * (2 * g), _vector(filters, space)))

    return Wide(value, bound)


@rule(
    "convolution_backward.default",
    "grad_output input weight bias_sizes stride padding dilation transposed output_padding groups output_mask",
    Kind.ROUNDED,
)
def _convolution_backward(call: Call) -> list[Wide | None]:
    """The transposes of the convolution as a map of its input and of its filters, and sums for the bias."""
    grad, x, w, mask = call.wide("grad_output"), call.wide("input"), call.wide("weight"), call["output_mask"]
    space = w.ndim - 2
    setting, axes = _setting(call, space), (0, *range(2, grad.ndim))
    if not grad.size:
        raise NotCoveredError("convolution_backward of nothing")
    places = grad.shape[0] * math.prod(grad.shape[2:])

    def of_input() -> Bound:
        squares, one = np.sum(grad * grad, axis=1, keepdims=True), np.ones((1, 1, *w.shape[2:]))
        seen = np.asarray(_to_input(squares, one, (x.shape[0], 1, *x.shape[2:]), setting))
        filters = norm(w, (0, *range(2, w.ndim))).reshape(-1)
        k = w.shape[0] * math.prod(w.shape[2:])
        return Bound(factors=(np.sqrt(np.maximum(seen, 0)) * gamma(k + 8), _vector(filters, space)))

    def of_filters() -> Bound:
        squares, ones = np.sum(x * x, axis=0)[:, None], np.ones((x.shape[1], 1, *grad.shape[2:]))
        taps = [
            np.asarray(_to_filters(ones[c : c + 1], squares[c : c + 1], (1, 1, *w.shape[2:]), setting))[0]
            for c in range(x.shape[1])
        ]
        rows = norm(grad, axes).reshape(-1, 1, *[1] * space) * gamma(places + 8)
        return Bound(factors=(rows, np.sqrt(np.maximum(np.concatenate(taps)[None], 0))))

    def of_bias() -> Bound:
        return Bound(factors=(np.sum(np.abs(grad), axis=axes) * gamma(places + 2),))

    return [
        Wide(np.asarray(_to_input(grad, w, x.shape, setting)), of_input) if mask[0] else None,
        Wide(np.asarray(_to_filters(grad, x, w.shape, setting)), of_filters) if mask[1] else None,
        Wide(np.asarray(_sum_over(grad, axes)), of_bias) if mask[2] else None,
    ]
