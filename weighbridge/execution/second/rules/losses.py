"""Losses and their gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weighbridge.core.errors import TapeError
from weighbridge.execution.second.bounds import Bound, Floats, Ints, U, gamma
from weighbridge.execution.second.memory import NotCoveredError
from weighbridge.execution.second.table import Call, Kind, Wide, rule

_MEAN, _SUM = 1, 2


def _targets(call: Call) -> tuple[Floats, Ints, Floats]:
    """Returns the scores as rows, the class of each row (0 where it is ignored), and its weight (0 there)."""
    x, target = call.wide("self"), call["target"]
    if x.ndim not in (1, 2) or call["reduction"] not in (_MEAN, _SUM) or not x.size:
        raise NotCoveredError(f"{call.name} of {x.ndim} dimensions, by reduction {call['reduction']}")
    rows, index = x.reshape(-1, x.shape[-1]), target.reshape(-1).astype(np.int64)
    kept = index != call["ignore_index"]
    named = index[kept]
    if index.size != rows.shape[0]:
        raise ValueError("there is not one target for each row")
    if named.size and (int(named.min()) < 0 or int(named.max()) >= rows.shape[1]):
        raise TapeError(f"{call.name} has an index outside 0..{rows.shape[1] - 1}", code="tape.out_of_bounds")
    index = np.where(kept, index, 0)
    weight = call.perhaps("weight")
    return rows, index, np.where(kept, 1.0 if weight is None else weight[index], 0.0)


@jax.jit
def _likelihood(chosen: Any, weights: Any) -> Any:
    return -jnp.sum(jnp.where(weights == 0, 0.0, chosen * weights)), jnp.sum(weights)


@rule("nll_loss_forward.default", "self target weight reduction ignore_index", Kind.ROUNDED)
def _nll_loss(call: Call) -> list[Wide]:
    """Minus the sum of the chosen scores by weight, or that over the sum of weights; and that sum."""
    rows, index, weights = _targets(call)
    chosen = np.take_along_axis(rows, index[:, None], axis=1)[:, 0]
    value, total = (np.asarray(part) for part in _likelihood(chosen, weights))
    n = max(1, index.size)
    with np.errstate(all="ignore"):
        value = value / total if call["reduction"] == _MEAN else value

    def bound() -> Bound:
        weight = call.perhaps("weight")
        largest = 1.0 if weight is None else float(np.abs(weight).max())
        absolute = float(np.abs(chosen).sum()) * largest * gamma(n + 16)
        return Bound(
            rel=8 * U, absolute=absolute / max(float(total), 1e-300) if call["reduction"] == _MEAN else absolute
        )

    return [Wide(value, bound), Wide(total, lambda: Bound(rel=gamma(n + 8)))]


@rule("nll_loss_backward.default", "grad_output self target weight reduction ignore_index total_weight", Kind.ROUNDED)
def _nll_loss_backward(call: Call) -> Wide:
    """Minus the gradient times the weight, over the sum of weights if averaged, at the chosen score; 0 elsewhere."""
    rows, index, weights = _targets(call)
    out = np.zeros_like(rows)
    with np.errstate(all="ignore"):
        scale = call.wide("grad_output").reshape(())
        scale = scale / call.wide("total_weight") if call["reduction"] == _MEAN else scale
        there = np.flatnonzero(call["target"].reshape(-1) != call["ignore_index"])
        out[there, index[there]] = -weights[there] * scale
    return Wide(out.reshape(call["self"].shape), lambda: Bound(rel=8 * U))


@jax.jit
def _squares(x: Any, target: Any) -> Any:
    return (x - target) * (x - target)


@rule("mse_loss.default", "self target reduction=1", Kind.ROUNDED)
def _mse_loss(call: Call) -> Wide:
    """The squares of differences, their mean, or their sum."""
    x, target = call.wide("self"), call.wide("target")
    value = np.asarray(_squares(x, target))
    if call["reduction"] in (_MEAN, _SUM):
        value = np.asarray(jnp.sum(value))
        value = value / max(1, x.size) if call["reduction"] == _MEAN else value
    return Wide(value, lambda: Bound(rel=gamma(x.size + 32)))


@rule("mse_loss_backward.default", "grad_output self target reduction", Kind.ROUNDED)
def _mse_loss_backward(call: Call) -> Wide:
    """Twice the difference times the gradient, over their number if averaged."""
    x, target, grad = call.wide("self"), call.wide("target"), call.wide("grad_output")
    with np.errstate(all="ignore"):
        value = 2.0 * (x - target) * grad
        value = value / max(1, x.size) if call["reduction"] == _MEAN else value
    return Wide(value, lambda: Bound(rel=16 * U))
