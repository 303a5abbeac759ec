"""Scripts run as they are, docs/economics.md is what its script writes, and the notebook executes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import benchmark_results, economics, figure_files
from analysis.benchmark_results import ResultError
from analysis.scripts import economics_page, economics_runs, paper_figures

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "analysis" / "notebooks").glob("*.ipynb"))


def script(name: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", f"analysis.scripts.{name}", *arguments],
        capture_output=True, text=True, check=True, cwd=ROOT, env=environment, timeout=120,
    )  # fmt: skip
    return done.stdout


def test_samples_for_a_fleet() -> None:
    lines = script("samples_for_a_fleet").splitlines()
    assert lines[3].split() == ["100,000", "3,928", "1,071", "1,018"]


def test_models_caught(tmp_path: Path) -> None:
    printed = script("models_caught")
    assert "Chinchilla-10T" in printed
    assert "does not fit on these chips" in printed
    newer = tmp_path / "newer.csv"
    newer.write_text("Model,Organization,Publication date,Training compute (FLOP)\nNew,X,2027-01-01,1e25\n")
    assert script("models_caught", str(newer)).count("seen with p") == 1


def test_paper_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the figures, to save time; each is drawn in test_figures."""
    names = ("samples", "stretch")
    monkeypatch.setattr(figure_files, "DRAWINGS", {name: figure_files.DRAWINGS[name] for name in names})
    paper_figures.main([str(tmp_path / "a")])
    paper_figures.main([str(tmp_path / "b"), str(ROOT / "analysis" / "scenarios" / "treaty.toml")])
    for directory in (tmp_path / "a", tmp_path / "b"):
        made = {path.name for path in directory.iterdir()}
        assert made == {f"{name}{suffix}" for name in names for suffix in (".svg", ".pdf")}
    assert (tmp_path / "a" / "stretch.svg").read_bytes() != (tmp_path / "b" / "stretch.svg").read_bytes()


def test_the_page_of_economics_is_what_its_script_writes() -> None:
    page = economics_page.page(ROOT / "benchmarks" / "results")
    assert page == (ROOT / "docs" / "economics.md").read_text(encoding="utf-8"), (
        "run python -m analysis.scripts.economics_page"
    )


def test_a_changed_result_changes_the_page(tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(ROOT / "benchmarks" / "results", results)
    steps = json.loads((results / "steps.json").read_text())
    times = steps["models"]["gpt2"]["milliseconds"]
    times["recorded"]["median"] = 7 * times["plain"]["median"]
    (results / "steps.json").write_text(json.dumps(steps))
    out = tmp_path / "page.md"
    economics_page.main(["--results", str(results), "--out", str(out)])
    row = next(line for line in out.read_text().splitlines() if line.startswith("| gpt2 |"))
    assert row.split(" | ")[3] == "7"
    (results / "shapes.json").unlink()
    with pytest.raises(ResultError, match=r"shapes\.json"):
        economics_page.page(results)


def test_the_arithmetic_that_the_page_shows() -> None:
    page = (ROOT / "docs" / "economics.md").read_text(encoding="utf-8")
    run = economics.compute_optimal(1e25)
    assert run.shape.parameters == pytest.approx((1e25 / 120) ** 0.5)
    assert f"N = sqrt(1e25 / 120) = {run.shape.parameters:.3g}" in page
    assert f"chip-days = 1e25 / (1e+15 x 86400) = {1e25 / (1e15 * 86400):,.0f}" in page
    assert f"zkDL: 1e25 / 3.84e+09 x 1 s = {1e25 / 3.84e9:.3g} s" in page
    checkpoints = run.steps / 100 * run.shape.parameters * 12
    assert f"x N x 12 bytes = {checkpoints / 1e15:.3g} PB" in page
    model = json.loads((ROOT / "benchmarks" / "results" / "sketched_logs.json").read_text())["models"]
    sizes = model["gpt2-11m, bf16 autocast"]["bytes_a_step"]
    found = economics_runs.run(1e25, *_fitted(), sizes["sketch"] / sizes["full"])
    assert found["sketched"] == pytest.approx(found["logs"]["bf16 calibrated"] * sizes["sketch"] / sizes["full"])
    assert f"Sketched logs, bf16: 3.20% of 82.4 EB = {found['sketched'] / 1e18:.3g} EB" in page


def _fitted() -> tuple[dict[str, dict[str, economics.Counts]], dict[str, economics.RecordSize]]:
    _, logs = benchmark_results.log_sizes(ROOT / "benchmarks" / "results")
    return {name: economics_runs.fitted(rows) for name, rows in logs.items()}, economics_runs.recorded(logs)


def test_what_an_inspection_costs_the_prover_is_share_times_ratio_in_chip_days() -> None:
    cost = economics_runs.regenerated(0.001, 2.0, 5.0)
    assert cost["inspection"] == pytest.approx(0.001 * 5 * 1e25 / (1e15 * 86400))
    assert cost["inspection_share"] == pytest.approx(0.0025)
    assert cost["repeats"] == pytest.approx(cost["inspection"] * economics_runs.REPEAT_SHARE / 0.001)
    assert cost["repeats_share"] == pytest.approx(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
@pytest.mark.soak
def test_notebooks_execute(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed: pip install 'weighbridge[dev]'")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs before committing"
    client = nbclient.NotebookClient(
        notebook, timeout=120, startup_timeout=120, kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )  # fmt: skip
    client.execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "1071 chips every 30 days" in printed
    assert "GPT-3            printed 24300.0" in printed
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/svg+xml" in data for data in shown) == 2


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
