"""Error bounds of softmax, losses and elementwise functions with cancellation; notation and contract as in `bounds`."""

from __future__ import annotations

import math

import torch

from weighbridge.errors import RefusedOperationError
from weighbridge.numerics import reductions
from weighbridge.numerics.bounds import BoundFunction, Call, U, gamma, relative
from weighbridge.numerics.rounding import Bound

# --- softmax and losses ---------------------------------------------------------------------------------------------


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


def log_sum_exp(call: Call) -> list[Bound]:
    """logsumexp: max + log(sum exp(x - max))."""
    x, keep = call["self"], bool(call["keepdim"])
    if not x.numel():
        return [Bound()]  # minus infinity, if anything
    dims = list(call["dim"]) or list(range(x.dim()))
    n = max(1, math.prod(x.shape[d] for d in dims) if x.dim() else 1)
    top = (x.amax(dim=dims, keepdim=keep) if x.dim() else x).abs()
    return [Bound(rel=8 * U, absolute=gamma(n + 64) * 2 + 800 * U, factors=(top * (8 * U),))]


def log_softmax_backward(call: Call) -> list[Bound]:
    """_log_softmax_backward_data: g - exp(out)*sum(g)."""
    out, dim = call["output"], call["dim"]
    if not out.numel():
        return [Bound()]
    n = out.shape[dim] if out.dim() else 1
    total = reductions.sizes(call.narrow("grad_output"), [dim])[0] if out.dim() else call["grad_output"].abs()
    return [Bound(rel=8 * U, factors=(torch.exp(out), total * gamma(n + 16)))]


def nll_loss(call: Call) -> list[Bound]:
    """nll_loss_forward, nll_loss2d_forward: output and total weight."""
    x, target = call["self"], call["target"]
    classes = x.shape[-1 if x.dim() == 1 else 1]
    index = target.clamp(0, classes - 1)
    index = index.unsqueeze(-1 if x.dim() == 1 or index.dim() == 0 else 1)
    chosen = x.abs().gather(0 if x.dim() == 1 else 1, index if x.dim() > 1 else index.view(1))
    weight = float(call["weight"].abs().max()) if call["weight"] is not None else 1.0
    n = max(1, target.numel())
    total = float(chosen.sum()) * weight * gamma(n + 16)
    if call["reduction"] == 1:
        total /= max(float(call.results[1]), 1e-300)
    if call["reduction"] == 0:
        return [Bound(rel=4 * U), Bound(rel=gamma(n + 8))]
    return [Bound(rel=8 * U, absolute=total), Bound(rel=gamma(n + 8))]


def bce_with_logits(call: Call) -> list[Bound]:
    """binary_cross_entropy_with_logits: terms of size at most (2|x| + 2)(1 + |target|), summed or averaged."""
    x = call["self"]
    size = (2 * x.abs() + 2) * (1 + call["target"].abs())
    for name in ("weight", "pos_weight"):
        if call[name] is not None:
            size = size * (1 + call[name].abs())
    return [_reduced(size, call["reduction"])]


def bce(call: Call) -> list[Bound]:
    """binary_cross_entropy: (t - 1)*max(log1p(-x), -100) - t*max(log x, -100), summed or averaged."""
    x, t = call["self"], call["target"].abs()
    size = t * torch.log(x).clamp_min(-100).abs() + (1 + t) * torch.log1p(-x).clamp_min(-100).abs()
    if call["weight"] is not None:
        size = size * call["weight"].abs()
    return [_reduced(size, call["reduction"])]


def _reduced(size: torch.Tensor, reduction: int) -> Bound:
    """Bound of terms of at most `size` in absolute value that err by a few u, kept (0), averaged (1) or summed (2)."""
    if reduction == 0:
        return Bound(factors=(size * (32 * U),))
    n = max(1, size.numel())
    total = float(size.sum()) * gamma(n + 32)
    return Bound(absolute=total / n if reduction == 1 else total)


# --- elementwise with cancellation ----------------------------------------------------------------------------------


