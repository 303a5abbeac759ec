"""In which order a kernel adds what a matrix unit computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Order:
    """How products along K are shared out to chains of blocks, and how the chains are added.

    A chain begins at +0, the first one at the bias if `bias_first`. Chains are added in order, each sum rounded to the
    nearest float32, and a bias that was not first comes last. This covers a plain loop over K (one chain), split-K
    (K / slices products in a chain), and accumulators that are promoted every so many products.

    Attributes:
        chain: How many products a chain has; None if there is one chain.
        bias_first: Whether the bias is what the first chain begins at.
    """

    chain: int | None = None
    bias_first: bool = True

    def accumulate(self, length: int, bias: Tensor, chain: Callable[[int, int, Tensor], Tensor]) -> Tensor:
        """Adds a whole sum.

        Args:
            length: How many products there are.
            bias: float64 that holds values of the accumulator's type.
            chain: Continues a sum with products from one index to before another.
        """
        size = self.chain or max(length, 1)
        zero = torch.zeros_like(bias)
        total = chain(0, min(size, length), bias if self.bias_first else zero)
        for start in range(size, length, size):
            total = _added(total, chain(start, min(start + size, length), zero))
        return total if self.bias_first else _added(total, bias)


def _added(x: Tensor, y: Tensor) -> Tensor:
    return (x.to(torch.float32) + y.to(torch.float32)).to(torch.float64)


IN_ORDER = Order()
"""One chain from the bias through all of K."""
