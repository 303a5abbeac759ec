"""`weighbridge analysis figure` and `report`: files written, one clear error each for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weighbridge.cli.main import run

EXAMPLES = Path(__file__).parents[2] / "analysis" / "scenarios"
SCENARIOS = [str(path) for path in sorted(EXAMPLES.glob("*.toml"))]


@pytest.mark.soak
def test_a_page_for_each_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(SCENARIOS) >= 2
    assert run(["analysis", "report", *SCENARIOS, "--out", str(tmp_path / "new" / "pages"), "--json"]) == 0
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert [page["scenario"] for page in pages] == SCENARIOS
    for page in pages:
        text = Path(page["page"]).read_text(encoding="utf-8")
        assert text.startswith("<!DOCTYPE html>")
        assert page["title"] in text


def test_one_scenario_may_name_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert run(["analysis", "report", SCENARIOS[0], "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert page.exists()


def test_a_bad_scenario_among_good_ones_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(Path(SCENARIOS[0]).read_text().replace("chips = 100_000", "chips = -1"))
    out = tmp_path / "pages"
    assert run(["analysis", "report", SCENARIOS[0], str(bad), "--out", str(out), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "usage.domain"
    assert "bad.toml: fleet.chips must be a whole number of at least 1" in error["message"]
    assert not out.exists()


def test_a_scenario_without_an_answer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "small.toml"
    small.write_text(Path(SCENARIOS[0]).read_text().replace("chips = 100_000", "chips = 10"))
    assert run(["analysis", "report", str(small), "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert f"{small}: no run of 5.76e+23 FLOPs fits" in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*SCENARIOS[:2], "--out", "one.html"], "name a directory"),
        ([SCENARIOS[0], SCENARIOS[0], "--out", "pages"], "rename one of them"),
        ([SCENARIOS[0], "--out", "file/pages"], "cannot write"),
        ([SCENARIOS[0], "--chip-file", "none.csv"], "none.csv: cannot be read"),
        (["none.toml"], "none.toml: cannot be read"),
    ],
)
def test_pages_that_cannot_be_written(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert run(["analysis", "report", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file"]


def test_figures_are_the_same_bytes_each_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix, begins in ((".svg", b"<?xml"), (".pdf", b"%PDF")):
        first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        for path in (first, second):
            assert run(["analysis", "figure", "figure2", "--out", str(path)]) == 0
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(begins)
    assert "figure 2" in capsys.readouterr().out


def test_a_figure_of_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = []
    for scenario in SCENARIOS[:2]:
        out = tmp_path / f"{Path(scenario).stem}.svg"
        assert run(["analysis", "figure", "stretch", "--scenario", scenario, "--out", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["file"] == str(out)
        made.append(out.read_bytes())
    assert made[0] != made[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mona-lisa", "--out", "a.svg"], "there are figure2, table1"),
        (["samples", "--out", "a.png"], "must end in .svg or .pdf"),
        (["samples", "--out", "none/a.svg"], "cannot write"),
        (["samples", "--out", "a.svg", "--scenario", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_figures_that_cannot_be_made(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["analysis", "figure", *arguments]) == 2
    printed = capsys.readouterr().err
    assert "usage.domain" in printed
    assert says in printed
    assert list(tmp_path.iterdir()) == []


def test_the_packaged_examples_are_copied_and_replace_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analysis", "examples", "--out", str(tmp_path / "new"), "--json"]) == 0
    written = [Path(name) for name in json.loads(capsys.readouterr().out)["files"]]
    assert {path.name for path in written} >= {Path(name).name for name in SCENARIOS} | {"how_many_inspections.ipynb"}
    for path in written:
        assert path.read_bytes() == (EXAMPLES.parent / path.relative_to(tmp_path / "new")).read_bytes()
    written[0].write_text("title = 'mine'")
    assert run(["analysis", "examples", "--out", str(tmp_path / "new"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage.report"
    assert written[0].read_text() == "title = 'mine'"
