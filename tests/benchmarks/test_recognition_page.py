"""The page on recognition says what its result files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, recognition_page

ABOUT = {"date": "2026-01-02", "processor": "P", "machine": "M", "capability": "AVX2", "threads": 1, "torch": "2"}


def row(name: str, *reasons: str) -> dict[str, Any]:
    return {"name": name, "steps": 2, "recognised": not reasons, "reasons": reasons}


RECOGNITION = {
    **ABOUT,
    "trainings": [row("a.py::test_x"), row("a.py::test_y", "the gradient of w.0 is off by 3.5"), row("examples/e.py")],
    "summary": {"cost": {"median": 0.25, "largest": 0.75}, "noise": {}, "freedom": {"median": 1e-3, "largest": 0.5}},
}
RESPONSES = {"steps": 4, "outcomes": {"sensitive": 3, "untested": 1}, "least_carry": 0.9, "least_joint": None}
SENSITIVITY = {
    **ABOUT,
    "models": {"gpt2": {**RESPONSES, "cost_in_replayed_steps": 2.89}},
    "imports": {"1.0": {**RESPONSES, "outcomes": {"insensitive": 4}}},
    "zoo": {**RESPONSES, "trainings": 7, "untested": {"no weights": 1}},
}


def test_the_page_is_what_the_result_files_give() -> None:
    page = recognition_page.PAGE.read_text()
    assert recognition_page.render(page) == page, "run python -m benchmarks.recognition_page"


def test_results_change_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    page = recognition_page.render(recognition_page.PAGE.read_text())
    assert page.count("Not measured yet.") == 2
    machine.save("recognition", RECOGNITION)
    machine.save("sensitivity", SENSITIVITY)
    page = recognition_page.render(page)
    for line in (
        "| zoo | 2 | 1 | 4 |",
        "| examples | 1 | 1 | 2 |",
        "| recognition of a step / its replay | 0.25 | 0.75 |",
        "| the gradient of NAME is off by N | 1 | y |",
        "| gpt2 | 4 | 3 | 0 | 1 | 0.90 |  | 2.9 |",
        "| zoo (7 trainings) | 4 | 3 | 0 | 1 | 0.90 |  |  |",
        "| a training, and an import 1.0 times its update | 4 | 0 | 4 | 0 | 0.90 |  |  |",
        "Untested steps of the zoo: no weights (1).",
    ):
        assert line in page


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table of recognition"):
        recognition_page.render("# Recognition")
