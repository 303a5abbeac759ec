"""Products of 16-bit matrices as A100's and H100's tensor cores compute them, bit for bit, some hundred times as fast.

The model in `nvidia` says what the units are; this computes the same on any processor. Recordings stand in for the
hardware with it, and a replay says with it what the declared unit makes of single elements.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from weighbridge.core.errors import UsageError
from weighbridge.numerics.units import declared, truncated_tiles
from weighbridge.numerics.units.order import Order
from weighbridge.numerics.units.truncated_tiles import LANES, Block

Tensor = torch.Tensor

PACKED = 1 << 22
"""Elements of one operand that are packed at once, unless one panel has more."""


_BLOCKS = {"a100": truncated_tiles.AMPERE, "h100": truncated_tiles.HOPPER}
UNITS = tuple(_BLOCKS)
"""Units that this computes."""
_FRACTION = {torch.bfloat16: 7, torch.float16: 10}
"""Fraction bits of the types that it multiplies."""


def product(a: Tensor, b: Tensor, unit: str, chain: int = 0) -> Tensor:
    """Returns a @ b in float32, as `units.named(unit)` does in chains that begin at zero.

    Args:
        a: (M, K) or (B, M, K), bfloat16 or float16, on any device.
        b: (K, N) or (B, K, N), of the same type.
        unit: One of `UNITS`.
        chain: Products of a chain; chains are added in order, in float32. 0 is one chain through all of K.

    Returns:
        (M, N) or (B, M, N) on the device of `a`. Zeros are +0. Which NaN stands where one does is not said.

    Raises:
        UsageError: The unit is not one of those, the types are others, or chains are no multiple of a block.
    """
    block, size = _block(a, b, unit, chain)
    shape = *a.shape[:-1], b.shape[-1]
    out = torch.zeros(shape)
    if a.numel() and b.numel():
        left, right = a.detach().cpu(), b.detach().cpu()
        batches = zip(*(t.reshape(-1, *t.shape[-2:]) for t in (left, right, out)), strict=True)
        if not all([_product(x, y.mT, place, block, size) for x, y, place in batches]):
            _unusual(left, right, out, unit, chain)
    return out.to(a.device)


def dots(a: Tensor, b: Tensor, unit: str, chain: int = 0) -> Tensor:
    """Returns sums over k of a[n, k] * b[n, k] in float32, as `product` has them.

    Args:
        a: (n, K), bfloat16 or float16.
        b: The same.
        unit: One of `UNITS`.
        chain: As of `product`.

    Raises:
        UsageError: As of `product`.
    """
    block, size = _block(a, b, unit, chain)
    out = torch.zeros(a.shape[0])
    if not a.numel():
        return out
    left, right = a.detach().cpu(), b.detach().cpu()
    step = max(PACKED // a.shape[1] // LANES, 1) * LANES
    for start in range(0, a.shape[0], step):
        x, y = left[start : start + step], right[start : start + step]
        found = torch.zeros(-(-x.shape[0] // LANES), LANES)
        *packed, first = _panels(x, LANES, block.products, 0)
        *others, second = _panels(y, LANES, block.products, _shift(block, y.dtype))
        sa, ea, sb, eb = (t.numpy() for t in (*packed, *others))
        truncated_tiles.dots(sa, ea, sb, eb, found.numpy(), size, block.products)
        some = found.flatten()[: x.shape[0]]
        if not (first and second):
            some = _unusual_dots(x, y, some, unit, chain)
        out[start : start + step] = some
    return out


def _block(a: Tensor, b: Tensor, unit: str, chain: int) -> tuple[Block, int]:
    """Returns a unit's block, and how many products a chain has."""
    block = _BLOCKS.get(unit)
    if block is None or a.dtype != b.dtype or a.dtype not in _FRACTION:
        raise UsageError(f"no fast model multiplies {a.dtype} by {b.dtype} as {unit!r}; take `units.named`")
    if chain < 0 or chain % block.products:
        raise UsageError(f"a chain of unit {unit!r} has a multiple of {block.products} products, not {chain}")
    return block, chain or max(a.shape[-1] + -a.shape[-1] % block.products, block.products)


def _shift(block: Block, dtype: torch.dtype) -> int:
    return block.fraction - 2 * _FRACTION[dtype]


def _panels(x: Tensor, lines: int, block: int, shift: int) -> tuple[Tensor, Tensor, bool]:
    """Returns significands and exponents of (lines, K), with K filled up with zeros: (panels, K, lines of a panel).

    What is not finite is a zero, and the third is False if there is any.
    """
    shape = -(-x.shape[0] // lines), x.shape[1] + -x.shape[1] % block, lines
    significands, exponents = (torch.empty(shape, dtype=torch.int32) for _ in range(2))
    bits = x.contiguous().view(torch.int16).numpy()
    whole = truncated_tiles.unpack(bits, _FRACTION[x.dtype], shift, significands.numpy(), exponents.numpy())
    return significands, exponents, bool(whole)


def _product(a: Tensor, b: Tensor, out: Tensor, block: Block, chain: int) -> bool:
    """Writes a product of (M, K) and (N, K), some lines of both at a time; returns whether all operands are finite."""
    finite = True
    rows = max(PACKED // a.shape[1], 1)
    columns = max(PACKED // (a.shape[1] * LANES), 1) * LANES
    for start in range(0, b.shape[0], columns):
        *right, whole = _panels(b[start : start + columns], LANES, block.products, _shift(block, b.dtype))
        finite &= whole
        for top in range(0, a.shape[0], rows):
            *left, whole = _panels(a[top : top + rows], 1, block.products, 0)
            finite &= whole
            some = torch.zeros(left[0].shape[0], right[0].shape[0] * LANES)
            (sa, ea), (sb, eb) = (t[..., 0].numpy() for t in left), (t.numpy() for t in right)
            truncated_tiles.multiply(sa, ea, sb, eb, some.numpy(), chain, block.products)
            place = out[top : top + rows, start : start + columns]
            place.copy_(some[:, : place.shape[1]])
    return finite


def _unusual(a: Tensor, b: Tensor, out: Tensor, unit: str, chain: int) -> None:
    """Sets what has terms that are not finite."""
    exact = torch.matmul(a.double(), b.double())
    columns = b.mT.expand(*a.shape[:-2], *b.mT.shape[-2:])

    def model(at: Tensor) -> Tensor:
        *outer, i, j = at.nonzero().unbind(1)
        return _model(a[(*outer, i)], columns[(*outer, j)], unit, chain)

    out.copy_(_with_unusual(out, exact, model))


def _unusual_dots(a: Tensor, b: Tensor, out: Tensor, unit: str, chain: int) -> Tensor:
    """The same for sums of products, (n, K) each."""
    exact = (a.double() * b.double()).sum(1)
    return _with_unusual(out, exact, lambda at: _model(a[at], b[at], unit, chain))


def _with_unusual(out: Tensor, exact: Tensor, model: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns results, infinite or NaN where terms are: as their sum says, unless finite terms overflow beside them.

    Args:
        out: Results of the finite terms.
        exact: Sums of all terms, of which finite ones cannot overflow.
        model: Computes the elements where both are not finite.
    """
    odd = ~torch.isfinite(exact)
    both = odd & ~torch.isfinite(out)
    out = torch.where(odd, exact.to(torch.float32), out)
    if bool(both.any()):
        out[both] = model(both)
    return out


def _model(a: Tensor, b: Tensor, unit: str, chain: int) -> Tensor:
    order = Order(chain=chain or None, bias_first=False)
    return declared.named(unit).dot(a, b, torch.zeros(a.shape[0]), order)
