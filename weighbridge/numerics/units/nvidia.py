"""NVIDIA's tensor cores: products and the addend are aligned to the largest exponent, truncated, and added exactly.

Sources: Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores" (arXiv 2512.07004), and Xie et al., "MMA-Sim"
(arXiv 2511.10909), for widths, exponents of zeros and special values; Fasi, Higham, Mikaitis and Pranesh, "Numerical
behavior of NVIDIA tensor cores" (PeerJ Computer Science 7:e330, 2021), for truncation and the missing normalisation.
How 16-bit instructions stand in for 8-bit ones was found here, from the outputs that Khattak and Mikaitis published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from weighbridge.numerics.units import wide
from weighbridge.numerics.units.formats import FP16, Operand


@dataclass(frozen=True, slots=True)
class TruncatedSum:
    """The truncated fused sum (T-FDPA in MMA-Sim).

    A product is exact and not normalised: its exponent is the sum of its operands' exponents. With E the largest
    exponent of the block, every term is truncated towards zero to a multiple of 2^(E - fraction). The sum is exact. It
    is truncated to float32, or rounded to the nearest float16. A zero is always +0.

    Attributes:
        products: Products of a block.
        fraction: Bits kept below the largest exponent.
        zero: Exponent of a zero term.
        kept: Fraction bits of a float32 result; None for float16 results.
    """

    products: int
    fraction: int
    zero: int
    kept: int | None = 23

    @property
    def nan(self) -> int:
        """All bits but the sign."""
        return 0x7FFF if self.kept is None else 0x7FFFFFFF

    def step(self, a: Operand, b: Operand, c: torch.Tensor) -> torch.Tensor:
        """See `Arithmetic`."""
        terms = a.values * b.values
        exponents = torch.where(terms == 0, self.zero, a.exponents() + b.exponents())
        of_addend = torch.where(c == 0, self.zero, wide.exponent(c, -14 if self.kept is None else -126))
        last = torch.maximum(exponents.amax(-1), of_addend) - self.fraction
        total = wide.truncated(terms, last[..., None]).sum(-1) + wide.truncated(c, last)
        result = wide.to_float16(total) if self.kept is None else wide.to_float32_towards_zero(total, self.kept)
        plain = terms.sum(-1) + c  # finite terms cannot overflow float64
        return torch.where(torch.isfinite(plain), result + 0.0, plain)


@dataclass(frozen=True, slots=True)
class TwoHalves:
    """8-bit formats by `mma.sync` where only `wgmma` and `tcgen05` have them: two fp16 instructions take the place.

    Of every four operands, the first instruction takes the first two and the second the others. The first begins at
    zero, and the addend is added last, rounded to nearest.

    Attributes:
        half: What one of the two does; its accumulator is that of both.
    """

    half: TruncatedSum
    products: ClassVar[int] = 32

    @property
    def nan(self) -> int:
        """As of one."""
        return self.half.nan

    def step(self, a: Operand, b: Operand, c: torch.Tensor) -> torch.Tensor:
        """See `Arithmetic`."""
        total = torch.zeros_like(c)
        for first in (0, 2):
            total = self.half.step(_pairs(a, first), _pairs(b, first), total)
        rounded = wide.to_float16 if self.half.kept is None else wide.to_float32
        return torch.where(torch.isfinite(total + c), rounded(total + c), total + c)


def _pairs(x: Operand, first: int) -> Operand:
    """Returns two of every four values, as fp16."""
    fours = x.values.unfold(-1, 4, 4)
    return Operand(fours[..., first : first + 2].flatten(-2), FP16.least)
