"""The plot: well-formed, deterministic, in the colours of its page, and left out where it would be empty."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from verifier.report import charts


def curve(points: int, *, eq1: bool = True) -> list[dict[str, Any]]:
    return [{"samples": n, "eq1": n / 20 if eq1 else None, "hypergeometric": n / 10} for n in range(points)]


def test_the_plot_is_the_same_for_the_same_data_and_is_xml() -> None:
    plot = charts.probability(curve(9), drawn=3)
    assert plot == charts.probability(curve(9), drawn=3)
    assert ElementTree.fromstring(plot).tag.endswith("svg")
    assert "equation 1" in plot
    assert "#23313a" not in plot, "a fixed ink is not legible on a dark page"
    assert "currentColor" in plot


def test_what_is_not_defined_is_left_out() -> None:
    assert "equation 1" not in charts.probability(curve(9, eq1=False), drawn=3)


def test_a_small_fleet_has_no_plot() -> None:
    assert charts.probability(curve(3), drawn=1) == ""
    assert charts.probability([], drawn=0) == ""
    flat = [{"samples": n, "eq1": None, "hypergeometric": 0.0} for n in range(60)]
    assert charts.probability(flat, drawn=1) == "", "a line at zero shows nothing"
