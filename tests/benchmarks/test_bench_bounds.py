"""What docs/bounds.md says of probabilistic and smaller bounds: counted under bounds that are put back, and honest."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import bench_bounds, bounds_page, machine
from weighbridge.numerics import bounds
from weighbridge.numerics.families import products
from weighbridge.numerics.rounding.bound import Bound


@pytest.fixture
def result() -> dict[str, Any]:
    found = machine.load("bounds")
    assert found is not None, "run python -m benchmarks.bench_bounds"
    return found


def test_the_page_says_what_was_measured_on_which_machine(result: dict[str, Any]) -> None:
    text = bounds_page.section(result)
    assert f"{result['steps']['found']['rounded']:,}" in text
    for part in result.values():
        assert f"{part['machine']['date']}: {part['machine']['processor']}" in text
    other = copy.deepcopy(result)
    other["growth"]["found"]["blocks"]["bytes"] = 7
    assert "| 7 | 0.00 |" in bounds_page.section(other)


def test_sums_of_independent_terms_outside_their_bounds_stop_the_page(result: dict[str, Any]) -> None:
    other = copy.deepcopy(result)
    next(each for each in other["margins"]["found"] if each["terms"] == "normal")["outside_from"] = 256
    with pytest.raises(AssertionError, match="left its bound"):
        bounds_page.section(other)


def test_products_of_constants_leave_probabilistic_bounds_and_no_strict_ones() -> None:
    """The attack on the model that the page tells of: rounding errors of one sign, summed one by one."""
    count = 1 << 16
    a, b = (x.double() for x in bench_bounds.operands("constants", count))
    exact = (a[:, 0] * b[:, 0]).numpy() * count  # a power of two times 48 bits
    errors = np.abs(bench_bounds.ORDERS["one by one"](a, b) - exact)
    size = np.abs(exact)
    with bounds.probable_growth():
        assert (errors / (bounds.gamma(count) * size)).max() > 1
    assert (errors / (bounds.gamma(count) * size)).max() < 1


def test_bounds_are_counted_otherwise_only_while_that_is_measured() -> None:
    usual = bounds.gamma(4096)
    with bench_bounds.growing(bench_bounds.GROWTHS["blocks"][1]):
        assert vars(products)["gamma"](4096) == bounds.gamma(4096) == pytest.approx((256 + 16) * bounds.U)
        assert bounds.gamma(100) == pytest.approx(100 * bounds.U)
    assert vars(products)["gamma"](4096) == bounds.gamma(4096) == usual
    assert bench_bounds.GROWTHS["pairs"][1](4096) == 1 + math.ceil(math.log2(4097))


def test_the_policies_save_what_the_page_says(result: dict[str, Any]) -> None:
    found = result["blocked"]["found"]
    assert len({each["rounded"] for each in found.values()}) == 1, "of the same steps"
    assert found["blocked-64"]["bytes"] < found["blocked-256"]["bytes"] < found["strict"]["bytes"]
    other = copy.deepcopy(result)
    other["blocked"]["found"]["blocked-64"]["bytes"] = 7
    assert "| 7 | 0.00 |" in bounds_page.section(other)


def test_sums_of_absolute_terms_are_no_larger_than_norms() -> None:
    a, b = torch.randn(5, 64), torch.randn(64, 3)
    (found,) = products.mm(bounds.Call("mm", {"self": a, "mat2": b}, [a.double() @ b.double()]))
    sharp = bench_bounds._sharp(found)
    assert ((sharp.factors[0]) <= found.factors[0] * found.factors[1] * (1 + 1e-6)).all()
    assert bench_bounds._sharp(Bound(rel=1.0)) == Bound(rel=1.0)
