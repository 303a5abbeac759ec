"""Fused optimizers, step by step, and the two operations of the gradient scaler."""

from __future__ import annotations

import math

import torch

from weighbridge.numerics.rewrites.rewrite_table import TABLE, Decomposition, decomposes

Tensor = torch.Tensor


def _overflowed(grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> bool:
    """True if the gradient scaler found an overflow and the update is left out; otherwise unscales the gradients."""
    if found_inf is not None and found_inf.item():
        return True
    if grad_scale is not None:
        for grad in grads:
            grad.div_(grad_scale)
    return False


def _fused_adam(decoupled: bool) -> Decomposition:
    def run(
        params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor], state_steps: list[Tensor], *, lr: float | Tensor, beta1: float, beta2: float,
        weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:  # fmt: skip
        if _overflowed(grads, grad_scale, found_inf):
            return
        rate = lr.item() if isinstance(lr, Tensor) else lr
        for i, (p, grad, m, v) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
            step = state_steps[i].item()
            g = -grad if maximize else grad
            if weight_decay and decoupled:
                p.mul_(1 - rate * weight_decay)
            elif weight_decay:
                g = g + p * weight_decay
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            second = v
            if amsgrad:
                second = max_exp_avg_sqs[i].copy_(torch.maximum(max_exp_avg_sqs[i], v))
            denominator = (second.sqrt() / math.sqrt(1 - beta2**step)).add_(eps)
            p.addcdiv_(m, denominator, value=-rate / (1 - beta1**step))

    return run


TABLE.update({f"_fused_adamw_.{o}": _fused_adam(True) for o in ("default", "tensor_lr")})


TABLE.update({f"_fused_adam_.{o}": _fused_adam(False) for o in ("default", "tensor_lr")})


@decomposes("_fused_sgd_.default", "_fused_sgd_.tensor_lr")
def _fused_sgd(
    params: list[Tensor], grads: list[Tensor], momentum_buffer_list: list[Tensor], *, weight_decay: float,
    momentum: float, lr: float | Tensor, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    if _overflowed(grads, grad_scale, found_inf):
        return
    rate = lr.item() if isinstance(lr, Tensor) else lr
    for i, (p, grad) in enumerate(zip(params, grads, strict=True)):
        g = -grad if maximize else grad
        if weight_decay:
            g = g + p * weight_decay
        if momentum:
            buffer = momentum_buffer_list[i]
            if is_first_step:
                buffer.copy_(g)
            else:
                buffer.mul_(momentum).add_(g * (1 - dampening))
            g = g + buffer * momentum if nesterov else buffer
        p.sub_(g * rate)


@decomposes("_fused_adagrad_.default", "_fused_adagrad_.tensor_lr")
def _fused_adagrad(
    params: list[Tensor], grads: list[Tensor], state_sums: list[Tensor], state_steps: list[Tensor], *,
    lr: float | Tensor, lr_decay: float, weight_decay: float, eps: float, maximize: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    if _overflowed(grads, grad_scale, found_inf):
        return
    rate = lr.item() if isinstance(lr, Tensor) else lr
    for p, grad, total, step in zip(params, grads, state_sums, state_steps, strict=True):
        g = -grad if maximize else grad
        if weight_decay:
            g = g + p * weight_decay
        total.addcmul_(g, g)
        p.addcdiv_(g, total.sqrt().add_(eps), value=-rate / (1 + (step.item() - 1) * lr_decay))


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
