"""Sums, norms, and gradients that add up what an index names."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weighbridge.execution.second.bounds import Bound, Floats, Ints, U, gamma, inexact, of_sum, over
from weighbridge.execution.second.memory import Array, NotCoveredError
from weighbridge.execution.second.table import Call, Kind, Wide, rule
from weighbridge.execution.second.types import cast


@partial(jax.jit, static_argnums=(1, 2))
def _total(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return jnp.sum(x, axis=axes, keepdims=keep)


@partial(jax.jit, static_argnums=(1, 2))
def _length(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=keep))


@partial(jax.jit, static_argnums=1)
def _cumulated(x: Any, axis: int) -> Any:
    return jnp.cumsum(x, axis=axis)


@partial(jax.jit, static_argnums=2)
def _by_row(x: Any, rows: Any, count: int) -> Any:
    return jax.ops.segment_sum(x, rows, num_segments=count)


def total(x: Floats, axes: tuple[int, ...], keep: bool = False) -> Floats:
    """Returns sums over some dimensions in float64."""
    return np.asarray(_total(x, axes, keep))


def axes_of(x: Array, dim: Any) -> tuple[int, ...]:
    """Returns the dimensions that an operand `dim` names; all of them for none."""
    if dim is None or (isinstance(dim, list) and not dim):
        return tuple(range(x.ndim))
    named = [dim] if isinstance(dim, int) else dim
    if any(not -max(x.ndim, 1) <= d < max(x.ndim, 1) for d in named):
        raise ValueError("a dimension does not exist")
    return tuple(d % x.ndim for d in named) if x.ndim else ()


@rule("sum.default", "self dtype=None", Kind.ROUNDED)
@rule("sum.dim_IntList", "self dim keepdim=False dtype=None", Kind.ROUNDED)
def _sum(call: Call) -> Any:
    """The sum over some dimensions."""
    x, axes, keep = call["self"], axes_of(call["self"], call.operands.get("dim")), call.operands.get("keepdim", False)
    if call.kind().kind in "iu" and x.dtype.kind in "iub":
        return np.sum(x.astype(np.int64), axis=axes, keepdims=keep).astype(call.kind())
    if call["dtype"] is not None:
        raise NotCoveredError("sum into another type")
    wide = call.wide("self")
    if not x.ndim or not x.size:
        return Wide(total(wide, axes, keep), lambda: Bound(rel=4 * U))
    return Wide(total(wide, axes, keep), lambda: of_sum(x, axes, over(x.shape, axes), keep=keep))


@rule("cumsum.default", "self dim dtype=None", Kind.ROUNDED)
def _running(call: Call) -> Any:
    """The sums of all elements up to each, along one dimension."""
    x, dim = call["self"], call["dim"]
    if call.kind().kind in "iu" and x.dtype.kind in "iub":
        return np.cumsum(x.astype(np.int64), axis=dim).astype(call.kind()) if x.ndim else cast(x, call.kind())
    if call["dtype"] is not None or not x.ndim:
        raise NotCoveredError("cumsum into another type, or of a number")
    wide = call.wide("self")
    n = x.shape[dim]
    return Wide(
        np.asarray(_cumulated(wide, dim)), lambda: Bound(factors=(np.cumsum(np.abs(wide), axis=dim) * gamma(n + 1),))
    )


@rule("linalg_vector_norm.default", "self ord=2 dim=None keepdim=False dtype=None", Kind.ROUNDED)
def _norm(call: Call) -> Wide:
    """The root of the sum of squares."""
    x = call.wide("self")
    if call["ord"] != 2 or call["dtype"] is not None:
        raise NotCoveredError(f"linalg_vector_norm of order {call['ord']}")
    axes = axes_of(x, call["dim"])
    value = np.asarray(_length(x, axes, call["keepdim"]))
    return Wide(value, lambda: Bound(rel=gamma(over(x.shape, axes) + 32)))


@rule(
    "embedding_dense_backward.default", "grad_output indices num_weights padding_idx scale_grad_by_freq", Kind.ROUNDED
)
def _rows(call: Call) -> Any:
    """For each row of the weights, the sum of the gradients of its uses; only rows that are used are rounded."""
    if call["scale_grad_by_freq"]:
        raise NotCoveredError("embedding_dense_backward scaled by frequency")
    index: Ints = call["indices"].reshape(-1).astype(np.int64)
    grad = call.wide("grad_output").reshape(index.size, -1)
    kept = index != call["padding_idx"]
    index, grad = index[kept], grad[kept]
    if index.size and (int(index.min()) < 0 or int(index.max()) >= call["num_weights"]):
        raise NotCoveredError("embedding_dense_backward with an index of no row")
    rows, places = np.unique(index, return_inverse=True)
    uses = np.bincount(places, minlength=rows.size)[:, None]

    def bound() -> Bound:
        size = np.abs(grad)
        sums = np.zeros((rows.size, grad.shape[1]))
        np.add.at(sums, places, size)
        least = np.min(np.where(size == 0, np.inf, size), axis=0, initial=np.inf)
        return Bound(factors=(inexact(sums, least), (uses + 4) * (2 * U)))

    compact = np.asarray(_by_row(grad, places, rows.size)) if rows.size else np.zeros((0, grad.shape[1]))
    out = np.zeros((call["num_weights"], grad.shape[1]), np.float32)
    out[rows] = call.accounting.rounded(Wide(compact, bound))
    return out
