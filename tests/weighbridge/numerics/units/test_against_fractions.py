"""Every operation returns what rational arithmetic says, for operands of all sizes that are finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from support import unit_oracle as oracle
from support.unit_operands import KINDS, operands

from weighbridge.numerics import units

ROWS = 25

Exact = Callable[..., Fraction]
Case = tuple[str, torch.dtype, torch.dtype, torch.dtype, int, Exact]
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def nvidia(fraction: int, zero: int, kept: int | None = 23) -> Exact:
    return partial(oracle.truncated_sum, fraction=fraction, zero=zero, kept=kept)


BF16, FP16, TF32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FNUZ3, FNUZ2 = torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
LEAST = {BF16: -126, FP16: -14, TF32: -126, E4M3: -6, E5M2: -14, FNUZ3: -7, FNUZ2: -15}
OPERATIONS: list[Case] = [
    ("v100", FP16, FP16, torch.float32, 4, nvidia(23, -131)),
    ("v100", FP16, FP16, torch.float16, 4, nvidia(23, -19, None)),
    *[("a100", each, each, torch.float32, 8, nvidia(24, -132)) for each in (BF16, FP16)],
    ("a100", FP16, FP16, torch.float16, 8, nvidia(24, -20, None)),
    ("a100", TF32, TF32, torch.float32, 4, nvidia(24, -132)),
    ("ada", E4M3, E5M2, torch.float32, 16, nvidia(13, -132, 13)),
    ("ada", E4M3, E4M3, torch.float16, 16, nvidia(13, -20, None)),
    *[("h100", each, each, torch.float32, 16, nvidia(25, -133)) for each in (BF16, FP16)],
    ("h100", FP16, FP16, torch.float16, 16, nvidia(25, -21, None)),
    ("h100", TF32, TF32, torch.float32, 8, nvidia(25, -133)),
    ("h100", E5M2, E4M3, torch.float32, 32, nvidia(13, -133, 13)),
    ("h100", E4M3, E4M3, torch.float16, 32, nvidia(13, -21, None)),
    ("b200", BF16, BF16, torch.float32, 16, nvidia(25, -133)),
    ("b200", E4M3, E4M3, torch.float32, 32, nvidia(25, -133)),
    ("b200", E5M2, E5M2, torch.float16, 32, nvidia(25, -21, None)),
    ("mma-fp8", E4M3, E5M2, torch.float32, 32, partial(oracle.two_halves, zero=-133)),
    ("mma-fp8", E4M3, E4M3, torch.float16, 32, partial(oracle.two_halves, zero=-21, kept=None)),
    ("mi100", BF16, BF16, torch.float32, 2, oracle.exact_sum),
    ("mi100", FP16, FP16, torch.float32, 4, oracle.exact_sum),
    *[("mi200", each, each, torch.float32, 4, oracle.flushed_sum) for each in (BF16, FP16)],
    ("mi200-pairs", BF16, BF16, torch.float32, 2, oracle.flushed_sum),
    *[("mi300", each, each, torch.float32, 8, oracle.floored_sum) for each in (BF16, FP16)],
    ("mi300", TF32, TF32, torch.float32, 4, oracle.floored_sum),
    *[("mi300", a, b, torch.float32, 16, partial(oracle.floored_sum, halves=True))
      for a in (FNUZ3, FNUZ2) for b in (FNUZ3, FNUZ2)],
    ("vdpbf16ps", BF16, BF16, torch.float32, 2, oracle.fused_pair),
    *[("amx", each, each, torch.float32, 32, oracle.fused_tile) for each in (BF16, FP16)],
    ("bfdot", BF16, BF16, torch.float32, 2, oracle.odd_pair),
    ("bfdot-ebf", BF16, BF16, torch.float32, 2, oracle.nearest_pair),
]  # fmt: skip
"""Unit, types of operands and accumulator, products of a block, and the oracle."""
IDS = [f"{unit}-{a}-{b}-{c}".replace("torch.", "") for unit, a, b, c, _, _ in OPERATIONS]


def exactly(x: torch.Tensor) -> list[Fraction]:
    """The values of a unit's operand: of float32, the low 13 bits do not count."""
    if x.dtype == torch.float32:
        x = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return [Fraction(each) for each in x.double().tolist()]


def compare(case: Case, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> int:
    """Compares sums of one block whose operands are all finite; returns how many there were."""
    least = [LEAST[a.dtype], LEAST[b.dtype]]
    rows = torch.stack([torch.isfinite(each.double()).reshape(len(c), -1).all(1) for each in (a, b, c)]).all(0)
    # PyTorch 2.6 cannot choose rows of 8-bit formats, but of their bits.
    a, b, c = (each.view(INTEGERS[each.element_size()])[rows].view(each.dtype) for each in (a, b, c))
    found = units.named(case[0]).dot(a, b, c).double().tolist()
    for x, y, z, d in zip(a, b, c.tolist(), found, strict=True):
        try:
            wanted = case[-1](exactly(x), exactly(y), Fraction(z), least)
        except OverflowError:
            assert not math.isfinite(d), (x, y, z)
        else:
            assert d == wanted, (x, y, z)
    return len(found)


@pytest.mark.parametrize("case", OPERATIONS, ids=IDS)
def test_blocks_of_every_kind(case: Case) -> None:
    _, a, b, c, products, _ = case
    counts = {
        kind: compare(case, *operands(a, b, c, rows=ROWS, length=products, kind=kind, seed=seed))
        for seed, kind in enumerate(KINDS)
    }
    assert counts.pop("patterns") > 0
    assert set(counts.values()) == {ROWS}


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_blocks_of_any_bits(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(OPERATIONS))
    _, *types, products, _ = case
    sizes = (products, products, 1)
    given = [tensor(data.draw(blocks(dtype, size)), dtype) for dtype, size in zip(types, sizes, strict=True)]
    compare(case, given[0][None], given[1][None], given[2])


def blocks(dtype: torch.dtype, size: int) -> st.SearchStrategy[list[int]]:
    """Bit patterns, with weight on those near each other and on what is small, large or special."""
    bits = 8 * dtype.itemsize
    middle = int(torch.ones((), dtype=dtype).view(INTEGERS[dtype.itemsize]))
    near = st.integers(middle - (middle >> 3), middle + (middle >> 3))
    either = st.one_of(
        near, st.sampled_from([0, 1, 1 << bits - 1, (1 << bits - 1) + 1]), st.integers(0, (1 << bits) - 1)
    )
    signed = st.builds(lambda pattern, sign: pattern ^ sign << bits - 1, either, st.integers(0, 1))
    return st.lists(signed, min_size=size, max_size=size)


def tensor(patterns: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(patterns).to(INTEGERS[dtype.itemsize]).view(dtype)
