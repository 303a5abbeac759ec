"""Batch norms and their gradients: sums over the batch are rounded, and all else is float32 arithmetic in an order."""

from __future__ import annotations

from typing import Any

import numpy as np

from weighbridge.execution.second.bounds import of_sum
from weighbridge.execution.second.memory import F32, Array, NotCoveredError
from weighbridge.execution.second.rules.sums import total
from weighbridge.execution.second.table import Call, Kind, Wide, rule
from weighbridge.execution.second.types import cast


class _Channels:
    """What is done with numbers of one channel each."""

    def __init__(self, call: Call) -> None:
        self._call, x = call, call["input"]
        if x.ndim < 2 or not x.size or any(
            v.dtype != F32 for v in call.operands.values() if isinstance(v, np.ndarray)
        ):  # fmt: skip
            raise NotCoveredError(f"{call.name} of nothing, or of other types than float32")
        self.axes = (0, *range(2, x.ndim))
        self.count = x.size // x.shape[1]
        self._shape = (1, -1, *[1] * (x.ndim - 2))

    def total(self, x: Array) -> Array:
        """Returns the sums over all but the channels, rounded."""
        wide = total(x.astype(np.float64), self.axes)
        return self._call.accounting.rounded(Wide(wide, lambda: of_sum(x, self.axes, self.count)))

    def spread(self, v: Array) -> Array:
        """Returns numbers of channels in the shape of what has channels."""
        spread: Array = np.reshape(v, self._shape)
        return spread


def _scaled(weight: Array | None, rstd: Array) -> Array:
    return rstd if weight is None else weight * rstd


def _reciprocal_root(variance: Array, eps: float) -> Array:
    found: Array = np.float32(1) / np.sqrt(variance + cast(eps, F32))
    return found


@rule(
    "_native_batch_norm_legit.default", "input weight bias running_mean running_var training momentum eps",
    Kind.COMPOSED,
)  # fmt: skip
@rule("_native_batch_norm_legit.no_stats", "input weight bias training momentum eps", Kind.COMPOSED)
@rule(
    "_native_batch_norm_legit_no_training.default", "input weight bias running_mean running_var momentum eps",
    Kind.COMPOSED,
)  # fmt: skip
def _forward(call: Call) -> list[Array]:
    """By the batch's own mean and variance, which change the running ones; or by the running ones."""
    channels, x, count = _Channels(call), call["input"], np.float32
    training, running = call.operands.get("training", False), call.operands.get("running_mean")
    variances = call.operands.get("running_var")
    changed: list[Array] = []
    with np.errstate(all="ignore"):
        if training:
            mean = channels.total(x) / count(channels.count)
            centred = x - channels.spread(mean)
            variance = channels.total(centred * centred) / count(channels.count)
            momentum, unbiased = call["momentum"], channels.count / max(channels.count - 1, 1)
            for held, value, part in ((running, mean, momentum), (variances, variance, momentum * unbiased)):
                if held is not None:
                    held[...] = held * cast(1 - momentum, F32) + value * cast(part, F32)
                    changed.append(held)
        elif running is None or variances is None:
            raise NotCoveredError(f"{call.name} without statistics")
        else:
            centred, variance = x - channels.spread(running), variances
        rstd = _reciprocal_root(variance, call["eps"])
        out = centred * channels.spread(_scaled(call["weight"], rstd))
        if call["bias"] is not None:
            out = out + channels.spread(call["bias"])
    account = call.accounting
    out = account.exact(out, call.refs[0])
    if not training:
        return [out, np.empty(0, F32), np.empty(0, F32)]
    saved = [account.exact(mean), account.exact(rstd)]
    for held in changed:
        held[...] = account.exact(held)
    return [out, *saved]


@rule(
    "native_batch_norm_backward.default",
    "grad_out input weight running_mean running_var save_mean save_invstd train eps output_mask",
    Kind.COMPOSED,
)
def _backward(call: Call) -> list[Any]:
    """Gradients of the input, of the weight and of the bias."""
    channels, grad, x, train, mask = (
        _Channels(call),
        call["grad_out"],
        call["input"],
        call["train"],
        call["output_mask"],
    )
    along = summed = out = None
    with np.errstate(all="ignore"):
        if train:
            mean, rstd = call["save_mean"], call["save_invstd"]
        else:
            mean, rstd = call["running_mean"], _reciprocal_root(call["running_var"], call["eps"])
        centred = x - channels.spread(mean)
        if mask[1] or (train and mask[0]):
            along = channels.total(grad * centred) * rstd
        if mask[2] or (train and mask[0]):
            summed = channels.total(grad)
        if mask[0]:
            scale, count = channels.spread(_scaled(call["weight"], rstd)), np.float32(channels.count)
            rest = grad
            if train and along is not None and summed is not None:
                slope = centred * channels.spread(along / count * rstd)
                rest = (grad - channels.spread(summed / count)) - slope
            out = call.accounting.exact(rest * scale, call.refs[0])
    if mask[1] and along is not None:
        along = call.accounting.exact(along)
    return [out, along if mask[1] else None, summed if mask[2] else None]
