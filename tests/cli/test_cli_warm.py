"""Kernels that are compiled are announced on standard error; where nothing has to be compiled, nothing is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = "weighbridge: compiling kernels for this machine, once: "


def weighbridge(*arguments: str, **environment: str) -> tuple[dict[str, object], str]:
    """Runs a command with `--json` in a process of its own; returns its answer and its standard error."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "weighbridge.cli", *arguments, "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    return json.loads(ran.stdout), ran.stderr.strip()


def test_nothing_is_said_where_everything_is_compiled(honest_run: Path) -> None:
    weighbridge("warm")
    again, said = weighbridge("warm")
    assert (again["compiled"], said) == (0, "")
    assert again["seconds"] >= 0  # type: ignore[operator]
    replayed, said = weighbridge("replay", str(honest_run))
    assert (replayed["verdict"], said) == ("match", "")


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])  # by the process that workers are forked from, and by the worker
def test_the_first_replay_on_a_machine_says_what_it_compiles(honest_run: Path, tmp_path: Path, threads: str) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": threads}
    replayed, said = weighbridge("replay", str(honest_run), **environment)
    assert replayed["verdict"] == "match"
    lines = said.splitlines()
    done, total = lines[-1].removeprefix(TEXT).partition(",")[0].split("/")
    assert len(lines) > 2
    assert all(line.startswith(TEXT) for line in lines)
    assert done == total
    assert weighbridge("warm", **environment) == ({"compiled": 0, "seconds": pytest.approx(0, abs=60)}, "")


@pytest.mark.slow
def test_warm_compiles_what_a_first_replay_would(honest_run: Path, tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    made, said = weighbridge("warm", **environment)
    assert int(str(made["compiled"])) > 20
    assert said.startswith(TEXT + "0/")
    replayed, said = weighbridge("replay", str(honest_run), **environment)
    assert (replayed["verdict"], said) == ("match", "")
