"""Operands at which matrix units differ: exponents near and far apart, zeros, subnormal and special values."""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor

KINDS = ("near", "far", "patterns", "cancelling", "small")
"""Alike in size; of all sizes; any bit pattern; sums that cancel; at and below the least normal value."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def patterns(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Any bit patterns of a type: infinities and NaN too."""
    size = torch.empty((), dtype=dtype).element_size()
    bits = torch.randint(0, 1 << 8 * size, shape, generator=generator)
    return bits.to(_INTEGERS[size]).view(dtype)


def operands(
    a: torch.dtype, b: torch.dtype, c: torch.dtype, *, rows: int, length: int, kind: str, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Operands of many sums.

    Args:
        a: Type of the first operand.
        b: Type of the second.
        c: Type of the addend.
        rows: How many sums.
        length: How many products each has.
        kind: One of `KINDS`.
        seed: Of what is drawn.

    Returns:
        Tensors of shapes (rows, length), (rows, length) and (rows,).
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, length)

    def drawn(shape: tuple[int, ...], spread: int, middle: int = 0) -> Tensor:
        scale = torch.randint(-spread, spread + 1, shape, generator=generator).double() + middle
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * torch.exp2(scale)
        return torch.where(torch.rand(shape, generator=generator) < 0.1, 0.0, values).float()

    if kind == "patterns":
        return patterns(shape, a, generator), patterns(shape, b, generator), patterns((rows,), c, generator)
    if kind == "small":
        least = round(math.log2(torch.finfo(b).smallest_normal))
        return drawn(shape, 3).to(a), drawn(shape, 3, least).to(b), drawn((rows,), 6, least).to(c)
    wide = {a, b} <= {torch.bfloat16, torch.float32}
    spread = {"near": 2, "cancelling": 1, "far": 40 if wide else 4}[kind]
    x, y, z = drawn(shape, spread), drawn(shape, spread), drawn((rows,), 2 * spread)
    if kind == "cancelling":
        half = length // 2
        signs = torch.where(torch.rand((rows, half), generator=generator) < 0.8, -1.0, 1.0)
        x[:, half:], y[:, half:] = signs * x[:, :half].flip(-1), y[:, :half].flip(-1)
    return x.to(a), y.to(b), z.to(c)
