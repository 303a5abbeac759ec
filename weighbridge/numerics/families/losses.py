"""Losses and their gradients."""

from __future__ import annotations

import torch

from weighbridge.numerics.bounds import Call, Line, U, gamma, positive, relative
from weighbridge.numerics.families.sources import ANALYSIS, FUNCTIONS, SUMS
from weighbridge.numerics.rounding.bound import Bound


def nll_loss(call: Call) -> list[Bound]:
    """nll_loss_forward, nll_loss2d_forward: output and total weight."""
    x, target = call["self"], call["target"]
    classes = x.shape[-1 if x.dim() == 1 else 1]
    index = target.clamp(0, classes - 1)
    index = index.unsqueeze(-1 if x.dim() == 1 or index.dim() == 0 else 1)
    chosen = x.abs().gather(0 if x.dim() == 1 else 1, index if x.dim() > 1 else index.view(1))
    weight = float(call["weight"].abs().max()) if call["weight"] is not None else 1.0
    n = max(1, target.numel())
    total = float(chosen.sum()) * weight * gamma(n + 16)
    if call["reduction"] == 1:
        total /= max(float(call.results[1]), 1e-300)
    if call["reduction"] == 0:
        return [Bound(rel=4 * U), Bound(rel=gamma(n + 8))]
    return [Bound(rel=8 * U, absolute=total), Bound(rel=gamma(n + 8))]


def bce_with_logits(call: Call) -> list[Bound]:
    """binary_cross_entropy_with_logits: terms of size at most (2|x| + 2)(1 + |target|), summed or averaged."""
    x = call["self"]
    size = (2 * x.abs() + 2) * (1 + call["target"].abs())
    for name in ("weight", "pos_weight"):
        if call[name] is not None:
            size = size * (1 + call[name].abs())
    return [_reduced(size, call["reduction"])]


def bce(call: Call) -> list[Bound]:
    """binary_cross_entropy: (t - 1)*max(log1p(-x), -100) - t*max(log x, -100), summed or averaged."""
    x, t = call["self"], call["target"].abs()
    size = t * torch.log(x).clamp_min(-100).abs() + (1 + t) * torch.log1p(-x).clamp_min(-100).abs()
    if call["weight"] is not None:
        size = size * call["weight"].abs()
    return [_reduced(size, call["reduction"])]


def _reduced(size: torch.Tensor, reduction: int) -> Bound:
    """Bound of terms of at most `size` in absolute value that err by a few u, kept (0), averaged (1) or summed (2)."""
    if reduction == 0:
        return Bound(factors=(size * (32 * U),))
    n = max(1, size.numel())
    total = float(size.sum()) * gamma(n + 32)
    return Bound(absolute=total / n if reduction == 1 else total)


def _numel(call: Call) -> int:
    return int(call["self"].numel())


LINES = (
    Line(
        "nll_loss_forward.default nll_loss2d_forward.default",
        nll_loss,
        SUMS,
        "gamma(n + 16) * sum|chosen elements| * max|weight|, over the total weight if averaged",
    ),
    Line("nll_loss_backward.default nll_loss2d_backward.default", relative(4), FUNCTIONS),
    Line(
        "mse_loss.default smooth_l1_loss.default huber_loss.default",
        positive(_numel),
        SUMS,
    ),
    Line(
        "mse_loss_backward.default smooth_l1_loss_backward.default huber_loss_backward.default", relative(8), FUNCTIONS
    ),
    Line(
        "binary_cross_entropy_with_logits.default",
        bce_with_logits,
        ANALYSIS,
        "32*u * (2|x| + 2) * (1 + |target|) * weights, summed with gamma(n + 32) or averaged",
    ),
    Line(
        "binary_cross_entropy.default",
        bce,
        ANALYSIS,
        "32*u * (|t log x| + (1 + |t|)*|log(1 - x)|) * weight, summed with gamma(n + 32) or averaged",
    ),
    Line("binary_cross_entropy_backward.default", relative(16), FUNCTIONS),
)
