"""NaN, infinities, signed zeros and subnormal values, and the bits that units return for them."""

from __future__ import annotations

import math

import pytest
import torch

from weighbridge.numerics import units

INF, NAN = math.inf, math.nan
ALL = [
    (name, operation)
    for name in units.names()
    for operation in units.named(name).operations
    if operation.formats[0].dtype not in (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
]
WITH_INFINITY = [each for each in ALL if "fnuz" not in each[1].formats[-1].name]
TABLE: list[tuple[list[float], list[float], float, float]] = [
    ([INF], [1], 0, INF),
    ([-INF], [1], 5, -INF),
    ([INF], [0], 0, NAN),
    ([0], [-INF], 1, NAN),
    ([INF, INF], [1, 1], 0, INF),
    ([INF, INF], [1, -1], 0, NAN),
    ([INF], [-1], INF, NAN),
    ([INF], [1], INF, INF),
    ([1], [1], -INF, -INF),
    ([NAN], [1], 0, NAN),
    ([NAN], [0], 0, NAN),
    ([1], [NAN], INF, NAN),
    ([1], [1], NAN, NAN),
    ([INF, NAN], [1, 1], 0, NAN),
]
"""Operands, addend and result, where zeros follow the operands."""
NANS = {
    "v100": 0x7FFFFFFF, "a100": 0x7FFFFFFF, "ada": 0x7FFFFFFF, "h100": 0x7FFFFFFF, "b200": 0x7FFFFFFF,
    "mma-fp8": 0x7FFFFFFF, "mi100": 0x7FC00000, "mi200": 0x7FC00000, "mi200-pairs": 0x7FC00000, "mi300": 0x7FC00000,
    "bfdot": 0x7FC00000, "bfdot-ebf": 0x7FC00000,
}  # fmt: skip

Case = tuple[str, units.Operation]


def label(case: Case) -> str:
    return f"{case[0]}-{case[1].formats[0].name}-{case[1].accumulator}".replace("torch.", "")


def block(name: str, a: list[float], b: list[float], c: float, operation: units.Operation) -> torch.Tensor:
    """One sum, whose operands are followed by zeros until the block is full."""
    dtype, products = operation.formats[0].dtype, operation.arithmetic.products
    x, y = (torch.tensor([each + [0.0] * (products - len(each))]).to(dtype) for each in (a, b))
    return units.named(name).dot(x, y, torch.tensor([c], dtype=operation.accumulator))


def pattern(x: torch.Tensor) -> int:
    return int(x.view(torch.int32 if x.element_size() == 4 else torch.int16)) & (1 << 8 * x.element_size()) - 1


@pytest.mark.parametrize("case", WITH_INFINITY, ids=[label(each) for each in WITH_INFINITY])
def test_nan_and_infinities(case: Case) -> None:
    name, operation = case
    for a, b, c, wanted in TABLE:
        found = block(name, a, b, c, operation)
        assert found.item() == wanted or (math.isnan(found.item()) and math.isnan(wanted)), (a, b, c)
        if math.isnan(wanted) and name in NANS:
            assert pattern(found) == (0x7FFF if operation.accumulator == torch.float16 else NANS[name])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz], ids=str)
def test_amd_8_bit_formats_have_one_nan_and_no_infinity(dtype: torch.dtype) -> None:
    a = torch.arange(256, dtype=torch.uint8).view(dtype)[:, None].float().repeat(1, 16)
    a[:, 1:] = 0
    found = units.named("mi300").dot(a.to(dtype), torch.ones(256, 16).to(dtype), torch.zeros(256))
    assert torch.isnan(found).nonzero().tolist() == [[0x80]]
    assert not torch.isinf(found).any()
    assert torch.equal(found.nan_to_num(7), a[:, 0].nan_to_num(7))


@pytest.mark.parametrize("case", ALL, ids=[label(each) for each in ALL])
def test_a_special_value_stays_through_later_blocks(case: Case) -> None:
    name, operation = case
    dtype, block = operation.formats[0].dtype, operation.arithmetic.products
    a = torch.ones(2, 3 * block).float()
    a[0, 0] = NAN
    if "fnuz" not in operation.formats[-1].name:
        a[1, 0] = INF
    found = units.named(name).dot(
        a.to(dtype), torch.ones(2, 3 * block).to(dtype), torch.zeros(2).to(operation.accumulator)
    )
    assert math.isnan(found[0].item())
    assert found[1].item() == (INF if "fnuz" not in operation.formats[-1].name else 3 * block)


