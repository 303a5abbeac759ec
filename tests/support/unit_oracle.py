"""What matrix units compute, in rational arithmetic, one sum at a time: for operands that are finite.

Written from the same rules as `weighbridge.numerics.units` but with none of its means: no float64, no bit patterns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

TINY = Fraction(1, 2**126)

Fractions = Sequence[Fraction]


def magnitude(x: Fraction, least: int) -> int:
    """floor(log2|x|), at least `least`."""
    if x == 0:
        return least
    found = x.numerator.bit_length() if x > 0 else (-x.numerator).bit_length()
    found -= x.denominator.bit_length()
    while Fraction(2) ** found > abs(x):
        found -= 1
    while Fraction(2) ** (found + 1) <= abs(x):
        found += 1
    return max(found, least)


def multiple(x: Fraction, last: int, how: str) -> Fraction:
    """Rounds to a multiple of 2^last."""
    quantum = Fraction(2) ** last
    q = x / quantum
    n = {"zero": math.trunc, "down": math.floor, "nearest": round, "odd": math.trunc}[how](q)
    if how == "odd" and n != q and n % 2 == 0:
        n += 1 if q > 0 else -1
    return n * quantum


def float32(x: Fraction, how: str = "nearest", flush: bool = False, fraction: int = 23) -> Fraction:
    """Rounds to float32, or to fewer fraction bits; what flushes is decided after rounding with any exponent.

    Raises:
        OverflowError: The result is infinite.
    """
    if flush and abs(multiple(x, magnitude(x, -10000) - fraction, how)) < TINY:
        return Fraction(0)
    return bounded(multiple(x, magnitude(x, -126) - fraction, how), 2**128)


def float16(x: Fraction) -> Fraction:
    """Rounds to the nearest float16; raises as `float32` does."""
    return bounded(multiple(x, magnitude(x, -14) - 10, "nearest"), 2**16)


def bounded(x: Fraction, greatest: int) -> Fraction:
    if abs(x) >= greatest:
        raise OverflowError
    return x


def flushed(x: Fraction, least: int = -126) -> Fraction:
    return Fraction(0) if abs(x) < Fraction(2) ** least else x


def truncated_sum(
    a: Fractions, b: Fractions, c: Fraction, least: Sequence[int], *, fraction: int, zero: int, kept: int | None = 23
) -> Fraction:
    """NVIDIA's tensor cores; `kept` is None for float16 results."""
    terms = [(x * y, magnitude(x, least[0]) + magnitude(y, least[1])) for x, y in zip(a, b, strict=True)]
    terms.append((c, magnitude(c, -14 if kept is None else -126)))
    top = max(e if term else zero for term, e in terms)
    total = sum((multiple(term, top - fraction, "zero") for term, _ in terms), Fraction(0))
    if kept is None:
        return float16(total)
    return float32(total, "zero", fraction=kept)


def two_halves(
    a: Fractions, b: Fractions, c: Fraction, least: Sequence[int], *, zero: int, kept: int | None = 23
) -> Fraction:
    """8-bit formats by `mma.sync`: two fp16 instructions take two of every four products each, then the addend."""
    total = Fraction(0)
    for first in (0, 2):
        taken = [k for k in range(len(a)) if k % 4 in (first, first + 1)]
        x, y = [a[k] for k in taken], [b[k] for k in taken]
        total = truncated_sum(x, y, total, (-14, -14), fraction=25, zero=zero, kept=kept)
    return float16(total + c) if kept is None else float32(total + c)


def exact_sum(a: Fractions, b: Fractions, c: Fraction, least: Sequence[int]) -> Fraction:
    """MI100."""
    return float32(c + sum(x * y for x, y in zip(a, b, strict=True)))


def flushed_sum(a: Fractions, b: Fractions, c: Fraction, least: Sequence[int]) -> Fraction:
    """MI200."""

    def rounded(x: Fraction) -> Fraction:
        return flushed(float32(x))

    terms = [rounded(flushed(x, least[0]) * flushed(y, least[1])) for x, y in zip(a, b, strict=True)]
    while len(terms) > 1:
        terms = [rounded(terms[i] + terms[i + 1]) for i in range(0, len(terms), 2)]
    return rounded(flushed(c) + terms[0])


def floored_sum(a: Fractions, b: Fractions, c: Fraction, least: Sequence[int], *, halves: bool = False) -> Fraction:
    """MI300."""
    terms = [
        (bounded(x * y, 2**128), magnitude(x, least[0]) + magnitude(y, least[1])) for x, y in zip(a, b, strict=True)
    ]
    groups = [[(term, e) for term, e in group if term] for group in ([terms[0::2], terms[1::2]] if halves else [terms])]
    of_addend = magnitude(c, -126)
    top = max((e for group in groups for _, e in group), default=-10000)
    total = Fraction(0)
    for group in groups:
        if group:
            own = max(e for _, e in group)
            part = sum((multiple(term, own - 24, "zero") for term, _ in group), Fraction(0))
            total += multiple(part, top - 24, "down") if halves else part
    both = max(top, of_addend)
    total = multiple(total, both - 32, "down")
    if not (halves and of_addend < both - 25):
        total += multiple(c, both - 24, "down")
    return float32(multiple(total, magnitude(total, -126) - 31, "down"))


def fused(a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    return float32(a * b + c, flush=True)


def fused_pair(a: Fractions, b: Fractions, c: Fraction, least: Sequence[int]) -> Fraction:
    """VDPBF16PS."""
    x, y = [flushed(each) for each in a], [flushed(each) for each in b]
    return fused(x[0], y[0], fused(x[1], y[1], flushed(c)))


def fused_tile(a: Fractions, b: Fractions, c: Fraction, least: Sequence[int]) -> Fraction:
    """TDPBF16PS and TDPFP16PS."""
    chains = []
    for start in (0, 1):
        total = Fraction(0)
        for x, y in zip(a[start::2], b[start::2], strict=True):
            total = fused(flushed(x), flushed(y), total)
        chains.append(total)
    return float32(flushed(c) + float32(sum(chains, Fraction(0)), flush=True), flush=True)


def odd_pair(a: Fractions, b: Fractions, c: Fraction, least: Sequence[int]) -> Fraction:
    """BFDOT without FPCR.EBF."""

    def rounded(x: Fraction) -> Fraction:
        return flushed(float32(x, "odd"))

    p, q = (rounded(flushed(x) * flushed(y)) for x, y in zip(a, b, strict=True))
    return rounded(flushed(c) + rounded(p + q))


def nearest_pair(a: Fractions, b: Fractions, c: Fraction, least: Sequence[int]) -> Fraction:
    """BFDOT with FPCR.EBF."""
    return float32(float32(a[0] * b[0] + a[1] * b[1]) + c)
