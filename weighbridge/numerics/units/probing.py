"""Which unit, in which order of blocks, computes the products of a signature on a device: one probed rule for each.

A library chooses its kernel, and with it the order along K, by the type and the sizes of a product. So each signature
is probed by itself, with operands whose exact product is zero (`identification.cancelling`): every result is the
rounding error of the way it was summed. Some results of the device, at places that the signature draws, are compared
with what each unit that truncates makes of them in each order. Two ways differ at nearly every element, so one result
that no way returns is enough to say that none fits.

Orders are those that kernels for tensor cores are known to have: one chain through all of K; chains of equal length
(split-K, accumulators that are promoted); and chains that take turns, so many products at a time (K sliced among the
warps of a block). A draft can declare the first two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, get_args

import torch

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import FormatError, UsageError
from weighbridge.numerics.units import declared, truncated_products
from weighbridge.numerics.units.identification import cancelling
from weighbridge.numerics.units.nvidia import TruncatedSum
from weighbridge.numerics.units.order import Order
from weighbridge.numerics.units.orders import BLOCK, sizes

Tensor = torch.Tensor
Layout = Literal["nn", "nt", "tn", "tt"]
"""Of each operand: whether it lies in row-major order, or transposed."""

PLACES = 256
"""Results of a product that are compared, at most."""
_FIRST = 8
"""As many say of most ways that they are not the device's."""
MOST = 1 << 27
"""Elements of an operand, at most."""
_SCALE = {torch.bfloat16: 1.0, torch.float16: 16.0}
"""What operands are multiplied by, so that rounding errors of float32 are normal numbers of the type."""
_CONSTANT = (64, 128, 256, 512, 1024, 2048, 4096)
_SLICES = range(2, 17)
_TURNS = (16, 32, 64)
_TAKING = (2, 4, 8)


class Way(NamedTuple):
    """How a product may be summed.

    Attributes:
        unit: For `units.named`.
        chain: Products of a chain; 0 is one chain through all of K.
        turn: If chains take turns: so many products at a time; else 0.
        chains: If chains take turns: how many there are; else 0.
    """

    unit: str
    chain: int = 0
    turn: int = 0
    chains: int = 0

    def __str__(self) -> str:
        if self.turn:
            return f"{self.unit} in {self.chains} chains that take turns of {self.turn}"
        return f"{self.unit} in chains of {self.chain:,}" if self.chain else f"{self.unit} in one chain"


