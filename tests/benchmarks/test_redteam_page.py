"""The page of the attack catalogue says what catalogue and result file say."""

from __future__ import annotations

from pathlib import Path

import pytest
from redteam.catalogue import ROWS

from benchmarks import machine, redteam_page


def test_the_page_is_what_catalogue_and_results_give() -> None:
    page = redteam_page.PAGE.read_text()
    assert redteam_page.render(page) == page, "run python -m benchmarks.redteam_page"


def test_every_row_was_tried_and_came_out_as_it_says() -> None:
    rows = (machine.load("redteam") or {})["rows"]
    assert set(rows) == {row.name for row in ROWS}, "run make redteam"
    assert [name for name, row in rows.items() if row["as_said"] != row["seeds"]] == []


def test_what_is_not_caught_stands_first() -> None:
    page = redteam_page.PAGE.read_text()
    assert page.index("## What is not caught") < page.index("## What is caught")


def test_a_changed_result_changes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = redteam_page.PAGE.read_text()
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    assert redteam_page.render(page).count("not tried yet") == len(ROWS)
    caught = next(row for row in ROWS if row.expected and row.chips == 50)
    entry = {"seeds": 4, "caught": 3, "cost": [0.125] * 4, "gain": [0.75] * 4, "control": [None] * 4}
    machine.save("redteam", {"rows": {caught.name: entry}})
    assert "| 0.12 | 0.750 |" in redteam_page.render(page)
    assert "| 0.75 [0.19, 0.99] of 4 |" in redteam_page.render(page)


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="control"):
        redteam_page.render(redteam_page.PAGE.read_text().replace("<!-- begin control -->", ""))
