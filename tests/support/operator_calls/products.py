"""Calls of what `weighbridge.numerics.rewrites.products` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of

aten = torch.ops.aten


ORDERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.2, float("inf"))


@of("addbmm.default")
def _(draw: Draw) -> Call:
    b, n, k, m = (draw.size() for _ in range(4))
    return call(draw.real(n, m), draw.real(b, n, k), draw.real(b, k, m), beta=draw.of(1, 0.5), alpha=draw.of(1, -2.0))


@of("_grouped_mm.default")
def _(draw: Draw) -> Call:
    """Groups of eight rows in bfloat16, as the kernel wants them."""
    ends = torch.tensor([8 * draw.size(0, 2), 24], dtype=torch.int32)
    a, b = torch.randn(24, 16, dtype=torch.bfloat16), torch.randn(2, 16, 8, dtype=torch.bfloat16)
    return call(a, b.mT.contiguous().mT, ends)


@of("_trilinear.default")
def _(draw: Draw) -> Call:
    n, i, j, o = (draw.size() for _ in range(4))
    return call(draw.real(n, i), draw.real(o, i, j), draw.real(n, j), [1, 3], [0], [1, 2], [2, 3])


@of("_cdist_forward.default", "_euclidean_dist.default")
def _(draw: Draw, key: str) -> Call:
    n, m, d = draw.size(), draw.size(), draw.size()
    x, y = draw.real(n, d).contiguous(), draw.real(m, d).contiguous()
    return call(x, y, draw.of(*ORDERS), 2) if key == "_cdist_forward.default" else call(x, y)


@of("_cdist_backward.default")
def _(draw: Draw) -> Call:
    n, m, d = draw.size(), draw.size(), draw.size()
    x, y = draw.real(n, d).contiguous(), draw.real(m, d).contiguous()
    p = draw.of(*ORDERS)
    return call(draw.real(n, m).contiguous(), x, y, p, aten._cdist_forward(x, y, p, 2))


@of("_pdist_forward.default")
def _(draw: Draw) -> Call:
    return call(draw.real(draw.size(2, 5), draw.size()).contiguous(), 2.0)


@of("_pdist_backward.default")
def _(draw: Draw) -> Call:
    x = draw.real(draw.size(2, 5), draw.size()).contiguous()
    out = aten._pdist_forward(x, 2.0)
    return call(draw.real(*out.shape), x, 2.0, out)
