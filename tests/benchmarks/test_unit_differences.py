"""The page of matrix units says what the result file says, and errors are measured in calibrated bounds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks import machine, unit_differences
from weighbridge.numerics.conformance.bound_policy import calibrated


def test_the_page_is_what_the_results_give() -> None:
    page = unit_differences.PAGE.read_text()
    assert unit_differences.render(page) == page, "run python -m benchmarks.unit_differences --page"


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="differences"):
        unit_differences.render(unit_differences.PAGE.read_text().replace("<!-- begin differences -->", ""))


def test_the_bound_is_the_calibrated_one_of_products() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((3, 100), (100, 2)))
    exact = a.double() @ b.double()
    norms = a.double().norm(dim=1)[:, None] * b.double().norm(dim=0)
    wanted = calibrated().factor("mm") * 2.0**-24 * (math.sqrt(100) * exact.abs() + norms)
    torch.testing.assert_close(unit_differences.calibrated_bound(a, b, exact), wanted, rtol=1e-5, atol=0)


def test_a_measurement_finds_units_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unit_differences, "SIDE", 8)
    case = unit_differences.measure("one-signed", 256)
    found = case["largest_error_in_bounds"]
    assert case["outputs"] == 64
    assert found["a100"] > found["h100"] > found["amx"] > 0  # fewer bits, more of them, to nearest
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    page = unit_differences.PAGE.read_text()
    assert unit_differences.render(page).count("Not measured yet.") == 2
    machine.save("unit_differences", {**machine.about(), "cases": [case]})
    assert f"| one-signed | 256 | {found['a100']:.2g} |" in unit_differences.render(page)
