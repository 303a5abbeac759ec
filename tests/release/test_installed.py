"""The wheel, installed with each extra into an environment that has nothing else, works outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.bare_environments import run

from release import distributions

ROOT = Path(__file__).resolve().parents[2]
DEVELOPMENT = {"dev", "fuzz"}
"""Extras that serve work on the checkout, whose packages `.venv` has."""
SCRIPT = """
import torch
torch.manual_seed(0)
data = [(torch.randn(4, 3), torch.randint(2, (4,))) for _ in range(3)]
loader = torch.utils.data.DataLoader(data, batch_size=None)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters())
for x, y in loader:
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(set(project["optional-dependencies"]) - DEVELOPMENT)


def checked(command: Sequence[str | Path], cwd: Path = ROOT) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def install(python: Path, wheel: Path, extra: str = "") -> None:
    """Installs the wheel as the README says, with tested versions of all else."""
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    checked([python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", what])
    checked([python, "-m", "pip", "check"])


def environment(path: Path, beneath: Path | None = None) -> Path:
    """Makes an environment at `path`, with what lies `beneath` if anything does; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    if beneath is not None:
        (site,) = (path / "lib").glob("python*/site-packages")
        (below,) = (beneath / "lib").glob("python*/site-packages")
        (site / "beneath.pth").write_text(f"{below}\n")
    return path / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    distributions.tracked(ROOT, root / "tree")
    return distributions.wheel(root / "tree", root / "out", 1_700_000_000)


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, no extra."""
    path = tmp_path_factory.mktemp("plain") / "environment"
    install(environment(path), wheel)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere"
    path.mkdir()
    return path


def ran(python: Path, *arguments: str, cwd: Path, seconds: float = 120) -> str:
    done = run(python, *arguments, cwd=cwd, seconds=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def recorded(python: Path, script: Path, elsewhere: Path) -> None:
    """Records a script that is not changed, and replays what was recorded."""
    ran(python, "record", "--out", "run", str(script), cwd=elsewhere, seconds=300)
    assert "match" in ran(python, "replay", "run", cwd=elsewhere)


@pytest.mark.slow
def test_without_an_extra_a_script_is_recorded_and_replayed(plain: Path, elsewhere: Path) -> None:
    script = elsewhere / "script.py"
    script.write_text(SCRIPT)
    recorded(plain / "bin" / "python", script, elsewhere)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("extra", extras())
def test_an_extra_brings_what_it_is_for(extra: str, wheel: Path, plain: Path, elsewhere: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", beneath=plain)
    install(python, wheel, extra)
    if extra == "demo":
        ran(python, "warm", cwd=elsewhere, seconds=600)
        ran(python, "demo", "--out", "demo", cwd=elsewhere, seconds=900)
        assert (elsewhere / "demo" / "report.html").is_file()
    elif extra == "integrations":
        for name in ("trainer.py", "accelerated.py", "lightning_fit.py"):
            shutil.copyfile(ROOT / "examples" / name, elsewhere / name)
            checked([python, name], cwd=elsewhere)
    elif extra == "parquet":
        chips = ["--vary", "samples=1,2", "--chips", "1000", "--flops", "1e24"]
        ran(python, "analysis", "sweep", *chips, "--out", "p.parquet", cwd=elsewhere)
        assert (elsewhere / "p.parquet").read_bytes().startswith(b"PAR1")
    elif extra == "console":
        served = "from verifier.console import pages, serving; from importlib.resources import files\n"
        kept = "assert all((files(pages.__package__) / 'static' / name).is_file() for name in pages._FILES)"
        checked([python, "-c", served + kept], cwd=elsewhere)
    elif extra == "postgres":
        checked([python, "-c", "import psycopg, verifier.store.database; assert psycopg.pq.__impl__ == 'binary'"])
    elif extra == "jax":
        golden = ROOT / "tests" / "golden" / "on-chip"
        assert "match" in ran(python, "replay", str(golden), "--executor", "jax", cwd=elsewhere)
    elif extra == "drand":
        checked([python, "-c", "from weighbridge.attest import drand_signatures as d; assert d.possible(d.SCHEMES[1])"])
    else:
        assert extra == "ray"
        checked([python, "-c", "import verifier.farm.ray_driver"], cwd=elsewhere)
