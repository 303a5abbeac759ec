"""Calls of what `weighbridge.numerics.rewrites.windows` decomposes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support.operator_calls.draw import Call, Draw, call, of


@of("adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")
def _(draw: Draw, key: str) -> Call:
    n = 2 if "2d" in key else 3
    x = draw.apart(2, draw.size(1, 2), *(draw.size(2, 5) for _ in range(n)))
    pool = F.adaptive_max_pool2d if n == 2 else F.adaptive_max_pool3d
    out, indices = pool(x, tuple(draw.size(1, 3) for _ in range(n)), return_indices=True)
    return call(draw.real(*out.shape).contiguous(), x, indices)


@of("adaptive_avg_pool3d_backward.grad_input")
def _(draw: Draw) -> Call:
    x = draw.real(1, 2, draw.size(2, 4), draw.size(2, 4), draw.size(2, 4)).contiguous()
    out = F.adaptive_avg_pool3d(x, (draw.size(1, 2), 1, 2))
    return call(draw.real(*out.shape).contiguous(), x, grad_input=torch.zeros_like(x))


@of("upsample_linear1d.default", "upsample_linear1d_backward.default")
def _(draw: Draw, key: str) -> Call:
    n, m = draw.size(2, 5), draw.size(2, 8)
    align = draw.flag()
    if key == "upsample_linear1d.default":
        return call(draw.real(2, 3, n).contiguous(), [m], align)
    return call(draw.real(2, 3, m).contiguous(), [m], [2, 3, n], align)
