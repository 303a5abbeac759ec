"""Kinds of operands of products: what a unit's errors, and its bounds, depend on."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor
Kind = Callable[[torch.Generator, int, int], tuple[Tensor, Tensor]]


def normal(generator: torch.Generator, side: int, k: int) -> tuple[Tensor, Tensor]:
    return torch.randn(side, k, generator=generator), torch.randn(k, side, generator=generator)


def lognormal(generator: torch.Generator, side: int, k: int) -> tuple[Tensor, Tensor]:
    """Of very different size, of either sign; float16 holds nearly all."""
    (a, b), (x, y) = normal(generator, side, k), normal(generator, side, k)
    return torch.exp(2 * a) * x.sign(), torch.exp(2 * b) * y.sign()


def one_signed(generator: torch.Generator, side: int, k: int) -> tuple[Tensor, Tensor]:
    a, b = normal(generator, side, k)
    return a.abs(), b.abs()


def drifting(generator: torch.Generator, side: int, k: int) -> tuple[Tensor, Tensor]:
    a, b = normal(generator, side, k)
    return a + 0.5, b + torch.linspace(0, 0.5, k)[:, None]


def hump(generator: torch.Generator, side: int, k: int) -> tuple[Tensor, Tensor]:
    """Sums that rise to the middle and fall to nearly nothing: large accumulators, a small result."""
    a, b = one_signed(generator, side, k)
    a[:, k // 2 :] = -a[:, k // 2 :]
    return a, b


KINDS: tuple[Kind, ...] = (normal, lognormal, one_signed, drifting, hump)


def drawn(kind: Kind, side: int, k: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns (side, k) and (k, side) operands of a kind and type."""
    a, b = kind(torch.Generator().manual_seed(seed or k), side, k)
    return a.to(dtype), b.to(dtype)