class Product(NamedTuple):
    """A product that a library may have a kernel of its own for.

    Attributes:
        signature: Its type and sizes (`orders.signature`).
        layout: How its operands lie.
    """

    signature: str
    layout: Layout = "nn"

    def __str__(self) -> str:
        return f"{self.signature} {self.layout}"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a device's results of one product are.

    Attributes:
        product: The product.
        ways: All that return every result that was compared.
        nearest: If there is none: the one that returns most of them.
        agree: How many that returns.
        compared: How many were compared.
        zero: Whether all are zero, as exact sums are.
    """

    product: Product
    ways: tuple[Way, ...]
    nearest: Way | None
    agree: int
    compared: int
    zero: bool

    def __str__(self) -> str:
        if self.ways:
            return f"{self.product}: {', or '.join(map(str, self.ways))}"
        if self.zero:
            return f"{self.product}: no rule fits; the sums are exact, so no unit that truncates made them"
        return (
            f"{self.product}: no rule fits; the nearest, {self.nearest}, has {self.agree:,} of {self.compared:,} "
            "results: the unit or the order of its blocks is one that is not modelled"
        )


def read(text: str) -> Product:
    """Reads a product as `str` gives it.

    Raises:
        FormatError: It is none, or one that would take too much memory.
    """
    signature, _, lies = text.rpartition(" ")
    layout: Layout | None = next((each for each in get_args(Layout) if each == lies), None)
    try:
        _, left, right = sizes(signature)
        if layout is not None and max(torch.Size(left).numel(), torch.Size(right).numel()) <= MOST:
            return Product(signature, layout)
    except UsageError:
        pass
    raise FormatError(f"{text[:80]!r} is no product that can be probed; it looks like bf16 64x1024x33 nt")


def operands(product: Product) -> tuple[Tensor, Tensor]:
    """Returns the operands of a product, which cancel, as its layout says."""
    dtype, left, right = sizes(product.signature)
    seed = int.from_bytes(bytes_digest(product.signature.encode())[:4], "little")
    pair = cancelling(left, right, dtype, seed, _SCALE[dtype])
    made = [t.mT.contiguous().mT if way == "t" else t for t, way in zip(pair, product.layout, strict=True)]
    return made[0], made[1]


def returned(product: Product, multiply: Callable[[Tensor, Tensor], Tensor], device: str = "cpu") -> str:
    """Returns what a device makes of a product, at its places, as hexadecimal of 16-bit words.

    Args:
        product: The product.
        multiply: Multiplies on the device: `torch.matmul`, or an injected device; accumulators are rounded.
        device: Where the operands are to be.
    """
    a, b = operands(product)
    results = multiply(a.to(device), b.to(device)).to(a.dtype).flatten()
    words: Sequence[int] = results[places(product).to(results.device)].cpu().view(torch.int16).tolist()
    return "".join(f"{word & 0xFFFF:04x}" for word in words)


def places(product: Product) -> Tensor:
    """Returns which results are compared, by their number in row-major order."""
    _, left, right = sizes(product.signature)
    count = torch.Size(left[:-1]).numel() * right[-1]
    generator = torch.Generator().manual_seed(count)
    return torch.randint(count, (min(PLACES, count),), generator=generator).sort().values


def rule(product: Product, text: str, units: Iterable[str] | None = None) -> Rule:
    """Says in which ways a device computes a product.

    Args:
        product: The product.
        text: What `returned` gave.
        units: Which units to look at; by default all that truncate.

    Raises:
        FormatError: The text is not what `returned` gives.
    """
    at = places(product)
    if not re.fullmatch(rf"[0-9a-f]{{{4 * len(at)}}}", text):
        raise FormatError(f"this is no result of {product}; get it again from who made it")
    words = [int(text[n : n + 4], 16) for n in range(0, len(text), 4)]
    found = torch.tensor([word - (word >> 15 << 16) for word in words], dtype=torch.int16)
    a, b = operands(product)
    n, shape = b.shape[-1], a.shape[:-1]
    outer = torch.unravel_index(at // n, shape)
    rows, columns = a[outer], b.mT[(*outer[:-1], at % n)]
    names = [name for name in units or truncating() if _takes(name, a.dtype)]
    ways = [way for name in names for way in _ways(name, a.shape[-1])]
    counts = [int((_summed(rows[:_FIRST], columns[:_FIRST], way) == found[:_FIRST]).sum()) for way in ways]
    most = max(counts, default=0)
    likely = [way for way, count in zip(ways, counts, strict=True) if count == most]
    agree = [int((_summed(rows, columns, way) == found).sum()) for way in likely]
    best = max(agree, default=0)
    fits = tuple(way for way, count in zip(likely, agree, strict=True) if count == len(at))
    nearest = None if fits or not likely else likely[agree.index(best)]
    zero = bool((found & 0x7FFF == 0).all())
    return Rule(product, fits, nearest, best, len(at), zero and not fits)


def orders_of(rules: Iterable[Rule], unit: str) -> dict[str, int]:
    """Returns the orders that a draft declares for a device's products, under the policy of a unit.

    Args:
        rules: What a probe found, for each product.
        unit: The unit that is declared.

    Raises:
        UsageError: One of the products is not the unit's, or is summed in an order that no draft can declare; or a
            signature has two orders, in two layouts.
    """
    chains: dict[str, set[int]] = {}
    for each in rules:
        fits = {way.chain for way in each.ways if way.unit == unit and not way.turn}
        if not fits:
            raise UsageError(f"unit {unit!r} cannot be declared for this device: {each}")
        signature = each.product.signature
        chains[signature] = chains.get(signature, fits) & fits
        if not chains[signature]:
            raise UsageError(
                f"unit {unit!r} cannot be declared for this device: {signature} is summed in one order in one layout, "
                f"and in another in {each.product.layout}; a draft has one order for each signature"
            )
    return {signature: min(found) for signature, found in chains.items() if 0 not in found}


@cache
def truncating() -> tuple[str, ...]:
    """Returns one unit for each arithmetic that truncates: of those that compute alike, the first."""
    found: dict[TruncatedSum, str] = {}
    for name in declared.names():
        for each in declared.named(name).operations:
            if each.accumulator == torch.float32 and each.takes(torch.float16):
                if isinstance(each.arithmetic, TruncatedSum):
                    found.setdefault(each.arithmetic, name)
                break
    return tuple(found.values())


def _takes(name: str, dtype: torch.dtype) -> bool:
    return any(each.accumulator == torch.float32 and each.takes(dtype) for each in declared.named(name).operations)


def _ways(unit: str, length: int) -> list[Way]:
    """Returns the ways in which a unit may sum so many products, none twice; few of one that does not truncate."""
    if unit not in truncating():
        return [Way(unit, chain) for chain in (0, *_CONSTANT) if chain < length]
    sliced = {-(-length // (count * size)) * size for count in _SLICES for size in (16, 32, 64)}
    chains = [0, *sorted(chain for chain in {*_CONSTANT, *sliced} if chain < length)]
    taking = [(turn, count) for turn in _TURNS for count in _TAKING if turn * count < length]
    return [Way(unit, chain) for chain in chains] + [Way(unit, 0, turn, count) for turn, count in taking]


def _summed(rows: Tensor, columns: Tensor, way: Way) -> Tensor:
    """Returns sums of rows and columns, (n, K) each, as a way has them, as 16-bit words."""
    chain = way.chain
    if way.turn:
        rows, columns = (_taking_turns(t, way) for t in (rows, columns))
        chain = rows.shape[-1] // way.chains
    assert chain % BLOCK == 0
    if way.unit in truncated_products.UNITS:
        sums = truncated_products.dots(rows, columns, way.unit, chain)
    else:
        order = Order(chain=chain or None, bias_first=False)
        sums = declared.named(way.unit).dot(rows, columns, torch.zeros(len(rows)), order)
    return sums.to(rows.dtype).view(torch.int16)


def _taking_turns(x: Tensor, way: Way) -> Tensor:
    """Returns (n, K) with the chains one after the other, K filled up with zeros."""
    filled = torch.nn.functional.pad(x, (0, -x.shape[-1] % (way.turn * way.chains)))
    return filled.view(len(x), -1, way.chains, way.turn).transpose(1, 2).flatten(1)
