"""What models of matrix units do in float64: fixed-point alignment, exact sums, and rounding in several directions.

Nothing here rounds unless its docstring says so. A scaling by a power of two is exact, since what units handle lies
between 2^-280 and 2^260. Sums of few aligned terms are exact too: a term has less than 36 bits, and there are at most
33.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor

TINY = 2.0**-126
"""The least normal float32."""
ALMOST_TINY = 2.0**-126 - 2.0**-151
"""The least number that 24 bits, with any exponent, round to `TINY`; it is the tie."""


def exponent(x: Tensor, least: int) -> Tensor:
    """Returns floor(log2|x|) as int64, at least `least`; without meaning for infinities and NaN."""
    return ((x.view(torch.int64) >> 52 & 0x7FF) - 1023).clamp(min=least)


def power(e: Tensor) -> Tensor:
    """Returns 2^e for int64 exponents from -1022 to 1023."""
    return ((e + 1023) << 52).view(torch.float64)


def truncated(x: Tensor, last: Tensor) -> Tensor:
    """Rounds towards zero to a multiple of 2^last."""
    return torch.trunc(x * power(-last)) * power(last)


def floored(x: Tensor, last: Tensor) -> Tensor:
    """Rounds down to a multiple of 2^last."""
    return torch.floor(x * power(-last)) * power(last)


def flushed(x: Tensor, least: float, signed: bool) -> Tensor:
    """Puts a zero, of the value's sign or +0, in place of what is below `least`."""
    return torch.where(x.abs() < least, x * 0.0 if signed else torch.zeros_like(x), x)


def to_float32(x: Tensor) -> Tensor:
    """Rounds to the nearest float32, ties to even."""
    return x.to(torch.float32).to(torch.float64)


def to_float32_towards_zero(x: Tensor, fraction: int = 23) -> Tensor:
    """Rounds towards zero to so many fraction bits, with the exponents of float32; infinite from 2^128 on."""
    return to_float32(truncated(x, exponent(x, -126) - fraction))


def to_float16(x: Tensor) -> Tensor:
    """Rounds to the nearest float16, ties to even; a conversion by PyTorch would round twice."""
    last = exponent(x, -14) - 10
    y = torch.round(x * power(-last)) * power(last)
    return torch.where(y.abs() >= 65536.0, torch.copysign(torch.full_like(y, torch.inf), x), y)


def to_float32_flushed(x: Tensor) -> Tensor:
    """Rounds to the nearest float32, ties to even, and to a zero where 24 bits with any exponent are below normal."""
    return torch.where(x.abs() < ALMOST_TINY, x * 0.0, to_float32(x))


def to_float32_odd(x: Tensor) -> Tensor:
    """Rounds to float32, to odd: what is not one is truncated, and its last bit set; infinite from 2^128 on."""
    last = exponent(x, -126) - 23
    scaled = x * power(-last)
    y = torch.trunc(scaled)
    even = torch.remainder(y, 2.0) == 0
    y = torch.where((y != scaled) & even, y + torch.sign(scaled), y)
    return to_float32(torch.where(torch.isfinite(x), y * power(last), x))


def two_sum(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x + y rounded to float64, and what rounding took from it (Knuth's TwoSum)."""
    total = x + y
    second = total - x
    return total, (x - (total - second)) + (y - second)


def odd_sum(terms: Sequence[Tensor]) -> Tensor:
    """Adds terms and rounds once, to the float64 with an odd last bit if the sum is not one.

    Rounding that to 24 bits is one rounding of the exact sum, in any direction (Boldo and Melquiond, "Emulation of FMA
    and correctly rounded sums", 2008). The sum is kept as parts that do not overlap (Shewchuk's Grow-Expansion, 1997).
    """
    parts: list[Tensor] = []
    for term in terms:
        for index, part in enumerate(parts):
            term, parts[index] = two_sum(term, part)
        parts.append(term)
    total = parts.pop()
    rest = torch.zeros_like(total)
    while parts:  # the first thing that no longer fits is larger than all below it, and so has the sign of the rest
        part = parts.pop()
        more, error = two_sum(total, part)
        settled = (rest != 0) | (part == 0)  # a part that is zero is +0, and would take the sign from a sum that is -0
        total, rest = torch.where(settled, total, more), torch.where(settled, rest, error)
    bits = total.view(torch.int64)
    towards = torch.where((rest > 0) == (total > 0), 1, -1)
    move = torch.isfinite(total) & (rest != 0) & (bits & 1 == 0)
    return torch.where(move, bits + towards, bits).view(torch.float64)
