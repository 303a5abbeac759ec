"""How far a recorded number may be from the Verifier's own, coordinate by coordinate.

Of a gradient: the Verifier has it twice, in float64 and in the types of the tape. Their difference is a sample of what
honest rounding does to this coordinate. One sample may be zero by chance, so beside it stands what the samples of the
same row and column amount to, and what the errors of all that a product sums amount to (`noise`). A coordinate on which
nothing had bearing (an embedding's unused row, a unit that is off) has to be exactly zero. One that is zero in both
arithmetics only because its terms cancel (a bias before a batch norm) shows that when they are disturbed.

Of an update: the formula is evaluated again with each of its operands moved by one rounding.
"""

from __future__ import annotations

import torch

from weighbridge.execution.recognition.derivation import MOVED, Pair
from weighbridge.execution.recognition.noise import alike, unit

Tensor = torch.Tensor

NOISE = 16.0
"""How many times the estimated rounding error of a gradient's coordinate is accepted."""

ROUNDINGS = 8.0
"""The same of an update, whose error is estimated to first order."""


def width(pair: Pair, disturbed: Tensor | None = None) -> Tensor:
    """Returns how far a recorded gradient may be from `pair.exact` in each coordinate (float64, the same shape).

    Args:
        pair: The Verifier's own.
        disturbed: The same gradient with each term moved by up to `MOVED` of it: zero where there is none, and far from
            zero where terms cancel, whose roundings do not. Where it is not given, nothing counts as cancelled.
    """
    exact, dtype = pair.exact, pair.native.dtype
    sample = (pair.native.double() - exact).abs()
    # Where the types of the tape overflow, there is nothing to learn.
    sample = torch.where(torch.isfinite(sample), sample, torch.zeros_like(sample))
    estimate = torch.maximum(sample, alike(sample))
    if pair.spread is not None:
        carried = pair.spread.double().sqrt()
        estimate = torch.maximum(estimate, torch.where(torch.isfinite(carried), carried, estimate))
    nothing = (exact == 0) & (pair.native == 0)
    if disturbed is not None:
        shift = (disturbed - exact).abs()
        cancelled = (exact.abs() < shift) & torch.isfinite(shift)
        rounded = unit(dtype) / MOVED * shift
        estimate = torch.where(cancelled, torch.maximum(estimate, rounded), estimate)
        nothing &= disturbed == 0
    smallest = float(torch.finfo(dtype).tiny)
    accepted = NOISE * estimate + 4 * unit(dtype) * exact.abs() + smallest
    return torch.where(nothing, torch.zeros_like(accepted), accepted)


def excess(difference: Tensor, accepted: Tensor) -> float:
    """Returns the largest difference in units of what is accepted; infinite where none is and there is one."""
    if not difference.numel():
        return 0.0
    size = difference.abs()
    ratio = torch.where(size == 0, torch.zeros_like(size), size / accepted)
    ratio = torch.where(torch.isfinite(accepted), ratio, torch.inf)  # there is nothing by which to tell
    return float(torch.nan_to_num(ratio, nan=float("inf"), posinf=float("inf")).max())


def spacing(t: Tensor) -> Tensor:
    """The distance of each element to its neighbours in its own type (float64)."""
    info = torch.finfo(t.dtype)
    return torch.clamp(t.double().abs() * float(info.eps), min=float(info.smallest_normal) * float(info.eps))
