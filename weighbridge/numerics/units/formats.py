"""The formats of operands, and operands as float64, which holds each of their values, and products of two, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weighbridge.numerics.units import wide

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Format:
    """A format of operands.

    Attributes:
        name: What manuals call it.
        dtype: Of the tensors that hold it.
        least: Exponent of its least normal value; subnormal values have this exponent too.
        ignored: How many low bits of `dtype` a unit does not look at.
    """

    name: str
    dtype: torch.dtype
    least: int
    ignored: int = 0

    def operand(self, x: Tensor) -> Operand:
        """Returns a tensor of `dtype` as an operand.

        A NaN that only has ignored bits becomes an infinity, as the unit that ignores them sees one.
        """
        if self.ignored:
            x = (x.view(torch.int32) >> self.ignored << self.ignored).view(torch.float32)
        return Operand(x.to(torch.float64), self.least)


@dataclass(frozen=True, slots=True)
class Operand:
    """Values of a format.

    Attributes:
        values: float64, products along the last dimension.
        least: As of the format.
    """

    values: Tensor
    least: int

    def exponents(self) -> Tensor:
        """Returns the exponents (int64) that a unit reads, where subnormal values are not normalised."""
        return wide.exponent(self.values, self.least)

    def flushed(self, signed: bool) -> Tensor:
        """Returns the values, with a zero in place of every subnormal one: of its sign, or +0."""
        return wide.flushed(self.values, 2.0**self.least, signed)

    def block(self, start: int, size: int) -> Operand:
        """Returns `size` products from `start` on; past the end there are zeros, as kernels pad with them."""
        part = self.values[..., start : start + size]
        return Operand(torch.nn.functional.pad(part, (0, size - part.shape[-1])), self.least)


BF16 = Format("bf16", torch.bfloat16, -126)
FP16 = Format("fp16", torch.float16, -14)
TF32 = Format("tf32", torch.float32, -126, ignored=13)
"""19 bits of a float32; AMD calls it xf32. Libraries may round to it first: cuBLAS does."""
E4M3 = Format("e4m3", torch.float8_e4m3fn, -6)
E5M2 = Format("e5m2", torch.float8_e5m2, -14)
E4M3_FNUZ = Format("e4m3fnuz", torch.float8_e4m3fnuz, -7)
E5M2_FNUZ = Format("e5m2fnuz", torch.float8_e5m2fnuz, -15)
"""AMD's formats of 8 bits: no infinity, no -0, one NaN."""
