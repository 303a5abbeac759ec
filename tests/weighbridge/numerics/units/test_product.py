"""Products of matrices from blocks, their orders, and what is refused."""

from __future__ import annotations

import pytest
import torch
from support.unit_operands import operands

from weighbridge.core.errors import UsageError
from weighbridge.numerics import units
from weighbridge.numerics.units import Order

H100 = units.named("h100")


def matrices(m: int, k: int, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((m, k), (k, n)))
    return a, b, torch.randn((m, n), generator=generator)


@pytest.mark.parametrize("name", units.names())
def test_a_product_is_a_chain_of_blocks(name: str) -> None:
    unit = units.named(name)
    for operation in unit.operations:
        size, dtype = operation.arithmetic.products, operation.formats[0].dtype
        a, b, c = operands(dtype, dtype, operation.accumulator, rows=4, length=3 * size, kind="near", seed=1)
        b, bias = b.T, c[:, None].expand(4, 4)
        total = bias
        for k in range(0, 3 * size, size):
            total = unit.multiply_accumulate(a[:, k : k + size], b[k : k + size], total)
        assert torch.equal(unit.product(a, b, bias), total)


def test_an_element_of_a_product_is_a_sum_of_its_own() -> None:
    a, b, bias = matrices(3, 50, 4)
    whole = H100.product(a, b, bias)
    for i in range(3):
        for j in range(4):
            assert whole[i, j] == H100.dot(a[i], b[:, j], bias[i, j])


def test_a_length_that_is_not_a_multiple_is_filled_with_zeros() -> None:
    a, b, bias = matrices(3, 50, 4)
    padded = H100.product(torch.nn.functional.pad(a, (0, 14)), torch.nn.functional.pad(b, (0, 0, 0, 14)), bias)
    assert torch.equal(H100.product(a, b, bias), padded)


def test_without_products_there_is_the_bias() -> None:
    a, b, bias = matrices(3, 0, 4)
    assert torch.equal(H100.product(a, b, bias), bias)
    assert torch.equal(H100.product(a, b, bias, order=Order(bias_first=False)), bias)


def test_chains_begin_at_zero_and_are_added_to_nearest() -> None:
    a, b, bias = matrices(6, 96, 5)
    parts = [H100.product(a[:, k : k + 32], b[k : k + 32]) for k in (0, 32, 64)]
    order = Order(chain=32, bias_first=False)
    assert torch.equal(H100.product(a, b, bias, order=order), parts[0] + parts[1] + parts[2] + bias)
    first = H100.product(a[:, :32], b[:32], bias)
    assert torch.equal(H100.product(a, b, bias, order=Order(chain=32)), first + parts[1] + parts[2])
    assert not torch.equal(H100.product(a, b, bias, order=order), H100.product(a, b, bias))


def test_promotion_is_more_accurate_where_an_accumulator_has_few_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(shape, generator=generator).to(torch.float8_e4m3fn) for shape in ((4, 4096), (4096, 4)))
    exact = a.double() @ b.double()
    errors = [
        ((H100.product(a, b, order=order).double() - exact) / exact).abs().max().item()
        for order in (units.IN_ORDER, Order(chain=512), Order(chain=128))
    ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


@pytest.mark.parametrize(("call", "words"), [
    (lambda a, b: units.named("h200x"), "no matrix unit 'h200x'; choose one of v100, a100"),
    (lambda a, b: H100.product(a, b.half()), "does not multiply torch.bfloat16 by torch.float16"),
    (lambda a, b: H100.product(a, b, accumulator=torch.float16), "into torch.float16"),
    (lambda a, b: units.named("v100").product(a, b), "it takes torch.float16 into torch.float32"),
    (lambda a, b: H100.product(a, b.T), "cannot multiply shapes"),
    (lambda a, b: H100.multiply_accumulate(a, b, torch.zeros(4, 4)), "has 16 products, not 48; use `product`"),
    (lambda a, b: H100.product(a, b, order=Order(chain=24)), "multiple of 16"),
    (lambda a, b: H100.product(a.half(), b.half(), order=Order(chain=16), accumulator=torch.float16), "in float32"),
    (lambda a, b: H100.dot(a, b.T[:, :40], torch.zeros(4)), "have 48 and 40 products"),
])  # fmt: skip
def test_what_is_refused_says_why(call: object, words: str) -> None:
    a, b, _ = matrices(4, 48, 4)
    with pytest.raises(UsageError, match=words):
        call(a, b[:, :3] if words == "cannot multiply shapes" else b)  # type: ignore[operator]


def test_aliases_name_the_same_unit() -> None:
    assert units.named("h200") is H100
    assert units.named("l40s") is units.named("ada")
    assert units.named("a2") is units.named("a100")
