"""Pooling and interpolation, by those forms of them that have rules."""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

aten = torch.ops.aten
Tensor = torch.Tensor


@decomposes("adaptive_max_pool2d_backward.default")
def _adaptive_max_pool2d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    flat = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-2)
    return flat.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).view(x.shape)


@decomposes("adaptive_max_pool3d_backward.default")
def _adaptive_max_pool3d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    flat = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-3)
    return flat.scatter_add(-1, indices.flatten(-3), grad.flatten(-3)).view(x.shape)


@decomposes("adaptive_avg_pool3d_backward.grad_input")
def _adaptive_avg_pool3d_backward_into(grad: Tensor, x: Tensor, *, grad_input: Tensor) -> Tensor:
    return grad_input.copy_(aten._adaptive_avg_pool3d_backward.default(grad, x))


def _flat_scale(scale: float | None) -> tuple[float | None, float | None]:
    return None, scale


@decomposes("upsample_linear1d.default")
def _upsample_linear1d(x: Tensor, output_size: list[int], align_corners: bool, scales: float | None = None) -> Any:
    scale = _flat_scale(scales)
    return aten.upsample_bilinear2d.default(x.unsqueeze(2), [1, *output_size], align_corners, *scale).squeeze(2)


@decomposes("upsample_linear1d_backward.default")
def _upsample_linear1d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales: float | None = None
) -> Any:
    n, c, length = input_size
    return aten.upsample_bilinear2d_backward.default(
        grad.unsqueeze(2), [1, *output_size], [n, c, 1, length], align_corners, *_flat_scale(scales)
    ).squeeze(2)
