"""Calls of what `weighbridge.numerics.rewrites.margin_losses` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of

aten = torch.ops.aten


@of("multi_margin_loss.default", "multi_margin_loss_backward.default")
def _(draw: Draw, key: str) -> Call:
    n, c = draw.size(), draw.size(2, 5)
    x, target = draw.real(n, c).contiguous(), draw.whole(c, n)
    reduction, weight = draw.of(0, 1, 2), draw.positive(c) if draw.flag() else None
    rest = (x, target, draw.of(1, 2), draw.of(1, 0.5), weight, reduction)
    return call(*rest) if "backward" not in key else call(draw.real(*((n,) if reduction == 0 else ())), *rest)


@of("multilabel_margin_loss_forward.default", "multilabel_margin_loss_backward.default")
def _(draw: Draw, key: str) -> Call:
    n, c = draw.size(), draw.size(2, 5)
    x, target, reduction = draw.real(n, c).contiguous(), torch.full((n, c), -1), draw.of(0, 1, 2)
    for row in range(n):
        count = draw.size(0, c)
        target[row, :count] = draw.distinct(c, count)
    if key == "multilabel_margin_loss_forward.default":
        return call(x, target, reduction)
    out, hit = aten.multilabel_margin_loss_forward(x, target, reduction)
    return call(draw.real(*out.shape), x, target, reduction, hit)
