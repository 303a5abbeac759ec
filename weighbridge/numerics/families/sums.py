"""Sums, products of all elements, and vector norms."""

from __future__ import annotations

import torch

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.bounds import Call, Line, U, addends, drift, gamma, reduced, unless_exact
from weighbridge.numerics.families.sources import SUMS
from weighbridge.numerics.rounding.bound import Bound

Tensor = torch.Tensor


def summation_bound(total: Tensor, least: Tensor, n: int) -> Bound:
    """gamma(n) * sum|x|, nothing where the sum is exact.

    Args:
        total: Sums of absolute values, in the shape of the result.
        least: The least absolute value that is not zero, or infinity, in the same shape.
        n: Addends of one sum.
    """
    return Bound(factors=(unless_exact(total, least) * gamma(max(1, n) + 2),))


def summation(call: Call) -> list[Bound]:
    """sum, nansum: gamma(n) * sum|x|, nothing where the sum is exact."""
    x, dim = call.narrow("self"), call.args.get("dim")
    if not x.dim() or not x.numel():
        return [Bound(rel=4 * U)]
    total, least = reductions.sizes(x, reduced(x, dim))
    return [summation_bound(total.view(call.x.shape), least.view(call.x.shape), addends(x, dim))]


def cumulative_sum(call: Call) -> list[Bound]:
    """cumsum: gamma(n) * cumsum|x|."""
    x = call["self"]
    n = x.shape[call["dim"]] if x.dim() else 1
    return [Bound(factors=(x.abs().cumsum(call["dim"]) * gamma(n + 1),))]


def norm(call: Call) -> list[Bound]:
    """Vector norms: sums of non-negative terms, so a relative bound, which a root of order p < 1 multiplies by 1/p."""
    order = call.args.get("ord", call.args.get("p"))
    grow = max(1.0, 1.0 / abs(float(order))) if order else 1.0
    n = addends(call["self"], call.args.get("dim"))
    return [Bound(rel=(gamma(n + 32) + drift(n)) * grow)]


def product(call: Call) -> list[Bound]:
    """prod, cumprod: one rounding for each factor."""
    return [Bound(rel=gamma(addends(call["self"], call.args.get("dim")) + 2))]


LINES = (
    Line(
        "sum.default sum.dim_IntList nansum.default",
        summation,
        SUMS,
        "gamma(n) * sum|x|; 0 where the sum is exact in float64 in any order",
    ),
    Line("cumsum.default", cumulative_sum, SUMS),
    Line("prod.default prod.dim_int cumprod.default", product, "Higham 2002, lemma 3.1", "gamma(n) * |result|"),
    Line(
        "linalg_vector_norm.default norm.Scalar norm.ScalarOpt_dim",
        norm,
        SUMS,
        "gamma(n + 32) * |result|, times 1/p for orders p < 1",
    ),
)
