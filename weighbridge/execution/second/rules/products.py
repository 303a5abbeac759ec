"""Products of matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from weighbridge.execution.second.bounds import Bound, Floats, block_length, gamma, norm, roundings
from weighbridge.execution.second.table import Call, Kind, Wide, rule

_matmul = jax.jit(jnp.matmul)


def product(a: Floats, b: Floats, block: int = 0) -> Floats:
    """Returns a @ b in float64, as the sum of the products of blocks if a policy has them."""
    terms = a.shape[-1]
    if not terms:
        return np.zeros((*a.shape[:-1], b.shape[-1]))
    if not block or terms <= block or b.shape[-2] != terms:
        return np.asarray(_matmul(a, b))
    length = block_length(terms, block)
    total = np.zeros(1)
    for start in range(0, terms, length):
        part = slice(start, start + length)
        with np.errstate(all="ignore"):
            total = total + np.asarray(_matmul(a[..., part], b[..., part, :]))
    return total


@rule("mm.default bmm.default", "self mat2", Kind.ROUNDED)
def _product(call: Call) -> Wide:
    """Self @ mat2."""
    a, b = call.wide("self"), call.wide("mat2")
    if a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
        raise ValueError("the operands have different shapes")
    g = gamma(roundings(a.shape[-1], call.block) + 2)
    return Wide(
        product(a, b, call.block), lambda: Bound(factors=(norm(a, (-1,)) * g, norm(b, (-2,))), products=(a, b, g))
    )


@rule("addmm.default", "self mat1 mat2 beta=1 alpha=1", Kind.ROUNDED)
@rule("baddbmm.default", "self batch1 batch2 beta=1 alpha=1", Kind.ROUNDED)
def _sum_with_product(call: Call) -> Wide:
    """beta*self + alpha*(a @ b); where beta is 0, self does not count, whatever it is."""
    names = ("mat1", "mat2") if call.name == "addmm" else ("batch1", "batch2")
    a, b = (call.wide(name) for name in names)
    beta, alpha = float(call["beta"]), float(call["alpha"])
    with np.errstate(all="ignore"):
        value = product(a, b, call.block) * alpha
        value = value if beta == 0 else value + call.wide("self") * beta
    g = gamma(roundings(a.shape[-1], call.block) + 6)
    multiple = 2 * g * abs(alpha)
    return Wide(
        value, lambda: Bound(rel=g, factors=(norm(a, (-1,)) * multiple, norm(b, (-2,))), products=(a, b, multiple))
    )
