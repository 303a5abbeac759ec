"""The README's figures are those of the result files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import machine, readme_figures


def test_the_readme_is_what_the_results_give() -> None:
    page = readme_figures.PAGE.read_text()
    assert readme_figures.render(page) == page, "run python -m benchmarks.readme_figures"


def test_a_changed_result_changes_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = machine.load("honest")
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    machine.save("honest", {**(result or {}), "accused": ["a Prover"], "inspections": 7})
    page = readme_figures.render(readme_figures.PAGE.read_text())
    assert "| 1 of 7 honest inspections accuse a Prover |" in page
    assert "checkpoints differ" not in page
