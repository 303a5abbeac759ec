"""Which unit, in which order, computes a device's 16-bit products: told by products that are all rounding error.

Operands come in pairs that cancel, in a random order along K, so that the exact sum is zero and every result is the
rounding error of the way it was summed. Two ways then differ at nearly every element, also after rounding to bfloat16,
where ordinary data tell them apart at one element in ten thousand. What the device returns is compared with the model
of each unit: first at a length that needs one chain only, then, for those that fit, at a long one in each order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from weighbridge.core.errors import FormatError
from weighbridge.numerics.units import declared
from weighbridge.numerics.units.order import Order

Tensor = torch.Tensor

SIDE = 32
"""Rows of the one operand and columns of the other."""
SHORT = 64
"""K of the first product: too short for any library to divide."""
LONG = 4096
"""K of the second product."""
CHAINS = (None, 2048, 1024, 512, 256, 128)
SEED = 20


@dataclass(frozen=True, slots=True)
class Identified:
    """What a device returned, and what returns the same.

    Attributes:
        short: bfloat16 results of K = `SHORT`, as hexadecimal of their 16-bit words, row by row.
        long: The same of K = `LONG`.
        units: Names of the units whose model returns `short` bit for bit, in one chain.
        orders: (unit, products in a chain) of all that return `long`; 0 is one chain through all of K.
    """

    short: str
    long: str
    units: tuple[str, ...]
    orders: tuple[tuple[str, int], ...]


def operands(length: int) -> tuple[Tensor, Tensor]:
    """Returns two bfloat16 matrices, (`SIDE`, length) and (length, `SIDE`), whose exact product is zero."""
    return cancelling((SIDE, length), (length, SIDE), torch.bfloat16, SEED + length)


def cancelling(
    left: tuple[int, ...], right: tuple[int, ...], dtype: torch.dtype, seed: int, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Returns two matrices whose exact product is zero: pairs of products that cancel, in a random order along K.

    Args:
        left: Shape of the first, (M, K) or (B, M, K). Where K is odd, one column is zero.
        right: Shape of the second, (K, N) or (B, K, N).
        dtype: Their type.
        seed: Of their values.
        scale: What these are multiplied by.
    """
    generator, length = torch.Generator().manual_seed(seed), left[-1]
    half, odd = length // 2, length % 2
    a = (torch.randn(*left[:-1], half, generator=generator) * scale).to(dtype)
    b = (torch.randn(*right[:-2], half, right[-1], generator=generator) * scale).to(dtype)
    places = torch.randperm(length, generator=generator)
    first = torch.cat([a, a, a.new_zeros(*left[:-1], odd)], -1)[..., places]
    second = torch.cat([b, -b, b.new_zeros(*right[:-2], odd, right[-1])], -2)[..., places, :]
    return first.contiguous(), second.contiguous()


def returned(device: str) -> tuple[str, str]:
    """Returns what a device makes of both products with the settings that a user's program has: `short` and `long`."""
    short, long = (torch.mm(*(t.to(device) for t in operands(length))) for length in (SHORT, LONG))
    return _text(short), _text(long)


def identify(short: str, long: str, progress: Callable[[int, int], None] | None = None) -> Identified:
    """Says which of the declared units, in which orders, return the same as a device.

    Args:
        short: What `returned` gave.
        long: The same of the long product.
        progress: Told how many models of how many were tried.

    Raises:
        FormatError: A text is not what `returned` gives.
    """
    for text in (short, long):
        if not re.fullmatch(rf"[0-9a-f]{{{4 * SIDE * SIDE}}}", text):
            raise FormatError("this is no result of the product that tells units apart; get it again from who made it")
    names = [name for name in declared.names() if _takes_bfloat16(name)]
    fits = []
    for done, name in enumerate(names, 1):
        fits += [name] if _modelled(name, SHORT, Order()) == short else []
        if progress is not None:
            progress(done, len(names))
    orders = []
    ways = [(name, chain) for name in fits for chain in CHAINS]
    for done, (name, chain) in enumerate(ways, 1):
        if _modelled(name, LONG, Order(chain=chain, bias_first=False)) == long:
            orders.append((name, chain or 0))
        if progress is not None:
            progress(len(names) + done, len(names) + len(ways))
    return Identified(short, long, tuple(fits), tuple(orders))


def of_device(device: str, progress: Callable[[int, int], None] | None = None) -> Identified:
    """Multiplies on a device and identifies what did it."""
    return identify(*returned(device), progress)


def _takes_bfloat16(name: str) -> bool:
    operations = declared.named(name).operations
    return any(each.accumulator == torch.float32 and each.takes(torch.bfloat16) for each in operations)


@cache
def _modelled(name: str, length: int, order: Order) -> str:
    product = declared.named(name).product(*operands(length), order=order)
    return _text(product.to(torch.bfloat16))


def _text(results: Tensor) -> str:
    words: Sequence[int] = results.cpu().contiguous().view(torch.int16).flatten().tolist()
    return "".join(f"{word & 0xFFFF:04x}" for word in words)
