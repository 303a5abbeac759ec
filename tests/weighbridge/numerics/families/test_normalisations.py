"""Bounds hold far from zero too, where kernels that subtract the mean late lose most of their digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.bound_errors import error_bound, listen
from support.operator_examples import WIDE_ENOUGH, Example, long

aten = torch.ops.aten


@pytest.mark.skipif(not WIDE_ENOUGH, reason="long double is no wider than double on this machine")
@pytest.mark.parametrize("offset", [0.0, 30.0, 3e3, 1e6])
@pytest.mark.parametrize("n", [20, 300])
def test_gradients_of_layer_norm_hold_whatever_the_mean(offset: float, n: int) -> None:
    """The CPU's kernel adds b*x + c with c near -b*mean."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(40, n, generator=generator) + offset
    g, w = torch.randn(40, n, generator=generator), torch.randn(n, generator=generator)
    _, mean, rstd = aten.native_layer_norm.default(x, [n], w, w, 1e-5)
    seen, _ = listen(
        Example(aten.native_layer_norm_backward.default, (g, x, [n], mean, rstd, w, w, [True, True, True]))
    )
    a, xhat = long(g) * long(w), (long(x) - long(mean)) * long(rstd)
    count = np.longdouble(n)
    wanted = [
        long(rstd) * (a - a.sum(1, keepdims=True) / count - xhat * ((a * xhat).sum(1, keepdims=True) / count)),
        (long(g) * xhat).sum(0),
        long(g).sum(0),
    ]
    for (wide, bound), exact in zip(seen, wanted, strict=True):
        assert (np.abs(long(wide) - exact) <= error_bound(wide, bound).numpy()).all()
