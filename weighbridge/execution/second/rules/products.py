"""Products of matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from weighbridge.execution.second.bounds import Bound, Floats, gamma, norm
from weighbridge.execution.second.table import Call, Kind, Wide, rule

_matmul = jax.jit(jnp.matmul)


def product(a: Floats, b: Floats) -> Floats:
    """Returns a @ b in float64."""
    if not a.shape[-1]:
        return np.zeros((*a.shape[:-1], b.shape[-1]))
    return np.asarray(_matmul(a, b))


@rule("mm.default bmm.default", "self mat2", Kind.ROUNDED)
def _product(call: Call) -> Wide:
    """Self @ mat2."""
    a, b = call.wide("self"), call.wide("mat2")
    if a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
        raise ValueError("the operands have different shapes")
    g = gamma(a.shape[-1] + 2)
    return Wide(product(a, b), lambda: Bound(factors=(norm(a, (-1,)) * g, norm(b, (-2,))), products=(a, b, g)))


@rule("addmm.default", "self mat1 mat2 beta=1 alpha=1", Kind.ROUNDED)
@rule("baddbmm.default", "self batch1 batch2 beta=1 alpha=1", Kind.ROUNDED)
def _sum_with_product(call: Call) -> Wide:
    """beta*self + alpha*(a @ b); where beta is 0, self does not count, whatever it is."""
    names = ("mat1", "mat2") if call.name == "addmm" else ("batch1", "batch2")
    a, b = (call.wide(name) for name in names)
    beta, alpha = float(call["beta"]), float(call["alpha"])
    with np.errstate(all="ignore"):
        value = product(a, b) * alpha
        value = value if beta == 0 else value + call.wide("self") * beta
    g = gamma(a.shape[-1] + 6)
    multiple = 2 * g * abs(alpha)
    return Wide(
        value, lambda: Bound(rel=g, factors=(norm(a, (-1,)) * multiple, norm(b, (-2,))), products=(a, b, multiple))
    )