def elu(call: Call) -> list[Bound]:
    """elu: expm1 below zero, or exp(x) - 1, as CPU kernels before PyTorch 2.7 have it: off by a few u at any size."""
    below = (call["self"] < 0).to(call.x.dtype)
    return [Bound(rel=16 * U, factors=(below * (8 * U * abs(float(call["alpha"]) * float(call["scale"]))),))]


def ramp(call: Call) -> list[Bound]:
    """linspace, fractional arange: start + i*step."""
    ends = [
        abs(float(call[name])) for name in ("start", "end", "step") if isinstance(call.args.get(name), (int, float))
    ]
    return [Bound(rel=4 * U, absolute=16 * U * max(ends))]


def of_operand(name: str, ulps: float) -> BoundFunction:
    """An error of `ulps` units in the last place of an operand: for products with factors of size at most one."""

    def bound(call: Call) -> list[Bound]:
        return [Bound(rel=ulps * 2 * U, factors=(call[name].abs() * (ulps * 2 * U),))]

    return bound


def silu_backward(call: Call) -> list[Bound]:
    """silu_backward, mish_backward: g * s * (1 + x*(1 - s))."""
    g, x = call["grad_output"], call["self"]
    return [Bound(rel=16 * U, factors=(g.abs() * (x.abs() + 1) * (32 * U),))]


def gelu_backward(call: Call) -> list[Bound]:
    """gelu_backward, both forms: g * (cdf + x*pdf); every partial product stays below 3 in size."""
    return [Bound(rel=32 * U, factors=(call["grad_output"].abs() * (128 * U),))]


def log_add_exp(call: Call) -> list[Bound]:
    """logaddexp, logaddexp2: max + log1p(exp(-|x - y|)), which rounds at the size of max."""
    top = torch.maximum(call["self"], call["other"]).abs() + 1
    return [Bound(rel=8 * U, factors=(top * (800 * U),))]


# --- logarithm of the gamma function and its derivative -------------------------------------------------------------


def lgamma(call: Call) -> list[Bound]:
    """lgamma: 16*u*|result| where x >= 0, 8 units in the last place.

    Near its zeros too: kernels multiply a polynomial by x - 1 or x - 2, which float64 holds exactly. 4 ulp are the
    documented maximum of CUDA and glibc there, 1 ulp SLEEF's. Between its poles no library promises a relative error.
    """
    x = call["self"]
    if bool((x < 0).any()):
        raise _not_positive(call, "a negative number", "next to its zeros and poles below 0")
    return relative(8)(call)


def digamma(call: Call) -> list[Bound]:
    """digamma: 64*u*(1/x + 6 + |log x|) where x > 0.

    Absolute, because the result has a zero at 1.46. Kernels take 1/x, 1/(x + 1), ... off until x >= 10, which are at
    most ten steps, and add the asymptotic series log x - 1/(2x) - 1/(12x^2) + ... To first order, in units of u:

    - the quotients 1/(x + k), at most 1/x + 2.9 in sum, are each rounded once, and so are at most nine of their partial
      sums and three sums with the series: 13*(1/x + 2.9), and 3*|log y|, for the series at y, |log y| <= 2.4 + |log x|;
    - x + k has an error of at most u*k*(x + k), which moves the later quotients by at most u each and log y by 7*u;
    - log y is within 4 ulp: 8*|log y|;
    - the series stops seven terms after log y - 1/(2y): 0.4 at y = 10, and 1 for the rounding of its terms. Digamma of
      10 is a constant there: 2.3.

    Together less than 13/x + 85 + 11*|log x|, a fourth of the bound.
    """
    x = call["self"]
    if bool((x <= 0).any()):
        raise _not_positive(call, "zero or a negative number", "next to its zeros and poles")
    return [Bound(factors=((x.reciprocal() + x.log().abs() + 6) * (64 * U),))]


def _not_positive(call: Call, what: str, where: str) -> RefusedOperationError:
    op = f"aten.{call.name}.default"
    return RefusedOperationError(
        f"{op} of {what} has no bound {where}; positive numbers have a rule: clamp the operand, or make it with "
        "softplus, or tabulate the function outside the step and pass it in the batch",
        operation=op,
    )
