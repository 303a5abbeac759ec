"""Fake quantisation, which training for low-precision inference uses, as the exact steps that its kernels take.

A grid point is chosen by rounding a float32 product to a whole number: each step has one right answer, so the jump
between two points is in the same place everywhere.
"""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

Tensor = torch.Tensor


def _on_grid(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """The nearest point of the grid, and where it lies within its ends."""
    at = torch.round(x * (1.0 / scale)) + zero_point
    return (at.clamp(low, high) - zero_point) * scale, (at >= low) & (at <= high)


@decomposes("fake_quantize_per_tensor_affine_cachemask.default")
def _per_tensor(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    return _on_grid(x, scale, zero_point, quant_min, quant_max)


@decomposes("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def _by_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    scale, zero_point = (t.reshape(()).to(x.dtype) for t in (scale, zero_point))
    out, mask = _on_grid(x, scale, zero_point, quant_min, quant_max)
    disabled = fake_quant_enabled.reshape(()) != 1
    return torch.where(disabled, x, out), mask | disabled


@decomposes("fake_quantize_per_channel_affine_cachemask.default")
def _per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    shape = [1] * x.dim()
    shape[axis] = -1
    return _on_grid(x, scale.to(x.dtype).view(shape), zero_point.to(x.dtype).view(shape), quant_min, quant_max)
