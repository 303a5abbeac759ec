"""Without PyTorch: analysis and the tools for chips work, and other commands say what is missing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from support.bare_environments import run, without

from weighbridge.cli._packages import EXTRAS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without(tmp_path_factory.mktemp("environment") / "no-torch", "torch", "functorch", "torchgen")


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "analysis table1",
        "analysis samples --chips 1e5 --flops 5.76e23 --probability 0.9",
        "analysis plan --budget 1e6 --chips 1e5 --flops 5.76e23",
        "analysis examples --out examples",
        "analysis figure figure2 --out figure2.svg",
        "identity create ca --name authority",
    ],
)
def test_analysis_and_identities_need_no_torch(python: Path, line: str, tmp_path: Path) -> None:
    done = run(python, *line.split(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.finding("usage.package")
@pytest.mark.parametrize("line", ["warm", "ops", "demo --out demo", "replay run"])
def test_a_command_without_torch_says_what_to_install(python: Path, line: str, tmp_path: Path) -> None:
    done = run(python, *line.split(), "--json", cwd=tmp_path) if line != "warm" else run(python, line, cwd=tmp_path)
    said = done.stderr if line == "warm" else json.loads(done.stdout)["error"]["message"]
    assert done.returncode == 2
    assert "torch, which is not installed here" in said
    assert list(tmp_path.iterdir()) == []
    if line != "warm":
        assert json.loads(done.stdout)["error"]["code"] == "usage.package"


def test_the_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(extras)
    for module, extra in EXTRAS.items():
        name = {"sklearn": "scikit-learn"}.get(module, module)
        assert any(line.startswith(name) for line in extras[extra])
