"""Activation functions and dropouts with their backwards."""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


def _single(*operands: Tensor) -> bool:
    """True where intermediate results may be rounded to the operands' own type, as PyTorch's kernels do."""
    return all(t.dtype == torch.float32 for t in operands)


@decomposes("tanh_backward.default", unless=lambda grad, output: not _single(grad, output))
def _tanh_backward(grad: Tensor, output: Tensor) -> Any:
    return grad * (1 - output * output)


@decomposes("sigmoid_backward.default", unless=lambda grad, output: not _single(grad, output))
def _sigmoid_backward(grad: Tensor, output: Tensor) -> Any:
    return grad * (1 - output) * output


# CUDA keeps no buffer for the backward of this one, the CPU does.


@decomposes("log_sigmoid_forward.default")
def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    return aten.softplus.default(-x.contiguous()).neg(), torch.empty(0, dtype=x.dtype, device=x.device)


@decomposes("log_sigmoid_backward.default")
def _log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return grad * torch.sigmoid(-x)


@decomposes("_prelu_kernel.default")
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * weight)


@decomposes("_prelu_kernel_backward.default")
def _prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(x > 0, grad, grad * weight), torch.where(x > 0, zero, x * grad)


@decomposes("celu.default")
def _celu(x: Tensor, alpha: float = 1.0) -> Any:
    return aten.elu.default(x, alpha, 1.0, 1.0 / alpha)


@decomposes("celu_.default")
def _celu_(x: Tensor, alpha: float = 1.0) -> Any:
    return aten.elu_.default(x, alpha, 1.0, 1.0 / alpha)


@decomposes("glu.default")
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = aten.split.Tensor(x, x.shape[dim] // 2, dim)
    return a * torch.sigmoid(b)  # type: ignore[no-any-return]


@decomposes("glu_backward.default")
def _glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    a, b = aten.split.Tensor(x, x.shape[dim] // 2, dim)
    s = torch.sigmoid(b)
    return torch.cat([grad * s, grad * a * s * (1 - s)], dim)


@decomposes("native_dropout.default")
def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return x * mask * (1.0 / (1.0 - p)), mask


@decomposes("native_dropout_backward.default")
def _native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * mask * scale


@decomposes("_fused_dropout.default")
def _fused_dropout(x: Tensor, p: float, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """The CUDA dropout of old programs; `p` is the probability of keeping."""
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(p, generator=generator)
    return x * mask * (1.0 / p), mask.to(torch.uint8)
