"""Products of matrices and vectors. K counts the terms of a sum, or of products in blocks, fewer (docs/bounds.md)."""

from __future__ import annotations

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.arrays.product_elements import Products
from weighbridge.numerics.bounds import Call, Line, drift, gamma
from weighbridge.numerics.families.sources import PRODUCTS
from weighbridge.numerics.rounding.bound import Bound


def _products(call: Call, names: tuple[str, str], multiple: float) -> Products:
    return Products(call.narrow(names[0]), call.narrow(names[1]), multiple, call.name in ("mm", "bmm"))


def mm(call: Call) -> list[Bound]:
    """mm, bmm, dot, mv: gamma(K) * norm(row) * norm(column)."""
    names = "self", next(n for n in ("mat2", "vec", "tensor", "other") if n in call.args)
    a, b = (call.narrow(name) for name in names)
    k = call.roundings(a.shape[-1])
    g = gamma(k + 2)
    left, right = reductions.norm(a, [-1], g), reductions.norm(b, [-2 if b.dim() > 1 else -1])
    if call.name in ("dot", "vdot"):
        return [Bound(rel=drift(k), absolute=float(left * right))]
    if call.name == "mv":
        return [Bound(rel=drift(k), factors=(left.squeeze(-1), right))]
    return [Bound(rel=drift(k), factors=(left, right), products=_products(call, names, g))]


def addmm(call: Call) -> list[Bound]:
    """addmm, addmv, baddbmm: the added term is part of the sum; it is at most |x| + |alpha|*norm*norm."""
    pairs = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}
    names = pairs[call.name]
    a, b = (call.narrow(name) for name in names)
    k = call.roundings(a.shape[-1])
    g = gamma(k + 6)
    rel, multiple = g + drift(k), 2 * g * abs(call["alpha"])
    left, right = reductions.norm(a, [-1], multiple), reductions.norm(b, [-2 if b.dim() > 1 else -1])
    if call.name == "addmv":
        return [Bound(rel=rel, factors=(left.squeeze(-1), right))]
    return [Bound(rel=rel, factors=(left, right), products=_products(call, names, multiple))]


LINES = (
    Line("mm.default bmm.default mv.default dot.default vdot.default", mm, PRODUCTS),
    Line(
        "addmm.default baddbmm.default addmv.default",
        addmm,
        PRODUCTS,
        "gamma(K) * (|result| + 2*|alpha| * norm(row) * norm(column))",
    ),
)
