"""The plots: well-formed, deterministic, and free of anything from outside."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from verifier.report import charts


def chips(count: int) -> list[dict[str, Any]]:
    statuses = ["explained", "unverified", "unexplained", "mismatch"]
    return [
        {
            "ueid": f"01{number:02x}aabbccddeeff",
            "snapshots": [{"status": statuses[n % 4], "time_ms": 1000 * n * (number + 1)} for n in range(number)],
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 6])
def test_plots_are_the_same_for_the_same_data_and_are_xml(count: int) -> None:
    for plot in (charts.coverage, charts.timeline):
        first = plot(chips(count))
        assert first == plot(chips(count))
        assert ElementTree.fromstring(first).tag.endswith("svg")


def account(number: int, unexplained: int) -> dict[str, Any]:
    rows = [
        {"category": "explained", "begin_ms": 5, "end_ms": 1000},
        {"category": "unexplained", "begin_ms": 1000, "end_ms": 1000 + unexplained},
    ]
    return {
        "ueid": f"01{number:04x}aabbcc",
        "rows": rows[: 2 if unexplained else 1],
        "ms": {"unexplained": unexplained},
    }


def test_the_ledger_shows_the_chips_with_most_to_doubt() -> None:
    ledgers = [account(number, 0 if number < 5 else number) for number in range(charts.MOST_CHIPS + 5)]
    plot = charts.ledger(ledgers)
    assert plot == charts.ledger(ledgers)
    assert ElementTree.fromstring(plot).tag.endswith("svg")
    assert "0004aabb" not in plot
    assert "0005aabb" in plot
    assert plot.count("unexplained") == 1  # in the legend
    assert ElementTree.fromstring(charts.ledger([])) is not None


def test_the_fleet_is_shown_by_number_of_stratum() -> None:
    counts = {"registered": 100_000, "sampled": 1000, "verified": 998}
    strata = [
        {"chips": 60_000, "drawn": 600, "certain": 3, "key": ["<script>"]},
        {"chips": 40_000, "drawn": 397, "certain": 0},
    ]
    plot = charts.fleet(counts, strata)
    assert plot == charts.fleet(counts, strata)
    assert "stratum 2" in plot
    assert "100000" in plot
    assert "script" not in plot
    assert ElementTree.fromstring(charts.fleet({"registered": 0, "sampled": 0, "verified": 0}, [])) is not None


def test_the_probability_plot_leaves_out_undefined_points() -> None:
    curve: list[dict[str, Any]] = [
        {"samples": 0, "eq1": 0.0, "hypergeometric": 0.0},
        {"samples": 1, "eq1": None, "hypergeometric": 0.5},
    ]
    assert ElementTree.fromstring(charts.probability(curve, drawn=1)) is not None
    nothing: list[dict[str, Any]] = [{"samples": 1, "eq1": None, "hypergeometric": None}]
    assert "equation 1" in charts.probability(curve, drawn=1)
    assert "equation 1" not in charts.probability(nothing, drawn=0)


def test_chips_with_the_same_first_digits_keep_bars_of_their_own() -> None:
    twins = [
        {"ueid": "01aabbccdd00", "snapshots": [{"status": "explained", "time_ms": 0}]},
        {"ueid": "01aabbccdd11", "snapshots": [{"status": "mismatch", "time_ms": 5}]},
    ]
    assert "aabbccdd (0)" in charts.coverage(twins)
    assert "aabbccdd (1)" in charts.coverage(twins)
