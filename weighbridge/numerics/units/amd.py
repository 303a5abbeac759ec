"""AMD's Matrix Cores, each generation with an arithmetic of its own.

Source: Xie et al., "MMA-Sim" (arXiv 2511.10909), whose authors compared it with MI100, MI200 and MI300. AMD documents
the flushing of MI200 ("MI200 MFMA behavior", documentation of MIOpen and PyTorch). Which bits a NaN has is not
documented; here every NaN is the quiet one without payload. Which sign a zero has is not documented either; here MI100
and MI300 return +0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from weighbridge.numerics.units import wide
from weighbridge.numerics.units.formats import Operand

Tensor = torch.Tensor

_QUIET = 0x7FC00000
_NOTHING = -600
"""Exponent of no products; lower than any, and 2 to this power still is a float64."""


@dataclass(frozen=True, slots=True)
class ExactSum:
    """MI100 (CDNA1): products and the addend are added exactly, and rounded once to the nearest float32.

    Attributes:
        products: Products of a block.
    """

    products: int
    nan: ClassVar[int] = _QUIET

    def step(self, a: Operand, b: Operand, c: Tensor) -> Tensor:
        """See `Arithmetic`."""
        terms = a.values * b.values
        plain = terms.sum(-1) + c
        total = wide.to_float32(wide.odd_sum([*terms.unbind(-1), c])) + 0.0
        return torch.where(torch.isfinite(plain), total, plain)


@dataclass(frozen=True, slots=True)
class FlushedSum:
    """MI200 (CDNA2): float32 multiplications and additions to nearest, in pairs, and nothing subnormal.

    Operands and addend below the normal range become +0. Each product, each pair, the pair of pairs and the sum with
    the addend is rounded, and becomes a zero of its sign if it is below 2^-126.

    Attributes:
        products: 2, or 4.
    """

    products: int
    nan: ClassVar[int] = _QUIET

    def step(self, a: Operand, b: Operand, c: Tensor) -> Tensor:
        """See `Arithmetic`."""
        terms = _rounded(a.flushed(signed=False) * b.flushed(signed=False))
        while terms.shape[-1] > 1:
            terms = _rounded(terms[..., 0::2] + terms[..., 1::2])
        return _rounded(wide.flushed(c, wide.TINY, signed=False) + terms[..., 0])


def _rounded(x: Tensor) -> Tensor:
    """Rounds to the nearest float32, then flushes.

    For sums of two float32 this is one rounding: either float64 holds them, or the first rounding leaves no tie.
    """
    return wide.flushed(wide.to_float32(x), wide.TINY, signed=True)


@dataclass(frozen=True, slots=True)
class FlooredSum:
    """MI300 (CDNA3): products are truncated below the largest of them; their sum and the addend are floored.

    Floors are not symmetric, so the result for negated operands may differ from the negated result.

    Attributes:
        products: Products of a block.
        halves: Whether even and odd products are aligned apart, as those of 8-bit formats are.
    """

    products: int
    halves: bool = False
    nan: ClassVar[int] = _QUIET

    def step(self, a: Operand, b: Operand, c: Tensor) -> Tensor:
        """See `Arithmetic`."""
        terms = a.values * b.values
        terms = torch.where(terms.abs() >= 2.0**128, terms * torch.inf, terms)
        exponents = torch.where(terms == 0, _NOTHING, a.exponents() + b.exponents())
        if self.halves:
            even, top_of_even = _aligned(terms[..., 0::2], exponents[..., 0::2])
            odd, top_of_odd = _aligned(terms[..., 1::2], exponents[..., 1::2])
            top = torch.maximum(top_of_even, top_of_odd)
            total = wide.floored(even, top - 24) + wide.floored(odd, top - 24)
        else:
            total, top = _aligned(terms, exponents)
        plain = terms.sum(-1) + c
        return torch.where(torch.isfinite(plain), self._with_addend(total, top, c), plain)

    def _with_addend(self, total: Tensor, top: Tensor, c: Tensor) -> Tensor:
        """Adds a sum, whose products have a largest exponent, and the addend; rounds to the nearest float32."""
        of_addend = wide.exponent(c, -126)
        last = torch.maximum(top, of_addend) - 24
        addend = wide.floored(c, last)
        if self.halves:
            addend = torch.where(of_addend < last - 1, 0.0, addend)  # else a small negative one would floor to -1
        both = wide.floored(total, last - 8) + addend
        return wide.to_float32(wide.floored(both, wide.exponent(both, -126) - 31)) + 0.0


def _aligned(terms: Tensor, exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Adds terms after truncation to 24 bits below the largest exponent; returns the sum and that exponent."""
    top = exponents.amax(-1)
    return wide.truncated(terms, (top - 24)[..., None]).sum(-1), top
