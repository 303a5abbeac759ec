"""Largest numbers of windows, and their gradients."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weighbridge.core.errors import TapeError
from weighbridge.execution.second.bounds import Bound, gamma, inexact
from weighbridge.execution.second.memory import Array, NotCoveredError
from weighbridge.execution.second.table import Call, Kind, Wide, rule


def _both(setting: Any, otherwise: tuple[int, int]) -> tuple[int, int]:
    given = (setting,) if isinstance(setting, int) else tuple(setting)
    return otherwise if not given else (given[0], given[-1])


@rule("max_pool2d_with_indices.default", "self kernel_size stride=[] padding=0 dilation=1 ceil_mode=False", Kind.MOVE)
def _max_pool(call: Call) -> list[Array]:
    """The largest number of each window, the first of equal ones, or the last that is no number; and its place."""
    x = call["self"]
    if call["ceil_mode"] or x.ndim != 4 or x.dtype != np.float32:
        raise NotCoveredError("max_pool2d with ceil_mode, or not of four dimensions of float32")
    window = _both(call["kernel_size"], (1, 1))
    stride, padding, apart = (
        _both(call["stride"], window),
        _both(call["padding"], (0, 0)),
        _both(call["dilation"], (1, 1)),
    )
    height, width = x.shape[2:]
    size = [(n + 2 * p - a * (k - 1) - 1) // s + 1 for n, p, a, k, s in zip(
        (height, width), padding, apart, window, stride, strict=True)]  # fmt: skip
    best = np.full((*x.shape[:2], *size), -np.inf, np.float32)
    where = np.zeros(best.shape, np.int64)
    rows, columns = (np.arange(size[d]) * stride[d] - padding[d] for d in (0, 1))
    for d, tap in enumerate(itertools.product(range(window[0]), range(window[1]))):
        row, column = (rows + tap[0] * apart[0])[:, None], (columns + tap[1] * apart[1])[None, :]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        value = x[:, :, np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
        taken = inside & ((value > best) | np.isnan(value) | (d == 0))
        best, where = np.where(taken, value, best), np.where(taken, row * width + column, where)
    return [best, where]


@partial(jax.jit, static_argnums=2)
def _scattered(grad: Any, index: Any, count: int) -> Any:
    return jnp.zeros((grad.shape[0], count)).at[jnp.arange(grad.shape[0])[:, None], index].add(grad)


@rule(
    "max_pool2d_with_indices_backward.default",
    "grad_output self kernel_size stride padding dilation ceil_mode indices",
    Kind.ROUNDED,
)
def _max_pool_backward(call: Call) -> Wide:
    """For each place, the sum of the gradients of windows whose largest number it had."""
    grad, x, index = call.wide("grad_output"), call["self"], call["indices"]
    plane = math.prod(x.shape[-2:])
    if not grad.size or grad.shape != index.shape or grad.shape[:-2] != x.shape[:-2]:
        raise NotCoveredError("max_pool2d backward of nothing, or of other planes")
    if int(index.min()) < 0 or int(index.max()) >= plane:
        raise TapeError(f"max_pool2d backward has an index outside 0..{plane - 1}", code="tape.out_of_bounds")
    rows, places = grad.reshape(-1, math.prod(grad.shape[-2:])), index.reshape(-1, math.prod(grad.shape[-2:]))
    n = math.prod(_both(call["kernel_size"], (1, 1)))

    def bound() -> Bound:
        size = np.abs(rows)
        spread = np.asarray(_scattered(size, places, plane)) * gamma(n + 16)
        least = np.min(np.where(size == 0, np.inf, size), axis=1, keepdims=True)
        return Bound(factors=(inexact(spread, least).reshape(x.shape),))

    return Wide(np.asarray(_scattered(rows, places, plane)).reshape(x.shape), bound)
