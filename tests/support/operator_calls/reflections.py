"""Calls of what `weighbridge.numerics.rewrites.reflections` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of


@of("geqrf.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.of((), (2,)), draw.size(), draw.size()))


@of("linalg_householder_product.default")
def _(draw: Draw) -> Call:
    n = draw.size()
    return call(*torch.geqrf(draw.real(*draw.of((), (2,)), n + draw.size(0, 3), n)))
