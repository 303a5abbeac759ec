"""Units' own bounds hold with a margin of two on data of every kind, where forms in K and norms of rows do not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.unit_differences import calibrated_bound
from weighbridge.core.errors import UsageError
from weighbridge.numerics import units
from weighbridge.numerics.units import unit_bounds

Tensor = torch.Tensor
SIDE = 8
LENGTHS = {"a100": 2048, "h100": 4096, "vdpbf16ps": 512}


def normal(generator: torch.Generator, k: int) -> tuple[Tensor, Tensor]:
    return torch.randn(SIDE, k, generator=generator), torch.randn(k, SIDE, generator=generator)


def lognormal(generator: torch.Generator, k: int) -> tuple[Tensor, Tensor]:
    (a, b), (x, y) = normal(generator, k), normal(generator, k)
    return torch.exp(2 * a) * x.sign(), torch.exp(2 * b) * y.sign()


def one_signed(generator: torch.Generator, k: int) -> tuple[Tensor, Tensor]:
    a, b = normal(generator, k)
    return a.abs(), b.abs()


def drifting(generator: torch.Generator, k: int) -> tuple[Tensor, Tensor]:
    a, b = normal(generator, k)
    return a + 0.5, b + torch.linspace(0, 0.5, k)[:, None]


def hump(generator: torch.Generator, k: int) -> tuple[Tensor, Tensor]:
    """Sums that rise to the middle and fall to nearly nothing: large accumulators, a small result."""
    a, b = one_signed(generator, k)
    a[:, k // 2 :] = -a[:, k // 2 :]
    return a, b


KINDS = (normal, lognormal, one_signed, drifting, hump)


def drawn(kind: Callable[[torch.Generator, int], tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    a, b = kind(torch.Generator().manual_seed(k), k)
    return a.bfloat16(), b.bfloat16()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", LENGTHS)
def test_a_unit_stays_within_half_of_its_bound(unit: str, kind: Callable[..., tuple[Tensor, Tensor]]) -> None:
    a, b = drawn(kind, LENGTHS[unit])
    error = (units.named(unit).product(a, b).double() - a.double() @ b.double()).abs()
    used = (error / unit_bounds.of_unit(unit).of(a, b)).max()
    assert 0.01 < used < 0.5, "a bound of any size would pass too"


def test_a_truncating_unit_leaves_the_bound_of_another() -> None:
    """Declared as VDPBF16PS, an A100 has bounds that its sums of one sign do not keep; and so with calibrated ones."""
    a, b = drawn(one_signed, 16384)
    exact = a.double() @ b.double()
    error = (units.named("a100").product(a, b).double() - exact).abs()
    assert (error / unit_bounds.of_unit("vdpbf16ps").of(a, b)).max() > 1
    assert (error / calibrated_bound(a, b, exact)).max() > 1
    assert (error / unit_bounds.of_unit("a100").of(a, b)).max() < 0.5


def test_a_bound_is_what_the_formula_says() -> None:
    a, b = torch.full((1, 300), 2.0), torch.ones(300, 1)
    first, second = 512.0 + 2 * 256 / 16, 600.0 + 2 * 44 / 16
    assert unit_bounds.of_unit("a100").of(a, b).item() == pytest.approx(0.8 * 2**-24 * 256 * (first + second))
    root = (256 * (first**2 + second**2)) ** 0.5
    assert unit_bounds.of_unit("vdpbf16ps").of(a, b).item() == pytest.approx(3.5 * 2**-24 * root)


def test_a_unit_has_its_bound_under_each_name_and_others_have_none() -> None:
    assert unit_bounds.of_unit("h200") is unit_bounds.of_unit("h100")
    assert {*unit_bounds.bounds()} == {"a100", "h100", "vdpbf16ps"}
    with pytest.raises(UsageError, match="no bound was measured for unit 'mi300'"):
        unit_bounds.of_unit("mi300")
    with pytest.raises(UsageError, match="h300"):
        unit_bounds.of_unit("h300")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("factor", 0), ("factor", -1), ("factor", float("nan")), ("factor", 1e9), ("factor", True), ("factor", "1"),
        ("form", "product"), ("form", None),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_refused(key: str, value: Any) -> None:
    good = json.loads(unit_bounds.DATA.read_text())
    assert unit_bounds.parse(good) == unit_bounds.bounds()
    bad = copy.deepcopy(good)
    bad["units"]["a100"][key] = value
    other = {"units": {"h200": good["units"]["h100"]}}
    tables: list[Any] = [bad, good | {"chunk": 0}, good | {"chunk": True}, good | other, []]
    for each in tables:
        with pytest.raises(UsageError, match="no table of units' bounds"):
            unit_bounds.parse(each)
