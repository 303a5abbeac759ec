"""The gradient scaler's two vendor operations, as operations that have rules."""

from __future__ import annotations

import torch

from weighbridge.numerics.rewriting import decomposes

Tensor = torch.Tensor


@decomposes("_amp_foreach_non_finite_check_and_unscale_.default")
def _unscale(gradients: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Multiplies every gradient by `inv_scale` and raises `found_inf` to 1 if one of them was not finite."""
    for gradient in gradients:
        odd = torch.isfinite(gradient).all().logical_not()
        found_inf.copy_(torch.maximum(found_inf, odd.to(found_inf.dtype)))
        gradient.mul_(inv_scale.to(gradient.dtype))


@decomposes("_amp_update_scale_.default")
def _update_scale(
    scale: Tensor, growth_tracker: Tensor, found_inf: Tensor, growth_factor: float, backoff_factor: float, interval: int
) -> Tensor:
    """Backs the scale off after an overflow; lets it grow after `interval` steps without one."""
    overflow = found_inf > 0
    count = growth_tracker + 1
    due = count == interval
    grown = scale * growth_factor
    larger = torch.where(torch.isfinite(grown), grown, scale)
    scale.copy_(torch.where(overflow, scale * backoff_factor, torch.where(due, larger, scale)))
    growth_tracker.copy_(torch.where(overflow | due, torch.zeros_like(count), count))
    return scale
