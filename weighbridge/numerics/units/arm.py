"""Arm's BFDOT and BFMMLA, with and without FEAT_EBF16.

Source: Arm, "Arm Architecture Reference Manual for A-profile architecture" (DDI 0487), the functions BFDotAdd and FPDot
of its pseudo-code. A BFMMLA is two BFDOT in turn, of products 0 and 1, then 2 and 3. Every NaN is the default one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from weighbridge.numerics.units import wide
from weighbridge.numerics.units.formats import Operand

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class OddPair:
    """BFDOT with FPCR.EBF = 0: products, their sum, and the sum with the addend are rounded to odd, and flushed."""

    products: ClassVar[int] = 2
    nan: ClassVar[int] = 0x7FC00000

    def step(self, a: Operand, b: Operand, c: Tensor) -> Tensor:
        """See `Arithmetic`."""
        terms = _flushed(wide.to_float32_odd(a.flushed(signed=True) * b.flushed(signed=True)))
        return _odd_sum(_flushed(c), _odd_sum(terms[..., 0], terms[..., 1]))


def _odd_sum(x: Tensor, y: Tensor) -> Tensor:
    plain = x + y
    total = _flushed(wide.to_float32_odd(wide.odd_sum([x, y])))
    return torch.where(torch.isfinite(plain), total, plain)


def _flushed(x: Tensor) -> Tensor:
    return wide.flushed(x, wide.TINY, signed=True)


@dataclass(frozen=True, slots=True)
class NearestPair:
    """BFDOT with FPCR.EBF = 1: the sum of two exact products is rounded once, then the sum with the addend.

    The other fields of FPCR are zero: rounding to nearest, subnormal values kept.
    """

    products: ClassVar[int] = 2
    nan: ClassVar[int] = 0x7FC00000

    def step(self, a: Operand, b: Operand, c: Tensor) -> Tensor:
        """See `Arithmetic`."""
        terms = a.values * b.values
        plain = terms.sum(-1)
        pair = wide.to_float32(wide.odd_sum([*terms.unbind(-1)]))
        return wide.to_float32(torch.where(torch.isfinite(plain), pair, plain) + c)
