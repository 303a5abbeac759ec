"""Products of the policy `unit-vdpbf16ps` against docs/matrix-units.md, "What is computed", in rational arithmetic.

What follows is written from that text and shares nothing with the code.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.operations.rounded import wide_results

aten = torch.ops.aten
Tensor = torch.Tensor
POLICY = "unit-vdpbf16ps"
LEAST = Fraction(1, 1 << 126)
FORMATS = {torch.bfloat16: (8, -133), torch.float16: (11, -24), torch.float32: (24, -149)}
"""Digits, and exponent of the least number other than zero."""


def nearest(x: Fraction, digits: int, last: int | None = None) -> Fraction:
    """Rounds to nearest, ties to even, to so many digits; with an exponent of the last digit, at least that."""
    if x == 0:
        return x
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - digits + 1, exponent - digits + 1 if last is None else last)
    return round(x / unit) * unit


def single(x: Fraction) -> Fraction:
    return nearest(x, 24, -149)


def added(total: Fraction, a: Fraction, b: Fraction) -> Fraction:
    """One fused multiply-add; what 24 bits with any exponent would have below 2^-126 becomes zero."""
    found = nearest(total + a * b, 24)
    return found if abs(found) >= LEAST else Fraction(0)


def summed(a: list[Fraction], b: list[Fraction]) -> Fraction:
    a, b = ([x if abs(x) >= LEAST else Fraction(0) for x in each] for each in (a, b))
    total = Fraction(0)
    for start in range(0, len(a), 1024):
        x, y = a[start : start + 1024], b[start : start + 1024]
        x, y = x + [Fraction(0)] * (len(x) % 2), y + [Fraction(0)] * (len(y) % 2)
        chain = Fraction(0)
        for k in range(0, len(x), 2):
            chain = added(added(chain, x[k + 1], y[k + 1]), x[k], y[k])
        total = single(total + chain)
    return total


def by_the_text(a: Tensor, b: Tensor, bias: Tensor | None, alpha: float, beta: float) -> Tensor:
    """(M, K), (K, N) and (M, N) or None, 16 bits each, finite; results that do not overflow."""
    left, right = ([[Fraction(x) for x in row] for row in each.double().tolist()] for each in (a, b.mT))
    values = [[summed(x, y) for y in right] for x in left]
    if bias is not None:
        by, times = single(Fraction(alpha)), single(Fraction(beta))
        of = bias.double().tolist()
        values = [
            [single(single(by * x) + single(times * Fraction(y))) for x, y in zip(*each, strict=True)]
            for each in zip(values, of, strict=True)
        ]
    narrow = [[float(nearest(x, *FORMATS[a.dtype])) for x in row] for row in values]
    return torch.tensor(narrow, dtype=torch.float64).to(a.dtype).view(a.shape[0], b.shape[1])


def computed(op: Any, *args: Any, **kwargs: Any) -> Tensor:
    """What a recording computes, which has logged nothing."""
    context = Recording(1, Generators(), bound_policy.named(POLICY))
    context.begin(0)
    result: Tensor = evaluate(op, args, kwargs, context)
    assert context.log.entries == 0
    return result


def drawn(shape: tuple[int, int], scale: int, spread: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = torch.randint(scale - spread, scale + spread + 1, shape, generator=generator)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2.0**size).to(dtype)


@given(
    st.sampled_from([torch.bfloat16, torch.float16]),
    st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(1, 4)),
    st.integers(-70, 3),
    st.sampled_from([(1, 1), (0.1, 1), (1, 0), (-1.7, 3), (0, 1), (0, 0.3), (2, -1e-30), (1e-44, 1)]),
    st.integers(0, 1 << 30),
)
def test_every_bit_follows_from_the_text(
    dtype: torch.dtype, shape: tuple[int, int, int], scale: int, scalars: tuple[float, float], seed: int
) -> None:
    """Law: what is computed is what the text says, for all six operations."""
    (rows, terms, columns), (alpha, beta) = shape, scalars
    scale = max(scale, -12) if dtype == torch.float16 else scale
    a, b = (drawn(s, scale, 3, seed + n, dtype) for n, s in enumerate(((rows, terms), (terms, columns))))
    bias = drawn((rows, columns), 2 * scale, 6, seed + 2, dtype)
    plain, full = by_the_text(a, b, None, 1, 1), by_the_text(a, b, bias, alpha, beta)
    options = {"alpha": alpha, "beta": beta}
    found = {
        "mm": (computed(aten.mm.default, a, b), plain),
        "bmm": (computed(aten.bmm.default, a[None], b[None])[0], plain),
        "mv": (computed(aten.mv.default, a, b[:, 0]), plain[:, 0]),
        "addmm": (computed(aten.addmm.default, bias, a, b, **options), full),
        "addmm_": (computed(aten.addmm_.default, bias.clone(), a, b, **options), full),
        "baddbmm": (computed(aten.baddbmm.default, bias[None], a[None], b[None], **options)[0], full),
        "addmv": (computed(aten.addmv.default, bias[:, 0], a, b[:, 0], **options), full[:, 0]),
    }
    for name, (got, wanted) in found.items():
        assert torch.equal(got.view(torch.int16), (wanted + 0.0).view(torch.int16)), name


@pytest.mark.parametrize("terms", [1023, 1024, 1025, 2050])
def test_long_sums_have_the_chains_of_the_text(terms: int) -> None:
    for scale in (0, -64):
        a, b = (drawn(s, scale, 2, terms, torch.bfloat16) for s in ((2, terms), (terms, 1)))
        wanted = by_the_text(a, b, None, 1, 1)
        assert torch.equal(computed(aten.mm.default, a, b), wanted)
        assert torch.equal(computed(aten.mm.default, b.mT, a.mT), wanted.mT)


@pytest.mark.parametrize("size", [2, 3, 70])
@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_product_times_nothing_is_not_looked_at(size: int, wrong: float) -> None:
    """Libraries disagree, by size: some kernels add 0 times what is infinite, which is NaN."""
    strange, ones = torch.full((1, size, size), wrong).bfloat16(), torch.ones(1, size, size).bfloat16()
    for first, second in ((strange, ones), (ones, strange)):
        found = (
            computed(aten.baddbmm.default, ones, first, second, alpha=0, beta=3),
            computed(aten.baddbmm_.default, ones.clone(), first, second, alpha=0, beta=3),
            computed(aten.addmm.default, ones[0], first[0], second[0], alpha=0, beta=3),
            computed(aten.addmv.default, ones[0, 0], first[0], second[0, 0], alpha=0, beta=3),
        )
        assert all(bool((each == 3).all()) for each in found)


@pytest.mark.parametrize("other", [torch.float32, torch.float16])
def test_matrices_of_two_types_are_refused(other: torch.dtype) -> None:
    """PyTorch multiplies none, but a tape may say so; products of float32 are not exact enough to follow the text."""
    for types in ((torch.bfloat16, other), (torch.float16, torch.bfloat16)):
        a, b = (torch.ones(2, 2, dtype=each) for each in types)
        with pytest.raises(RefusedOperationError, match="use one type"):
            computed(aten.mm.default, a, b)
        with pytest.raises(RefusedOperationError, match="use one type"):
            wide_results(aten.mm.default, (a, b), {}, torch.float32, bound_policy.named(POLICY))


def test_what_is_infinite_or_not_a_number_is_prescribed_too() -> None:
    a = torch.tensor([[math.inf, 1.0], [math.inf, -math.inf], [math.nan, 1.0], [3e38, 3e38]]).bfloat16()
    found = computed(aten.mm.default, a, torch.ones(2, 1).bfloat16())
    assert found.view(torch.int16)[:, 0].tolist() == [0x7F80, 0x7FC0, 0x7FC0, 0x7F80]
