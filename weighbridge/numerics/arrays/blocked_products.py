"""Products of matrices whose summed dimension is split into blocks, so that fewer roundings follow one another.

A library adds the terms of one block in whatever order it likes; the sums of blocks are added here, one after the
other. A sum is then a tree: each term passes at most (terms of a block - 1) additions in its block and one for each
further block. Sums of blocks are added by an addition of its own, because a library that is given what to add to may
begin with it, and every block's terms would then lengthen the way of all earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Tensor = torch.Tensor


def length(terms: int, least: int) -> int:
    """Returns how many terms a block has; the last one may have fewer.

    Blocks have `least` terms, or the root of `terms` if that is more, which makes the longest way shortest and keeps
    blocks few; then all of them as equally many as they can, in no more blocks.

    Args:
        terms: Terms of a sum, at least 1.
        least: The policy's block.
    """
    blocks = -(-terms // max(least, math.isqrt(terms)))
    return -(-terms // blocks)


def roundings(terms: int, least: int) -> int:
    """Returns how many roundings are counted for a sum of so many terms; a block of 0 says that it was not split."""
    if not least or terms <= least:
        return terms
    block = length(terms, least)
    return block + -(-terms // block)


def split(product: Callable[..., Tensor], a: Tensor, b: Tensor, block: int) -> Tensor:
    """Returns a @ b as the sum of the products of its blocks, in their order.

    Args:
        product: `torch.mm`, `torch.bmm` or `torch.mv`.
        a: (..., M, K).
        b: (..., K, N), or (K) for `torch.mv`.
        block: Terms of a block.
    """
    at = -1 if b.dim() == 1 else -2
    pairs = [
        (a.narrow(-1, start, size), b.narrow(at, start, size))
        for start in range(0, a.shape[-1], block)
        for size in (min(block, a.shape[-1] - start),)
    ]
    total = product(*pairs[0])
    part = torch.empty_like(total)
    for left, right in pairs[1:]:
        total += product(left, right, out=part)
    return total
