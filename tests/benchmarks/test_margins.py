"""The page of bounds says what was measured and what the code says, and no observed error left its bound."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.bound_errors import single_precision

from benchmarks import machine, margins
from benchmarks.margins import EXAMPLES, Anywhere
from weighbridge.numerics import bounds
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rule_table import FAMILIES, RULES, Kind

AGAIN = "run python -m benchmarks.margins"
ROUNDED = {key for key, rule in RULES.items() if rule.kind is Kind.ROUNDED and "::" not in key}


@pytest.fixture
def result() -> dict[str, Any]:
    found = machine.load("margins")
    assert found is not None, AGAIN
    return found


@pytest.fixture
def growth() -> dict[str, Any]:
    found = machine.load("bounds")
    assert found is not None, "run python -m benchmarks.bench_bounds"
    return found


def test_the_page_is_what_the_result_and_the_code_give(result: dict[str, Any], growth: dict[str, Any]) -> None:
    assert margins.page(result, growth) == margins.PAGE.read_text(encoding="utf-8"), AGAIN


def test_another_margin_changes_the_page(result: dict[str, Any], growth: dict[str, Any]) -> None:
    other = copy.deepcopy(result)
    other["rules"]["mm.default"]["margin"] = 0.987
    assert "0.987" in margins.page(other, growth)
    assert margins.page(other, growth) != margins.page(result, growth)


def test_every_rounded_rule_was_measured_and_stayed_within_its_bound(result: dict[str, Any]) -> None:
    assert set(result["rules"]) >= ROUNDED, AGAIN
    for key in ROUNDED:
        found = result["rules"][key]
        assert found["elements"] > 0, key
        assert 0 <= found["margin"] <= 1, key


def test_several_instruction_sets_and_ways_were_measured(result: dict[str, Any]) -> None:
    assert len(set(result["environments"].values())) >= 2
    ways = {found["way"].partition(" (")[0] for found in result["rules"].values()}
    assert {"kernel", "another order"} <= ways


def test_every_family_has_a_source_and_words() -> None:
    lines = [line for family in FAMILIES for line in family.LINES]
    assert {key for line in lines for key in line.keys} == ROUNDED
    for line in lines:
        assert len(margins._words(line)[1]) > 10
        assert line.source


def test_an_error_beyond_its_bound_shows() -> None:
    found = margins.Margins()
    wide = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found.add("mm.default", "kernel", [(wide, Bound(absolute=1e-3))], [torch.tensor([1.0, 2.004])])
    assert found.rules["mm.default"]["margin"] == pytest.approx(4.0, rel=1e-3)
    assert found.rules["mm.default"]["elements"] == 2


def test_bounds_are_for_float64_again_after_measuring() -> None:
    with single_precision():
        assert bounds.gamma(1) > 2.0**-25
    assert bounds.gamma(1) < 2.0**-52


def test_a_measurement_of_one_seed_finds_what_a_kernel_does() -> None:
    found = margins.Margins()
    for example in margins.EXAMPLES["mm.default"](margins.Anywhere("plain", seed=5)):
        margins._one(found, "mm.default", example)
    assert 0 < found.rules["mm.default"]["margin"] < 1


def test_other_ways_compute_what_the_kernel_does() -> None:
    """Of every example that there is, so that a new one cannot end a measurement."""
    tried = set()
    for key, examples in EXAMPLES.items():
        for example in examples(Anywhere("plain", seed=1)):
            for way, results in margins.products(example):
                for found, wanted in zip(results, margins.kernel(example), strict=True):
                    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)
                tried.add((way, key))
    assert {key for _, key in tried} >= {"mm.default", "addmm.default", "convolution.default", "sum.dim_IntList"}
    assert {way for way, _ in tried} == set(margins.PRODUCTS)
