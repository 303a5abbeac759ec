"""Kernels that are compiled are announced on standard error; where nothing has to be compiled, nothing is said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from weighbridge.transcript.reader import Transcript

FORGOTTEN = ("canonical_nan", "cbor_items", "philox")
"""Modules whose kernels a machine may lack; recordings and replays use all of them."""

pytestmark = pytest.mark.soak  # to compile all kernels takes a minute and more

TEXT = "weighbridge: compiling kernels for this machine, once: "


def weighbridge(*arguments: str, **environment: str) -> tuple[dict[str, object], str]:
    """Runs a command with `--json` in a process of its own; returns its answer and its standard error."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "weighbridge.cli", *arguments, "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    return json.loads(ran.stdout), ran.stderr.strip()


def kernels(cache: Path) -> set[str]:
    return {file.name for file in cache.rglob("*.nbc")}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object], str]:
    """The kernels of a machine on which only `weighbridge warm` has run, and what it said."""
    cache = tmp_path_factory.mktemp("kernels")
    return cache, *weighbridge("warm", NUMBA_CACHE_DIR=str(cache))


@pytest.fixture
def lacking(filled: tuple[Path, dict[str, object], str], tmp_path: Path) -> Path:
    """The same without some of them: to compile them all takes half a minute."""
    cache = Path(shutil.copytree(filled[0], tmp_path / "kernels"))
    for module in FORGOTTEN:
        gone = list(cache.rglob(f"{module}.*.nb[ci]"))
        assert gone, module
        for file in gone:
            file.unlink()
    return cache


@pytest.mark.slow
def test_warm_compiles_what_a_first_replay_would(filled: tuple[Path, dict[str, object], str], honest_run: Path) -> None:
    """All that a replay needs is compiled before the worker is confined, and kept for the next one."""
    cache, made, said = filled
    assert int(str(made["compiled"])) > 20
    assert float(str(made["seconds"])) > 0
    assert said.startswith(TEXT + "0/")
    before, environment = kernels(cache), {"NUMBA_CACHE_DIR": str(cache)}
    replayed, said = weighbridge("replay", str(honest_run), **environment)
    assert (replayed["verdict"], said) == ("match", "")
    again, said = weighbridge("warm", **environment)
    assert (again["compiled"], said) == (0, "")
    assert kernels(cache) == before != set()


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])  # by the process that workers are forked from, and by the worker
def test_the_first_replay_on_a_machine_says_what_it_compiles(honest_run: Path, lacking: Path, threads: str) -> None:
    environment = {"NUMBA_CACHE_DIR": str(lacking), "OMP_NUM_THREADS": threads}
    replayed, said = weighbridge("replay", str(honest_run), **environment)
    assert replayed["verdict"] == "match"
    lines = said.splitlines()
    done, total = lines[-1].removeprefix(TEXT).partition(",")[0].split("/")
    assert len(lines) >= 2
    assert all(line.startswith(TEXT) for line in lines)
    assert done == total
    again, said = weighbridge("warm", **environment)
    assert (again["compiled"], said) == (0, "")


@pytest.mark.slow
def test_the_first_recording_on_a_machine_is_like_the_next(lacking: Path, tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join(map(str, (tests.parent, tests)))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(lacking), "PYTHONPATH": paths}
    heads, said = [], []
    for number in range(2):
        run = tmp_path / str(number) / "run"
        command = [sys.executable, "-W", "ignore", "-m", "support.first_recording", str(run)]
        ran = subprocess.run(command, env=environment, check=True, timeout=300, stderr=subprocess.PIPE, text=True)
        heads.append(Transcript.open(run).manifest.head)
        said.append(ran.stderr.splitlines())
    assert heads[0] == heads[1]
    assert said[0][0].startswith(TEXT)
    assert said[1] == []
