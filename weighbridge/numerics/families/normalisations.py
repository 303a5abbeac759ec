"""Variances and layer norms."""

from __future__ import annotations

import math

import torch

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.bounds import Call, Line, U, drift, gamma, reduced
from weighbridge.numerics.families.sources import ANALYSIS, VARIANCE
from weighbridge.numerics.rounding.bound import Bound

Tensor = torch.Tensor


def _deviations(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, int]:
    """Bounds on mean and population variance over `dims` (kept), by any of the textbook algorithms, and the count.

    Two-pass, Welford and sum-of-squares variances all err by at most a small multiple of gamma(n)*mean(x^2)
    (Chan, Golub, LeVeque 1983, table 1, with kappa^2 = mean(x^2)/var).
    """
    n = max(1, math.prod(x.shape[d] for d in dims))
    squares, g = reductions.squares(x, dims), gamma(n + 8)
    return squares.sqrt().mul_(g / math.sqrt(n)), squares.mul_(8 * g / n), n


def variance(call: Call) -> list[Bound]:
    """var, std, var_mean: see `_deviations`; the root of a variance near zero errs by the root of its error."""
    x = call.narrow("self")
    e_mean, e_var, n = _deviations(x, reduced(x, call.args.get("dim")))
    e_mean, e_var = e_mean.view(call.x.shape), e_var.view(call.x.shape)
    correction = call.args.get("correction", 1)
    if correction is None:
        correction = int(call.args.get("unbiased", True))
    e_var = e_var * (n / max(n - float(correction), 1e-300))
    if call.name.startswith("std"):
        first = Bound(rel=8 * U, factors=(e_var / torch.maximum(call.x, torch.sqrt(e_var)).clamp_min(1e-300),))
    else:
        first = Bound(rel=8 * U, factors=(e_var,))
    return [first, Bound(rel=4 * U, factors=(e_mean,))][: len(call.results)]


def layer_norm(call: Call) -> list[Bound]:
    """native_layer_norm: out, mean, rstd.

    |d out| <= rstd*|d mean|*|w| + |out - b|*(relative error of rstd), and |out - b| <= |out| + |b|.
    """
    x = call.narrow("input")
    inner = len(call["normalized_shape"])
    e_mean, e_var, _ = _deviations(x, list(range(x.dim() - inner, x.dim())))
    rstd = call.results[2]
    relative_rstd = rstd.square().mul_(e_var).div_(2).add_(8 * U)
    w = call["weight"].abs() if call["weight"] is not None else rstd.new_ones(x.shape[x.dim() - inner :])
    wb = w + call["bias"].abs() if call["bias"] is not None else w
    worst = float(relative_rstd.max()) if relative_rstd.numel() else 0.0
    return [
        Bound(rel=2 * worst + 8 * U, factors=((rstd * e_mean).add_(relative_rstd).mul_(2), wb)),
        Bound(factors=(e_mean,)),
        Bound(factors=(rstd * relative_rstd,)),
    ]


def _gradient_rows(terms: reductions.Terms, scale: Tensor, n: int, shift: Tensor | float = 0.0) -> Tensor:
    """Bound of scale*(a - mean(a) - xhat*mean(a*xhat)) for each of the groups of n elements behind `terms`.

    Kernels may evaluate xhat = (x - mean)*rstd as x*rstd - mean*rstd, within sums too: then what is summed is not of
    the size of xhat, but of |x|*rstd + |mean|*rstd <= |xhat| + 2*shift.

    Args:
        terms: What is known of the groups.
        scale: The factor in front, one for each group.
        n: Elements of a group.
        shift: |mean|*rstd of each group; 0 where every kernel subtracts the mean first.
    """
    spread = terms.spread + shift * (2 * math.sqrt(n))
    sums = terms.norm * (2 / math.sqrt(n)) + terms.top * terms.norm * spread * (2 / n)
    last = terms.largest + terms.norm * terms.spread * shift * (2 / n)
    row: Tensor = scale.abs() * (sums * gamma(n + 16) + last * (16 * U))
    return row


def layer_norm_backward(call: Call) -> list[Bound]:
    """native_layer_norm_backward: the saved mean and rstd are operands, exact as given."""
    g, x, mask = call.narrow("grad_out"), call.narrow("input"), call["output_mask"]
    if not x.numel():
        return [Bound()] * sum(mask)  # nothing, and sums of nothing
    shape = list(call["normalized_shape"])
    n = max(1, math.prod(shape))
    rows = x.numel() // n
    mean, rstd = (call[name].reshape(-1) for name in ("mean", "rstd"))
    weight = None if call["weight"] is None else call["weight"].reshape(-1)
    terms = reductions.gradient_terms(g.reshape(1, rows, n), x.reshape(1, rows, n), weight, mean, rstd)
    bounds = []
    if mask[0]:
        row = _gradient_rows(terms, rstd, n, (mean * rstd).abs())
        bounds.append(Bound(rel=16 * U, factors=(row.view(call["mean"].shape),)))
    if mask[1]:
        bounds.append(Bound(rel=drift(rows), factors=((terms.lost_columns * gamma(rows + 16)).view(shape),)))
    if mask[2]:
        bounds.append(Bound(factors=((terms.size_columns * gamma(rows + 4)).view(shape),)))
    return bounds


LINES = (
    Line(
        "var.correction std.correction var_mean.correction std_mean.correction var.dim std.dim",
        variance,
        VARIANCE,
        "8*gamma(n + 8) * mean(x^2) for variances, gamma(n + 8) * sqrt(mean(x^2)) for means; roots accordingly",
    ),
    Line(
        "native_layer_norm.default",
        layer_norm,
        VARIANCE,
        "errors of mean and variance, carried through: (rstd*d(mean) + d(rstd)/rstd) * (|weight| + |bias|)",
    ),
    Line(
        "native_layer_norm_backward.default",
        layer_norm_backward,
        ANALYSIS,
        "rstd * gamma(n + 16) * (norm(a)/sqrt(n) + max|xhat| * norm(a) * (norm(xhat)/n + |mean|*rstd/sqrt(n))) * 2, "
        "a = gradient*weight; weights: gamma(rows) * sum|gradient|*(|x| + |mean|)*rstd",
    ),
)
