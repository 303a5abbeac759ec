"""Products that are all rounding error tell units and orders apart."""

from __future__ import annotations

import pytest
import torch

from weighbridge.core.errors import FormatError
from weighbridge.numerics import units
from weighbridge.numerics.units import identification
from weighbridge.numerics.units.identification import LONG, SHORT, identify, operands


def made_by(name: str, chain: int | None) -> tuple[str, str]:
    """What a device with that unit would return."""
    order = units.Order(chain=chain, bias_first=False)
    return identification._modelled(name, SHORT, units.Order()), identification._modelled(name, LONG, order)


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_the_exact_product_is_zero(length: int) -> None:
    a, b = operands(length)
    assert (a.double() @ b.double() == 0).all()
    half = a.double().abs() @ b.double().abs()
    assert (half > 0).all()


@pytest.mark.parametrize(("name", "chain"), [("h100", 512), ("mi300", None)])
def test_a_unit_and_its_order_are_found_and_no_other(name: str, chain: int | None) -> None:
    found = identify(*made_by(name, chain))
    assert (name, chain or 0) in found.orders
    assert {of for of, _ in found.orders} <= set(found.units)
    assert {each for _, each in found.orders} == {chain or 0}
    same = units.named(name).operation(torch.bfloat16, torch.bfloat16).arithmetic
    for other in found.units:
        assert units.named(other).operation(torch.bfloat16, torch.bfloat16).arithmetic == same


def test_what_no_unit_returns_is_of_none() -> None:
    """The exact sums, and one wrong bit in the results of a unit."""
    zeros = "0000" * identification.SIDE**2
    assert identify(zeros, zeros).units == ()
    short, long = made_by("h100", None)
    wrong = ("0" if short[0] != "0" else "1") + short[1:]
    assert identify(wrong, long).units == ()
    assert identify(short, zeros).orders == ()


@pytest.mark.parametrize("text", ["", "00", "zz" * 2048, "0" * 4095 + "\n"])
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        identify(text, text)


def test_this_processor_is_named_or_has_no_such_unit() -> None:
    found = identification.of_device("cpu")
    assert len(found.short) == len(found.long) == 4 * identification.SIDE**2
    assert {of for of, _ in found.orders} <= set(found.units)
