"""The page on integrations says what its result file says; plain examples are the examples without what is added."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import integrations_page, machine
from benchmarks.bench_integrations import EXAMPLES, SUBJECTS, plain

TOLD = {
    "versions": {"torch": "1.2.3"}, "added": 2, "steps": 8, "plain_seconds": [0.5, 0.25, 1.0],
    "recorded_seconds": [2.0, 1.5, 9.0], "slowdown": 4.0,
    "elsewhere": {"exit_code": 1, "verdict": "match", "above_info": ["tape.overwrite"]},
    "unchanged": {"exit_code": 3},
}  # fmt: skip
ABOUT = {
    "date": "2026-01-02",
    "processor": "P",
    "machine": "M",
    "capability": "AVX2",
    "threads": 1,
    "torch": "2",
    "rows": {"x": TOLD},
}


def test_the_page_is_what_the_result_file_gives() -> None:
    page = integrations_page.PAGE.read_text()
    assert integrations_page.render(page) == page, "run python -m benchmarks.integrations_page"


@pytest.mark.parametrize(("load", "said"), [(0.1, False), (3.0, True)])
def test_a_result_changes_the_page(load: float, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    page = integrations_page.render(integrations_page.PAGE.read_text())
    assert "Not measured yet" in page
    machine.save("integrations", {**ABOUT, "load": load})
    page = integrations_page.render(page)
    assert (
        "| torch 1.2.3 | 2 | 8 | yes | match, exit code 1 | tape.overwrite | 0.50 | 2.00 | 4.0 | exit code 3 |" in page
    )
    assert ("only an indication" in page) is said


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place"):
        integrations_page.render("# Integrations")


@pytest.mark.parametrize("name", [subject.name for subject in SUBJECTS])
def test_a_plain_example_is_the_example_without_two_lines(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    text, added = plain(source)
    assert added == 2
    assert not {"prover", "weighbridge"} & {word.id for word in ast.walk(ast.parse(text)) if isinstance(word, ast.Name)}
    kept = [line for line in text.splitlines() if line and line.strip() != "if True:"][:-2]
    assert set(kept) <= set(source.splitlines())
    assert len(kept) >= len([line for line in source.partition("\nif __name__")[0].splitlines() if line]) - 3
