"""Softmax, its logarithm and log-sum-exp."""

from __future__ import annotations

import math

import torch

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.bounds import Call, Line, U, gamma
from weighbridge.numerics.families.sources import ANALYSIS, EXPONENTIALS
from weighbridge.numerics.rounding.bound import Bound


def softmax(call: Call) -> list[Bound]:
    """_softmax: exp of an exact difference over a sum of positive terms."""
    x = call["self"]
    n = x.shape[call["dim"]] if x.dim() else 1
    # exp amplifies the rounding of (x - max): relative error u*|x - max|, which never exceeds 746 before exp is zero.
    return [Bound(rel=gamma(n + 32) + 800 * U, absolute=2.0**-1000)]


def softmax_backward(call: Call) -> list[Bound]:
    """_softmax_backward_data: out * (g - sum(g*out))."""
    out, dim = call["output"], call["dim"]
    if not out.numel():
        return [Bound()]
    n = out.shape[dim] if out.dim() else 1
    row = reductions.products(call.narrow("grad_output"), call.narrow("output"), dim)
    return [Bound(factors=(out.abs(), row * gamma(n + 8)))]


def log_softmax(call: Call) -> list[Bound]:
    """_log_softmax: (x - max) - log(sum exp), or x - (max + log(sum exp)), which rounds at the size of max."""
    x, dim = call["self"], call["dim"]
    if not x.numel():
        return [Bound()]
    n = x.shape[dim] if x.dim() else 1
    top = x.amax(dim=dim, keepdim=True).abs()
    absolute = gamma(n + 64) * 2 + 800 * U + 8 * U * math.log(max(n, 2))
    return [Bound(rel=8 * U, absolute=absolute, factors=(top * (8 * U),))]


def log_softmax_backward(call: Call) -> list[Bound]:
    """_log_softmax_backward_data: g - exp(out)*sum(g)."""
    out, dim = call["output"], call["dim"]
    if not out.numel():
        return [Bound()]
    n = out.shape[dim] if out.dim() else 1
    total = reductions.sizes(call.narrow("grad_output"), [dim])[0] if out.dim() else call["grad_output"].abs()
    return [Bound(rel=8 * U, factors=(torch.exp(out), total * gamma(n + 16)))]


def log_sum_exp(call: Call) -> list[Bound]:
    """logsumexp: max + log(sum exp(x - max))."""
    x, keep = call["self"], bool(call["keepdim"])
    if not x.numel():
        return [Bound()]  # minus infinity, if anything
    dims = list(call["dim"]) or list(range(x.dim()))
    n = max(1, math.prod(x.shape[d] for d in dims) if x.dim() else 1)
    top = (x.amax(dim=dims, keepdim=keep) if x.dim() else x).abs()
    return [Bound(rel=8 * U, absolute=gamma(n + 64) * 2 + 800 * U, factors=(top * (8 * U),))]


_LOGARITHM = "2*gamma(n + 64) + 800*u + 8*u*(|result| + |max|)"

LINES = (
    Line("_softmax.default _safe_softmax.default", softmax, EXPONENTIALS, "(gamma(n + 32) + 800*u) * |result|"),
    Line(
        "_softmax_backward_data.default",
        softmax_backward,
        ANALYSIS,
        "gamma(n + 8) * |output| * (max|gradient| + sum|gradient*output|)",
    ),
    Line("_log_softmax.default", log_softmax, EXPONENTIALS, _LOGARITHM),
    Line(
        "_log_softmax_backward_data.default",
        log_softmax_backward,
        ANALYSIS,
        "gamma(n + 16) * exp(output) * sum|gradient| + 8*u*|result|",
    ),
    Line("logsumexp.default", log_sum_exp, EXPONENTIALS, _LOGARITHM),
)
