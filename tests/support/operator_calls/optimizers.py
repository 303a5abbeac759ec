"""Calls of what `weighbridge.numerics.rewrites.optimizers` decomposes."""

from __future__ import annotations

from typing import Any

import torch
from support.operator_calls.draw import Call, Draw, call, lists, of
from torch import Tensor


def _scaler(draw: Draw) -> dict[str, Tensor]:
    """What a gradient scaler hands to a fused optimizer, or nothing."""
    if draw.flag():
        return {}
    return {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(draw.of(0.0, 1.0))}


def _rate(key: str, draw: Draw) -> Any:
    return torch.tensor(0.1, dtype=torch.float32) if key.endswith("tensor_lr") else draw.of(0.1, 1e-3)


@of("_fused_adam_.default", "_fused_adam_.tensor_lr", "_fused_adamw_.default", "_fused_adamw_.tensor_lr")
def _(draw: Draw, key: str) -> Call:
    params, grads, m, v, most = lists(draw, 5, (3, 4))
    amsgrad = draw.flag()
    steps = [torch.tensor(float(draw.size()))] * len(params)
    return call(
        params, grads, m, v, most if amsgrad else [], steps, lr=_rate(key, draw), beta1=0.9, beta2=0.95,
        weight_decay=draw.of(0.0, 0.1), eps=1e-6, amsgrad=amsgrad, maximize=draw.flag(), **_scaler(draw),
    )  # fmt: skip


@of("_fused_sgd_.default", "_fused_sgd_.tensor_lr")
def _(draw: Draw, key: str) -> Call:
    momentum = draw.of(0.0, 0.9)
    params, grads, buffers = lists(draw, 3)
    return call(
        params, grads, buffers if momentum else [], weight_decay=draw.of(0.0, 0.1), momentum=momentum,
        lr=_rate(key, draw), dampening=draw.of(0.0, 0.5), nesterov=bool(momentum) and draw.flag(), maximize=draw.flag(),
        is_first_step=draw.flag(), **_scaler(draw),
    )  # fmt: skip


@of("_fused_adagrad_.default", "_fused_adagrad_.tensor_lr")
def _(draw: Draw, key: str) -> Call:
    params, grads, sums = lists(draw, 3, (2,))
    steps = [torch.tensor(float(draw.size()))] * len(params)
    return call(
        params, grads, sums, steps, lr=_rate(key, draw), lr_decay=draw.of(0.0, 0.1), weight_decay=draw.of(0.0, 0.1),
        eps=1e-6, maximize=draw.flag(), **_scaler(draw),
    )  # fmt: skip


@of("_amp_foreach_non_finite_check_and_unscale_.default")
def _(draw: Draw) -> Call:
    grads = [g.to(torch.float32) for g in lists(draw, 1)[0]]
    if draw.flag():
        grads[0].view(-1)[0] = draw.of(float("inf"), float("nan"))
    return call(grads, torch.tensor([draw.of(0.0, 1.0)]), torch.tensor([0.25]))


@of("_amp_update_scale_.default")
def _(draw: Draw) -> Call:
    scale, tracker = torch.tensor([draw.of(4.0, 3e38)]), torch.tensor([draw.size(0, 3)], dtype=torch.int32)
    return call(scale, tracker, torch.tensor([draw.of(0.0, 1.0)]), 2.0, 0.5, draw.size(1, 3))
