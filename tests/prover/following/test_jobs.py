"""Programs on several ranks, followed: `torchrun` starts them, one line or none records them, all ranks replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.releases import need_jobs

import prover
from benchmarks.bench_integrations import plain
from tests.prover.following.test_integrations import ADAM, EXAMPLES
from tests.prover.following.test_loops import OTHER_MACHINE
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.core.errors import UsageError
from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
from weighbridge.program.own_tensors import returned
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import key_path
from weighbridge.transcript.tape import Tape

REPOSITORY = Path(__file__).parents[3]
JOB = REPOSITORY / "tests" / "support" / "followed_job.py"


@pytest.fixture(autouse=True)
def jobs_are_recorded() -> None:
    need_jobs()


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs something on two ranks."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    whole = [*command, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(whole, env=environment, stdout=pipe, stderr=pipe, text=True) as launcher:
        try:
            out, errors = launcher.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # which ends its ranks; if killed, it leaves them to wait for each other
            out, errors = launcher.communicate(timeout=60)
            pytest.fail(f"the job hangs: {out[-3000:]}\n{errors[-6000:]}")
    return subprocess.CompletedProcess(whole, launcher.returncode, out, errors)


def recorded(*arguments: object) -> None:
    """Runs something on two ranks that ends well."""
    done = torchrun(*arguments)
    assert done.returncode == 0, done.stderr[-6000:]


def told_elsewhere(run: Path, code: int = 0) -> Any:
    """Replays all ranks with other instructions; returns what the replay says."""
    command = [sys.executable, "-W", "ignore", "-m", "weighbridge.cli", "replay", "--json", str(run)]
    ended = subprocess.run(command, env=os.environ | OTHER_MACHINE, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def elsewhere(run: Path, code: int = 0) -> tuple[str, list[dict[str, Any]]]:
    """The same; returns the verdict, and the findings above info."""
    told = told_elsewhere(run, code)
    findings = [each for rank in told["ranks"] for each in rank["findings"] if each["severity"] != "info"]
    return told["verdict"], findings


def ranks(run: Path) -> list[Transcript]:
    return [Transcript.open(run / rank_name(rank)) for rank in range(2)]


def test_a_sharded_training_is_recorded_by_one_line(tmp_path: Path) -> None:
    """FSDP2 with accumulation, clipping, a schedule, evaluations and saved checkpoints."""
    recorded("-m", "benchmarks.integrations_job", EXAMPLES / "fsdp2.py", tmp_path / "run")
    for transcript in ranks(tmp_path / "run"):
        assert transcript.steps == 6  # the last is the evaluation at the end
        taken = Tape.decode(transcript.tape(transcript.step(2).tape)).batch_views
        assert [name for name, _ in taken] == ["0.0", "1.0"]
        assert {name for name, _ in transcript.step(0).formulas} >= ADAM
        assert {shard.name for shard in transcript.layout()} > {"model.0.weight", "model.3.weight"}
    assert (tmp_path / "run-checkpoint-1" / ".metadata").is_file()
    assert elsewhere(tmp_path / "run") == ("match", [])


def test_a_script_on_several_ranks_is_recorded_with_no_changed_line(tmp_path: Path) -> None:
    script = tmp_path / "fsdp2.py"
    script.write_text(plain((EXAMPLES / "fsdp2.py").read_text())[0])
    command = ("record", "--out", tmp_path / "run", "--seed", "7", script)
    recorded("-m", "weighbridge.cli", *command)
    assert [transcript.steps for transcript in ranks(tmp_path / "run")] == [6, 6]
    assert elsewhere(tmp_path / "run") == ("match", [])


@pytest.mark.soak
def test_ranks_may_do_different_things(tmp_path: Path) -> None:
    """DDP, with dropout of each rank's own and a figure that ranks average; one of them evaluates and saves."""
    recorded(JOB, "ddp", tmp_path / "run")
    first, second = ranks(tmp_path / "run")
    assert first.steps == second.steps == 10
    assert [record.tape for record in first.records()] != [record.tape for record in second.records()]
    assert elsewhere(tmp_path / "run") == ("match", [])


def test_logs_of_a_followed_job_are_made_later(tmp_path: Path) -> None:
    """Its ranks commit to what they rounded; all of them together make the logs, which another machine replays with."""
    run = tmp_path / "run"
    recorded(JOB, "on-demand", run)
    for transcript in ranks(run):
        assert transcript.on_demand
        assert all(record.outputs and not record.logged for record in transcript.records())
    made = regenerate_job(ranks_of(run), [load_or_create_key(key_path(each)) for each in ranks_of(run)])
    assert [each.written for each in made] == [10, 10]
    told = told_elsewhere(run)
    assert told["verdict"] == "match"
    assert [each["logged"] for each in told["ranks"]] == [each.logged for each in made]
    assert sum(each.logged for each in made) > 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["tensor", "load"])
def test_sharded_programs_of_other_kinds(tmp_path: Path, kind: str) -> None:
    """Tensor parallelism; and weights that FSDP2 saved and reads back, which are the run's own."""
    recorded(JOB, kind, tmp_path / "run")
    assert elsewhere(tmp_path / "run") == ("match", [])
    assert all(bool(returned(transcript)) is (kind == "load") for transcript in ranks(tmp_path / "run"))


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("trainer", "transformers"),
        ("accelerated", "accelerate"),
        ("lightning_fit", "lightning"),
    ],
)
@pytest.mark.soak
def test_libraries_on_several_ranks_need_no_changed_line(tmp_path: Path, name: str, library: str) -> None:
    """They form the process group themselves."""
    pytest.importorskip(library, reason="of the extra `integrations`")
    pytest.importorskip("accelerate", reason="of the extra `integrations`")
    script = tmp_path / f"{name}.py"
    source = plain((EXAMPLES / f"{name}.py").read_text())[0]
    script.write_text(source.replace('accelerator="cpu"', 'accelerator="cpu", devices=2'))
    recorded("-m", "weighbridge.cli", "record", "--out", tmp_path / "run", "--seed", "7", script)
    assert elsewhere(tmp_path / "run") == ("match", [])


def test_weights_that_a_rank_sends_as_an_object_are_an_undeclared_input(tmp_path: Path) -> None:
    recorded(JOB, "smuggle", tmp_path / "run")
    verdict, findings = elsewhere(tmp_path / "run", code=1)
    assert verdict == "match"
    assert [each["id"] for each in findings] == ["tape.free_input", "tape.overwrite"] * 2


@pytest.mark.parametrize(
    ("kind", "said"),
    [("tamper", "module.0.weight was changed since step 4"), ("early", "call follow() after init_process_group()")],
)
def test_what_cannot_be_recorded_is_said(tmp_path: Path, kind: str, said: str) -> None:
    done = torchrun(JOB, kind, tmp_path / "run")
    assert done.returncode != 0
    assert said in done.stderr


def test_a_script_that_forms_no_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text("print('done')\n")
    done = torchrun("-m", "weighbridge.cli", "record", "--out", tmp_path / "run", tmp_path / "alone.py")
    assert done.returncode != 0
    assert "did not call init_process_group()" in done.stderr


def test_a_mesh_needs_a_process_group(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no process group"):
        prover.follow(tmp_path / "run", mesh={"data": 2})
    assert not (tmp_path / "run").exists()
