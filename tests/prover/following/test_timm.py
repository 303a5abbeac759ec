"""timm, in an environment of its own: it needs torchvision, which the package index does not have for a CPU build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import beside_cpu
from tests.prover.following.test_integrations import ADAM, EXAMPLES, elsewhere
from tests.prover.following.test_loops import graver
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

pytestmark = pytest.mark.skipif(
    not beside_cpu.fits(), reason=f"its torchvision is made for PyTorch {beside_cpu.TORCH}x"
)

PROGRAMS = Path(__file__).parents[2] / "support" / "timm_programs.py"

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(pytestconfig: pytest.Config) -> Run:
    environment = os.environ | dict(beside_cpu.environment(Path(pytestconfig.cache.mkdir("timm"))))  # type: ignore[union-attr]

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.soak
def test_mixup_and_averaged_weights_are_recorded_by_one_line(run: Run, tmp_path: Path) -> None:
    """With accumulation, clipping, timm's own schedule and optimizer, evaluations and a saved checkpoint."""
    run("-m", "benchmarks.integrations_job", str(EXAMPLES / "timm_mixup.py"), str(tmp_path / "run"))
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.steps == 9
    taken = Tape.decode(transcript.tape(transcript.step(4).tape)).batch_views
    assert [name for name, _ in taken] == ["0.0", "0.1", "1.0", "1.1"]
    assert {name for name, _ in transcript.step(0).formulas} >= ADAM
    assert (tmp_path / "run-average.pt").is_file()
    result = elsewhere(tmp_path / "run")
    assert result["verdict"] == "match"
    assert {finding["severity"] for finding in result["findings"]} == {"info"}


@pytest.mark.parametrize(("how", "findings"), [("batches", []), ("bare", ["tape.free_input"])])
def test_numbers_that_mixup_draws_in_the_loop_have_no_origin(
    run: Run, tmp_path: Path, how: str, findings: list[str]
) -> None:
    """A Verifier cannot tell them from numbers that were chosen; told of the mixed batches, it has them as data."""
    run(str(PROGRAMS), "mix", how, str(tmp_path / "run"))
    assert graver(tmp_path / "run") == findings


def test_schedules_are_read_from_their_schedulers(run: Run) -> None:
    told = json.loads(run(str(PROGRAMS), "schedules"))
    for name in ("cosine", "warmed", "cycles", "steps"):
        assert {"lr", "lr1"} <= set(told[name]["formulas"]), name
        assert told[name]["apart"] < 1e-12, name
    assert told["cosine"]["counts"] == [40]  # from there on the rate is the least one
    for name in ("noisy", "growing", "plateau"):  # nothing is declared that would be false
        assert told[name]["formulas"] == [], name
