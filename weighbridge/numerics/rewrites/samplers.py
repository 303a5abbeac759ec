"""Sampling that PyTorch leaves to the device, made of uniform variates and ruled operations.

The variates come from the counter-based generator; what is computed from them is rounded and logged, so a sample is the
same on every device.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

aten = torch.ops.aten
Tensor = torch.Tensor
Generator = torch.Generator | None


def _unit(x: Tensor, generator: Generator) -> Tensor:
    """Uniform float32 variates shaped like x, multiples of 2^-24 in [0, 1)."""
    return torch.empty(x.shape, dtype=torch.float32, device=x.device).uniform_(generator=generator)


def _open(x: Tensor, generator: Generator) -> Tensor:
    """Uniform variates above 0; 2^-25 stands for the interval from 0 to 2^-24."""
    return _unit(x, generator).clamp_min(2.0**-25)


@decomposes("exponential_.default")
def _exponential(x: Tensor, lambd: float = 1, *, generator: Generator = None) -> Tensor:
    return x.copy_(_open(x, generator).log().neg() / lambd)


@decomposes("cauchy_.default")
def _cauchy(x: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator = None) -> Tensor:
    return x.copy_(((_open(x, generator) - 0.5) * math.pi).tan() * sigma + median)


@decomposes("log_normal_.default")
def _log_normal(x: Tensor, mean: float = 1, std: float = 2, *, generator: Generator = None) -> Tensor:
    drawn = torch.empty(x.shape, dtype=torch.float32, device=x.device).normal_(mean, std, generator=generator)
    return x.copy_(drawn.exp())


@decomposes("geometric_.default")
def _geometric(x: Tensor, p: float, *, generator: Generator = None) -> Tensor:
    return x.copy_((_open(x, generator).log() / math.log1p(-p)).ceil().clamp_min(1))


@decomposes("multinomial.default")
def _multinomial(
    weights: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator = None
) -> Tensor:
    """Categories by inversion of their distribution; without replacement those that win a race of exponential times."""
    weights = weights.to(torch.float32)
    total = weights.sum(-1)
    if not bool((torch.isfinite(total) & (total > 0) & (weights >= 0).all(-1)).all()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0, or a row without weight")
    if not replacement and num_samples > 1:
        if num_samples > weights.shape[-1]:
            raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
        arrivals = torch.empty(weights.shape, dtype=torch.float32, device=weights.device)
        return torch.topk(weights / arrivals.exponential_(generator=generator), num_samples, dim=-1).indices
    # Sorting makes rounded sums monotone, so that there is one right answer to where a variate falls among them.
    ends = torch.sort(weights.cumsum(-1), dim=-1, stable=True).values
    last = ends[..., -1:]
    variates = _unit(last.expand(*weights.shape[:-1], num_samples), generator)
    # A variate is at most 1 - 2^-24, so the product rounds to less than the last end.
    return torch.searchsorted(ends, variates * last, right=True)


@decomposes("rrelu_with_noise.default")
def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
    generator: Generator = None,
) -> Tensor:  # fmt: skip
    if not training:
        return cast(Tensor, aten.leaky_relu.default(x, (lower + upper) / 2))
    slopes = torch.empty_like(x, memory_format=torch.contiguous_format).uniform_(lower, upper, generator=generator)
    noise.copy_(torch.where(x <= 0, slopes, 1.0))
    return x * noise


@decomposes("rrelu_with_noise_.default")
def _rrelu_(x: Tensor, noise: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.copy_(_rrelu(x, noise, *args, **kwargs))


@decomposes("rrelu_with_noise_backward.default")
def _rrelu_backward(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, self_is_result: bool
) -> Tensor:
    if training:
        return grad * noise
    return cast(Tensor, aten.leaky_relu_backward.default(grad, x, (lower + upper) / 2, self_is_result))
