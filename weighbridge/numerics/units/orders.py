"""Signatures of matrix products, and the order that a draft declares for each: how many products a chain has.

A signature is what a library chooses its kernel by: the type of the operands and the shape, as in `bf16 64x1024x33` or,
with a batch, `fp16 8x16x64x16`. What no order is declared for is one chain through all of K.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from weighbridge.core.errors import UsageError

Tensor = torch.Tensor

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_SIGNATURE = re.compile(r"(bf16|fp16) ([1-9]\d{0,9}x){2,3}[1-9]\d{0,9}")
BLOCK = 16
"""A chain has a multiple of so many products: whole blocks of every unit that can be declared."""
MOST = 1 << 12
"""Signatures of a draft."""
_LONGEST = 1 << 24
BITS = math.log2(_LONGEST // BLOCK)
"""What a draft chooses with the length of one signature's chains: other lengths give other results."""


def signature(a: Tensor, b: Tensor) -> str:
    """Returns the signature of a @ b, for (M, K) and (K, N), or the same with a batch, of a type of 16 bits."""
    return f"{_NAMES[a.dtype]} {'x'.join(map(str, (*a.shape, b.shape[-1])))}"


def sizes(text: str) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    """Returns the type and the shapes of both operands of a signature: (M, K) and (K, N), or the same with a batch.

    Raises:
        UsageError: It is none.
    """
    if _SIGNATURE.fullmatch(text) is None:
        raise UsageError(f"{text[:80]!r} is no signature of a product; it looks like bf16 64x1024x33")
    name, _, shape = text.partition(" ")
    *batch, m, k, n = map(int, shape.split("x"))
    return next(dtype for dtype, each in _NAMES.items() if each == name), (*batch, m, k), (*batch, k, n)


def chain_of(orders: Mapping[str, int], a: Tensor, b: Tensor) -> int:
    """Returns how many products a chain of a @ b has; 0 is one chain through all of K."""
    return orders.get(signature(a, b), 0) if orders else 0


def parse(raw: Any) -> dict[str, int]:
    """Reads orders as a draft has them.

    Raises:
        UsageError: They are not orders.
    """
    good = isinstance(raw, Mapping) and len(raw) <= MOST
    for name, chain in raw.items() if good else ():
        good = good and isinstance(name, str) and _SIGNATURE.fullmatch(name) is not None
        good = good and type(chain) is int and 0 < chain <= _LONGEST and chain % BLOCK == 0
    if not good:
        raise UsageError(
            "the orders of the draft are not signatures of products with the lengths of their chains; see "
            "docs/formats/transcript.md"
        )
    return dict(raw)
