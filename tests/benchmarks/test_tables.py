"""The pages of the benchmarks say what the result files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import machine, tables


def test_the_pages_are_what_the_results_give() -> None:
    for place, made in ((tables.PAGE, tables.TABLES), (tables.PERFORMANCE, tables.PARTS)):
        page = place.read_text()
        assert tables.render(page, made) == page, "run python -m benchmarks.tables"


def test_a_changed_result_changes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    page = tables.PAGE.read_text()
    empty = tables.render(page)
    assert empty.count("Not measured yet") == len(tables.TABLES)
    ways = ("plain", "wide", "bare", "noted", "recorded", "replayed", "published")
    measured = {
        "rounds": 3, "milliseconds": {way: {"median": 12.0, "min": 11.0, "max": 13.0} for way in ways},
        "recorded_over_wide": 1.234, "bare_over_wide": 1.1, "noted_over_wide": 1.15,
        "recorded_over_bare": 1.2, "replayed_over_recorded": 1.0, "published_over_wide": 3.0,
    }  # fmt: skip
    machine.save("steps", {**machine.about(), "models": {"gpt2": measured}})
    assert "| gpt2 | 12 (11 to 13) |" in tables.render(page)
    assert "| 1.23 | 1.10 | 1.15 | 1.20 | 1.00 | 3.00 |" in tables.render(page)
    assert tables.render(tables.render(page)) == tables.render(page)


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="soak"):
        tables.render(tables.PAGE.read_text().replace("<!-- begin soak -->", ""))
