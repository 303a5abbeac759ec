"""Dot products of bf16 and fp16 on x86: AVX512_BF16 and AMX.

Source: Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2: VDPBF16PS, TDPBF16PS and
TDPFP16PS with their pseudo-code. All ignore MXCSR: they round to nearest, take subnormal operands as zeros and flush
subnormal results, which is decided after rounding. Which NaN VDPBF16PS returns is as an AMD EPYC (Zen 5) does it; for
AMX the same is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from weighbridge.numerics.units import wide
from weighbridge.numerics.units.formats import Operand

Tensor = torch.Tensor

_INDEFINITE = torch.tensor(-1 << 51).view(torch.float64)
"""What an invalid operation returns, 0xFFC00000 as float32."""


def _first_nan(result: Tensor, *operands: Tensor) -> Tensor:
    """Puts the first NaN among the operands, or the indefinite one, in place of each NaN of a result."""
    chosen = _INDEFINITE
    for each in reversed(operands):
        chosen = torch.where(torch.isnan(each), each, chosen)
    return torch.where(torch.isnan(result), chosen, result)


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Returns a * b + c, rounded once to nearest and flushed; all three hold no subnormal value."""
    product = a * b
    total = wide.to_float32_flushed(wide.odd_sum([product, c]))
    plain = product + c
    return _first_nan(torch.where(torch.isfinite(plain), total, plain), a, b, c)


def _sum(x: Tensor, y: Tensor) -> Tensor:
    """Returns x + y, rounded once to nearest and flushed; both are float32 values."""
    return _first_nan(wide.to_float32_flushed(x + y), x, y)


@dataclass(frozen=True, slots=True)
class PairOfFused:
    """VDPBF16PS: the odd product of a pair is added by a fused multiply-add, then the even one."""

    products: ClassVar[int] = 2
    nan: ClassVar[int | None] = None

    def step(self, a: Operand, b: Operand, c: Tensor) -> Tensor:
        """See `Arithmetic`."""
        x, y = _normal(a), _normal(b)
        total = _fused(x[..., 1], y[..., 1], wide.flushed(c, wide.TINY, signed=True))
        return _fused(x[..., 0], y[..., 0], total)


@dataclass(frozen=True, slots=True)
class TileOfFused:
    """TDPBF16PS and TDPFP16PS: in a tile, one chain of fused multiply-adds for even and one for odd products.

    Both begin at zero. They are added, and that to the addend. A tile has up to 32 products; shorter ones end with
    zeros, which change nothing.
    """

    products: ClassVar[int] = 32
    nan: ClassVar[int | None] = None

    def step(self, a: Operand, b: Operand, c: Tensor) -> Tensor:
        """See `Arithmetic`."""
        x, y = _normal(a), _normal(b)
        even = odd = torch.zeros_like(c)
        for k in range(0, self.products, 2):
            even = _fused(x[..., k], y[..., k], even)
            odd = _fused(x[..., k + 1], y[..., k + 1], odd)
        return _sum(wide.flushed(c, wide.TINY, signed=True), _sum(even, odd))


def _normal(x: Operand) -> Tensor:
    """Returns the values, zeros in place of what would be subnormal as float32: fp16 has nothing so small."""
    return wide.flushed(x.values, wide.TINY, signed=True)
