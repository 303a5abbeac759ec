"""What holds of units whatever their operands: single products, order within a block, signs, small integers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.unit_operands import KINDS, operands

from weighbridge.numerics import units

ALL = [(name, operation) for name in units.names() for operation in units.named(name).operations]
IDS = [f"{name}-{operation.formats[0].name}-{operation.accumulator}".replace("torch.", "") for name, operation in ALL]
ALIGNED = ["v100", "a100", "ada", "h100", "b200", "mi100", "mi300"]
"""Units whose blocks are one sum, whatever the order in it."""

Case = tuple[str, units.Operation]


def of(case: Case, kind: str, rows: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Operands of single blocks, without special values."""
    name, operation = case
    dtype, products = operation.formats[0].dtype, operation.arithmetic.products
    a, b, c = operands(dtype, dtype, operation.accumulator, rows=rows, length=products, kind=kind, seed=len(name))
    return a, b, c


@pytest.mark.parametrize("case", ALL, ids=IDS)
@given(x=st.integers(-7, 7), y=st.integers(-7, 7), place=st.integers(0, 31))
@settings(max_examples=8, deadline=None)
def test_a_single_product_that_fits_is_exact(case: Case, x: int, y: int, place: int) -> None:
    name, operation = case
    dtype, products = operation.formats[0].dtype, operation.arithmetic.products
    a = torch.zeros(1, products).to(dtype)
    b = torch.zeros(1, products).to(dtype)
    a[0, place % products], b[0, place % products] = float(x), float(y)
    c = torch.zeros(1, dtype=operation.accumulator)
    assert units.named(name).dot(a, b, c).item() == x * y


@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_a_single_product_of_many_bits_is_rounded_once(case: Case) -> None:
    name, operation = case
    arithmetic, dtype = operation.arithmetic, operation.formats[0].dtype
    generator = torch.Generator().manual_seed(1)
    a = torch.zeros(500, arithmetic.products).to(dtype)
    b = torch.zeros(500, arithmetic.products).to(dtype)
    a[:, 0], b[:, 0] = (torch.rand(500, generator=generator).add(0.5).to(dtype) for _ in "ab")
    found = units.named(name).dot(a, b, torch.zeros(500, dtype=operation.accumulator))
    exact = operation.operand(a).values[:, 0] * operation.operand(b).values[:, 0]
    kept = getattr(getattr(arithmetic, "half", arithmetic), "kept", 23)
    if kept is None:
        last = [math.frexp(p)[1] - 11 for p in exact.tolist()]
        wanted = [round(Fraction(p) / Fraction(2) ** e) * 2.0**e for p, e in zip(exact.tolist(), last, strict=True)]
        few = getattr(arithmetic, "fraction", 25) == 13  # then the product itself was truncated to 13 bits
        assert sum(d != w for d, w in zip(found.tolist(), wanted, strict=True)) <= (50 if few else 0)
    elif kept == 13:
        assert torch.all((found.double() <= exact) & (exact - found.double() < exact * 2.0**-12))
    else:
        assert torch.equal(found.double(), exact)  # at most 22 bits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALIGNED)
def test_order_within_an_aligned_block_is_of_no_consequence(name: str, kind: str) -> None:
    for operation in units.named(name).operations:
        a, b, c = of((name, operation), kind)
        order = torch.randperm(a.shape[1], generator=torch.Generator().manual_seed(3))
        if getattr(operation.arithmetic, "halves", False):
            half = order[order < len(order) // 2]
            order = torch.stack([2 * half, 2 * half.flip(0) + 1], 1).flatten()
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
        moved = [each.view(integer)[:, order].view(each.dtype) for each in (a, b)]
        unit = units.named(name)
        assert torch.equal(unit.dot(*moved, c).nan_to_num(7), unit.dot(a, b, c).nan_to_num(7))


def test_order_within_a_block_of_fused_additions_matters() -> None:
    a = torch.tensor([[2.0**13, 1]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0**13, 1]], dtype=torch.bfloat16)
    unit, c = units.named("vdpbf16ps"), torch.tensor([-(2.0**26)])
    assert unit.dot(a, b, c).item() == 0  # the odd product is lost in the addend
    assert unit.dot(a.flip(1), b.flip(1), c).item() == 1


@pytest.mark.parametrize("case", [each for each in ALL if each[0] != "mi300"], ids=[i for i in IDS if "mi300" not in i])
def test_negated_operands_give_the_negated_result(case: Case) -> None:
    unit = units.named(case[0])
    for kind in ("near", "far", "cancelling", "small"):
        a, b, c = of(case, kind)
        assert torch.equal(unit.dot((-a.float()).to(a.dtype), b, -c), -unit.dot(a, b, c)), kind


def test_mi300_floors_and_so_is_not_symmetric() -> None:
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    c = torch.tensor([2.0**-25])
    unit = units.named("mi300")
    assert unit.dot(one, one, -c).item() == 1 - 2.0**-24
    assert unit.dot(-one, one, c).item() == -1


@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_sums_of_small_integers_are_exact(case: Case) -> None:
    name, operation = case
    dtype = operation.formats[0].dtype
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-4, 5, shape, generator=generator) for shape in ((5, 70), (70, 6)))
    c = torch.randint(-9, 10, (5, 6), generator=generator)
    found = units.named(name).product(a.float().to(dtype), b.float().to(dtype), c.to(operation.accumulator))
    assert torch.equal(found.long(), a @ b + c)
