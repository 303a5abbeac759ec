"""The GPU tests' own functions, tried on the CPU alone, so that they work when there is a GPU.

This is no statement about GPUs. But where a device other than the CPU takes another way through the code (PyTorch
operations instead of compiled kernels), that way is taken here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu import both_ways, trainings

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", sorted(trainings.KINDS))
def test_every_kind_of_training_replays(kind: str, tmp_path: Path) -> None:
    both_ways.record(tmp_path / "run", kind, "cpu", half=False)
    both_ways.replays(tmp_path / "run", "cpu")


def test_one_in_bfloat16_replays_and_other_data_do_not(tmp_path: Path) -> None:
    both_ways.record(tmp_path / "run", "gpt2", "cpu", half=True)
    both_ways.replays_confined(tmp_path / "run", "cpu")
    both_ways.catches_other_data(tmp_path / "run", "cpu")


def test_the_ways_of_other_devices_agree_with_the_compiled_ones() -> None:
    both_ways.quotients_agree("cpu")
    both_ways.passes_agree("cpu")
    both_ways.last_writes_win("cpu")
    both_ways.draws_agree("cpu")
    both_ways.exact_operations_agree("cpu")
    both_ways.ties_agree("cpu")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device on this machine")
@pytest.mark.parametrize("module", ["gpu_subjects", "gpu_replay", "gpu_steps"])
def test_benchmarks_end_with_2_where_there_is_no_gpu(module: str) -> None:
    run = _run(f"benchmarks.{module}")
    assert run.returncode == 2, run.stderr[-2000:]
    assert "no CUDA device here" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", [pytest.param("gpu_replay", marks=pytest.mark.soak), "gpu_steps"])
def test_a_dry_run_says_that_it_is_one_and_writes_no_result(module: str) -> None:
    results = ROOT / "benchmarks" / "results"
    before = {path.name: path.stat().st_mtime_ns for path in results.glob("gpu*.json")}
    run = _run(f"benchmarks.{module}", "--dry-run", "--only", "gpt2-124m-bf16")
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.startswith("DRY RUN")
    assert "cuda" not in run.stdout
    assert {path.name: path.stat().st_mtime_ns for path in results.glob("gpu*.json")} == before
