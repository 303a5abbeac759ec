"""A rule is probed for each product: the unit, and the order of its blocks, by results that are all rounding error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import FormatError, UsageError
from weighbridge.numerics import units
from weighbridge.numerics.units import probing
from weighbridge.numerics.units.injection import Injected
from weighbridge.numerics.units.orders import chain_of, parse, signature
from weighbridge.numerics.units.probing import Product, Rule, Way, operands, orders_of, read, returned, rule

LENGTH = 640
SIGNATURE = f"bf16 9x{LENGTH}x31"
PRODUCT = Product(SIGNATURE)


def probed(device: Injected, product: Product = PRODUCT) -> Rule:
    return rule(product, returned(product, device.product))


@pytest.mark.parametrize("text", [SIGNATURE, "fp16 3x5x16x7", "bf16 1x1x1", "fp16 2x33x4"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_operands_cancel_and_lie_as_their_layout_says(text: str, layout: probing.Layout) -> None:
    product = Product(text, layout)
    a, b = operands(product)
    assert signature(a, b) == text
    assert (a.double() @ b.double() == 0).all()
    assert [t.mT.is_contiguous() for t, way in zip((a, b), layout, strict=True) if way == "t"] == [True] * layout.count(
        "t"
    )
    assert read(str(product)) == product


@pytest.mark.parametrize("unit", ["a100", "h100"])
@pytest.mark.parametrize("chain", [0, 64, 128, 224, 320, 512])
def test_an_injected_device_is_told_with_its_order(unit: str, chain: int) -> None:
    """Each of these is one way of some eighty, and every other one is refuted."""
    found = probed(Injected(unit, {SIGNATURE: chain} if chain else {}))
    assert found.ways == (Way(unit, chain),)
    assert str(found) == f"{PRODUCT}: {unit} in {f'chains of {chain}' if chain else 'one chain'}"
    assert (found.nearest, found.agree, found.zero) == (None, found.compared, False)


@pytest.mark.parametrize(
    "product", [Product("fp16 9x640x31", "tn"), Product("bf16 3x9x640x31"), Product("bf16 1x640x1")]
)
def test_types_batches_and_layouts(product: Product) -> None:
    found = probed(Injected("h100", {product.signature: 320}), product)
    assert Way("h100", 320) in found.ways
    assert len(found.ways) == 1 or product.signature == "bf16 1x640x1", "one result alone leaves some ways open"


def of_model(name: str, order: units.Order) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda a, b: units.named(name).product(a, b, order=order)


@pytest.mark.parametrize("chain", [None, 160])
def test_v100_is_told_apart_too(chain: int | None) -> None:
    product = Product("fp16 5x320x13")
    found = rule(product, returned(product, of_model("v100", units.Order(chain, bias_first=False))))
    assert found.ways == (Way("v100", chain or 0),)


def taking_turns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Two warps of a block, each with every second 32 products of K."""
    halves = [torch.arange(LENGTH).view(-1, 2, 32)[:, part].flatten() for part in range(2)]
    one, two = (units.named("h100").product(a[:, half], b[half]) for half in halves)
    return one + two


def test_chains_that_take_turns_are_told_and_no_draft_declares_them() -> None:
    found = rule(PRODUCT, returned(PRODUCT, taking_turns))
    assert found.ways == (Way("h100", 0, 32, 2),)
    assert str(found).endswith("h100 in 2 chains that take turns of 32")
    with pytest.raises(UsageError, match=r"'h100' cannot be declared for this device: .* take turns of 32"):
        orders_of([found], "h100")


# -- what no rule fits -------------------------------------------------------------------------------------------------


def reversed_blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A kernel that goes through K from its end: no order that is modelled."""
    turned = torch.arange(LENGTH).view(-1, 16).flip(0).flatten()
    return units.named("h100").product(a[:, turned], b[turned])


def test_an_order_that_is_not_modelled_is_of_no_rule() -> None:
    found = rule(PRODUCT, returned(PRODUCT, reversed_blocks))
    assert found.ways == ()
    assert found.nearest is not None
    assert found.agree < found.compared / 4
    assert "no rule fits; the nearest, " in str(found)
    assert "one that is not modelled" in str(found)
    with pytest.raises(UsageError, match="cannot be declared for this device"):
        orders_of([found], "h100")


def test_exact_sums_are_of_no_unit_that_truncates() -> None:
    found = rule(PRODUCT, returned(PRODUCT, lambda a, b: a.double() @ b.double()))
    assert (found.ways, found.zero) == ((), True)
    assert "the sums are exact" in str(found)


def test_one_wrong_bit_is_of_no_rule() -> None:
    text = returned(PRODUCT, Injected("a100").product)
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    found = rule(PRODUCT, wrong)
    assert (found.ways, found.nearest, found.agree) == ((), Way("a100"), found.compared - 1)


def test_a_sum_of_one_block_leaves_units_open() -> None:
    product = Product("bf16 5x8x6")
    found = probed(Injected("a100"), product)
    assert {way.unit for way in found.ways} == {"a100", "h100"}
    assert "a100 in one chain, or h100 in one chain" in str(found)


@given(st.text(max_size=60))
def test_texts_are_products_or_refused(text: str) -> None:
    with contextlib.suppress(FormatError):
        assert str(read(text)) == text


@pytest.mark.parametrize("text", ["bf16 1x2x3", "bf16 99999999x99999999x9 nn", "bf16 1x2x3 xx", "fp32 1x2x3 nn", "nn"])
def test_what_is_no_product_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        read(text)


@pytest.mark.parametrize("text", ["", "0000", "zz" * 512])
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="no result of"):
        rule(PRODUCT, text)


# -- what a draft declares ---------------------------------------------------------------------------------------------


def test_probed_orders_are_those_that_a_draft_declares() -> None:
    others = {SIGNATURE: 320, "bf16 16x1024x8": 512, "fp16 2x3x640x5": 64}
    device = Injected("h100", others)
    products = [Product(text) for text in (*others, "bf16 8x256x8")] + [Product(SIGNATURE, "nt")]
    found = orders_of([probed(device, each) for each in products], "h100")
    assert parse(found) == found
    for each in products:
        a, b = operands(each)
        again = Injected("h100", found).product(a, b)
        assert torch.equal(again, device.product(a, b))
        assert chain_of(found, a, b) == others.get(each.signature, 0)


def test_one_signature_with_two_orders_cannot_be_declared() -> None:
    """A library may have another kernel where an operand is transposed; a draft has one order for both."""
    one, two = probed(Injected("h100")), probed(Injected("h100", {SIGNATURE: 320}), Product(SIGNATURE, "nt"))
    with pytest.raises(UsageError, match="one order for each signature"):
        orders_of([one, two], "h100")


def test_units_that_compute_alike_are_one() -> None:
    assert probing.truncating() == ("v100", "a100", "h100")