@pytest.mark.parametrize(
    ("name", "dtype"), [("v100", torch.float16), ("a100", torch.float32), ("h100", torch.bfloat16)]
)
def test_nvidia_overflows_from_2_to_128_on_and_not_by_rounding(name: str, dtype: torch.dtype) -> None:
    operation = units.named(name).operation(dtype, dtype)
    greatest = torch.finfo(torch.float32).max
    nearly = block(name, [1.0], [1.0], greatest, operation)
    assert nearly.item() == greatest
    assert block(name, [2.0**14] * 2, [2.0**14] * 2, greatest, operation).item() == greatest
    if dtype != torch.float16:
        assert block(name, [2.0**64], [2.0**64], 0, operation).item() == INF


def test_mi300_product_overflows_by_itself() -> None:
    operation = units.named("mi300").operation(torch.bfloat16, torch.bfloat16)
    assert math.isnan(block("mi300", [2.0**64, 2.0**64], [2.0**64, -(2.0**64)], 0, operation).item())
    exact = units.named("mi100").operation(torch.bfloat16, torch.bfloat16)
    assert block("mi100", [2.0**64, 2.0**64], [2.0**64, -(2.0**64)], 0, exact).item() == 0


@pytest.mark.parametrize("case", WITH_INFINITY, ids=[label(each) for each in WITH_INFINITY])
def test_zeros(case: Case) -> None:
    """Those of NVIDIA, and of AMD as modelled, are always +0; elsewhere negative zeros make a negative zero."""
    name, operation = case
    products = operation.arithmetic.products
    found = block(name, [-0.0] * products, [1.0] * products, -0.0, operation)
    assert found.item() == 0
    negative = name in ("vdpbf16ps", "bfdot", "bfdot-ebf")  # not AMX, whose chains begin at +0
    assert math.copysign(1, found.item()) == (-1 if negative else 1)
    assert math.copysign(1, block(name, [1.0, -1.0], [1.0, 1.0], 0.0, operation).item()) == 1


@pytest.mark.parametrize(("name", "kept"), [("v100", True), ("a100", True), ("h100", True), ("mi100", True),
    ("mi200", False), ("mi300", True), ("vdpbf16ps", False), ("amx", False), ("bfdot", False), ("bfdot-ebf", True),
])  # fmt: skip
def test_subnormal_addends(name: str, kept: bool) -> None:
    for operation in units.named(name).operations:
        if operation.accumulator == torch.float32:
            assert block(name, [0.0], [0.0], 2.0**-135, operation).item() == (2.0**-135 if kept else 0)


@pytest.mark.parametrize(("name", "kept"), [("a100", True), ("h100", True), ("mi100", True), ("mi200", False),
    ("mi300", True), ("vdpbf16ps", False), ("amx", False), ("bfdot", False), ("bfdot-ebf", True),
])  # fmt: skip
def test_subnormal_operands(name: str, kept: bool) -> None:
    operation = units.named(name).operation(torch.bfloat16, torch.bfloat16)
    assert block(name, [2.0**-130], [2.0**100], 0, operation).item() == (2.0**-30 if kept else 0)


def test_subnormal_fp16_operands_are_flushed_on_mi200_only() -> None:
    kept = {}
    for name in ("v100", "a100", "h100", "mi100", "mi200", "mi300", "amx"):
        operation = units.named(name).operation(torch.float16, torch.float16)
        kept[name] = block(name, [2.0**-20], [1.0], 0, operation).item() == 2.0**-20
    assert [name for name, each in kept.items() if not each] == ["mi200"]


@pytest.mark.parametrize(("name", "given", "wanted"), [
    ("vdpbf16ps", (0x7FC1, 0x7FC2, 0x7FC3, 0x7FC4, 0x7FC12345), 0x7FC10000),
    ("vdpbf16ps", (0x3F80, 0x7FC2, 0x3F80, 0x7FC4, 0x7FC12345), 0x7FC20000),
    ("vdpbf16ps", (0x3F80, 0x3F80, 0x3F80, 0x3F80, 0x7F812345), 0x7FC12345),
    ("vdpbf16ps", (0x7F80, 0x0000, 0x3F80, 0x3F80, 0x3F800000), 0xFFC00000),
    ("vdpbf16ps", (0x7F80, 0x0000, 0x3F80, 0x3F80, 0x7FC12345), 0x7FC12345),
    ("vdpbf16ps", (0x7F81, 0x3F80, 0x3F80, 0x3F80, 0x3F800000), 0x7FC10000),
])  # fmt: skip
def test_x86_returns_the_first_nan_quieted(name: str, given: tuple[int, ...], wanted: int) -> None:
    """The bits of a0, b0, a1, b1 and the addend; the even product is added last."""
    a0, b0, a1, b1, c = given
    x, y = (torch.tensor([each]).to(torch.int16).view(torch.bfloat16) for each in ([a0, a1], [b0, b1]))
    addend = torch.tensor([c]).to(torch.int32).view(torch.float32)
    assert pattern(units.named(name).dot(x, y, addend)) == wanted
