"""Batch normalisation in sums over the batch, which are rounded, and element by element, which is exact.

Rounded as a whole, its gradient would have by far the largest log of a convolutional network: differences of sums over
a whole batch, most of them small beside what is summed. Here only one number a channel is a sum. In float32 it stands
on a tape as one operation, evaluated in these steps (`composed`). Other operands are decomposed into them; those of 16
bits are normalised in float32, as PyTorch's kernels do, and the result is rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from weighbridge.numerics.rewrites.rewrite_table import decomposes
from weighbridge.numerics.rewrites.single_precision import single

aten = torch.ops.aten
Tensor = torch.Tensor


class _Channels:
    """Numbers of one channel each, and what is summed to make them.

    Args:
        x: A tensor (batch, channels, *spatial).
    """

    def __init__(self, x: Tensor) -> None:
        self.dims = [0, *range(2, x.dim())]
        self.shape = [1, -1, *[1] * (x.dim() - 2)]
        self.count = max(1, x.numel() // max(1, x.shape[1]))

    def total(self, x: Tensor) -> Tensor:
        """Sums over all but the channels: (channels,)."""
        return aten.sum.dim_IntList(x, self.dims)  # type: ignore[no-any-return]

    def spread(self, v: Tensor) -> Tensor:
        """Views (channels,) so that it broadcasts against the operand."""
        return v.view(self.shape)


def _with(operation: Any, x: Tensor, other: Tensor) -> Tensor:
    """Returns `operation(x, other)` in the memory of x, not needed again, where that saves a pass; else in new memory.

    What is changed in place is checked in row-major order, so other layouts would be copied there and back.
    """
    form = operation.Tensor if not x.is_contiguous() else getattr(aten, f"{operation.__name__}_").Tensor
    return form(x, other)  # type: ignore[no-any-return]


def _scale(weight: Tensor | None, rstd: Tensor) -> Tensor:
    return rstd if weight is None else single(weight) * rstd


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The operands and results of `native_batch_norm`."""
    wide, channels = single(x), _Channels(x)
    if training:
        mean = channels.total(wide) / channels.count
        centred = wide - channels.spread(mean)
        variance = channels.total(centred * centred) / channels.count
        if running_mean is not None:
            running_mean.mul_(1 - momentum).add_(mean * momentum)
        if running_var is not None:
            unbiased = channels.count / max(channels.count - 1, 1)
            running_var.mul_(1 - momentum).add_(variance * (momentum * unbiased))
    else:
        assert running_mean is not None
        assert running_var is not None
        centred, variance = wide - channels.spread(single(running_mean)), single(running_var)
    rstd = (variance + eps).sqrt().reciprocal()
    out = _with(aten.mul, centred, channels.spread(_scale(weight, rstd)))
    if bias is not None:
        out = _with(aten.add, out, channels.spread(single(bias)))
    nothing = torch.empty(0, dtype=wide.dtype, device=x.device)
    saved = (mean, rstd) if training else (nothing, nothing.clone())
    out = out.to(x.dtype).contiguous(memory_format=suggest_memory_format(x))
    return out, *saved


def backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, train: bool, eps: float, output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The operands and results of `native_batch_norm_backward`."""
    g, channels = single(grad), _Channels(x)
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, rstd = save_mean, save_invstd
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = single(running_mean), (single(running_var) + eps).sqrt().reciprocal()
    scale = channels.spread(_scale(weight, rstd))
    centred = along = total = grad_x = None
    if output_mask[1] or (train and output_mask[0]):
        centred = single(x) - channels.spread(mean)
        along = channels.total(g * centred) * rstd
    if output_mask[2] or (train and output_mask[0]):
        total = channels.total(g)
    if output_mask[0]:
        if centred is not None and along is not None and total is not None and train:
            slope = _with(aten.mul, centred, channels.spread(along / channels.count * rstd))
            rest = _with(aten.sub, g - channels.spread(total / channels.count), slope)
            grad_x = _with(aten.mul, rest, scale).to(x.dtype)
        else:
            grad_x = (g * scale).to(x.dtype)
    kind = x.dtype if weight is None else weight.dtype
    return (
        grad_x,
        along.to(kind) if output_mask[1] and along is not None else None,
        total.to(kind) if output_mask[2] and total is not None else None,
    )


# Names under which one operation of float32 stands on a tape say in their schema what they change; the usual one says
# that it changes nothing.


def _composed(*operands: Any) -> bool:
    return all(v.dtype == torch.float32 for v in operands if isinstance(v, Tensor))


@decomposes("native_batch_norm.default")
def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    operands = x, weight, bias, running_mean, running_var
    if not _composed(*operands) or (running_mean is None) != (running_var is None):
        return forward(*operands, training, momentum, eps)
    if training and running_mean is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, True, momentum, eps)
    return aten._native_batch_norm_legit.default(*operands, training, momentum, eps)


@decomposes(
    "_native_batch_norm_legit.default",
    unless=lambda x, weight, bias, mean, var, training, *_: training and _composed(x, weight, bias, mean, var),
)
def _with_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    operands = x, weight, bias, running_mean, running_var
    if not _composed(*operands):
        return forward(*operands, training, momentum, eps)
    return aten._native_batch_norm_legit_no_training.default(*operands, momentum, eps)


@decomposes(
    "_native_batch_norm_legit.no_stats",
    unless=lambda x, weight, bias, training, *_: training and _composed(x, weight, bias),
)
def _without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    return forward(x, weight, bias, None, None, training, momentum, eps)


@decomposes("_native_batch_norm_legit_no_training.default", unless=lambda *operands: _composed(*operands))
def _in_evaluation(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> Any:
    return forward(x, weight, bias, mean, variance, False, momentum, eps)


@decomposes("native_batch_norm_backward.default", unless=lambda *operands: _composed(*operands))
def _backward(*operands: Any) -> Any:
    return backward(*operands)
