"""Jobs on two ranks that are taken back, branched or moved: honest ones go on, dishonest ones are found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.on_demand import key_of
from support.recording_store import RecordingStore
from support.recordings import violations
from support.sharded_runs import record

from benchmarks import soak_resume
from weighbridge.core.errors import UsageError
from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript, recover
from weighbridge.transcript.supplements import folder_of, read_statement, supplement_name

PROGRAM = Path(__file__).parents[2] / "support" / "rolled_back_job.py"
KINDS = ["whole", "rolled", "unchecked", "branched", "together", "unlike", "repoliced", "changed"]
"""After the last one there are no processes any more."""
MOVED = ["moved", "moved_bare"]
TAKEN = 4
"""The first step that is another one after a job was taken back."""


@pytest.fixture(scope="module")
def jobs(recordings: RecordingStore) -> Path:
    """One directory for each kind; do not change them, copy them."""

    def make(path: Path) -> None:
        record(KINDS, 2, path, program=PROGRAM)
        record(["right"], 2, path, program=PROGRAM)

    return recordings.get("rolled-back-jobs", make, KINDS)


@pytest.fixture(scope="module")
def moved(recordings: RecordingStore) -> Path:
    """The same of jobs of which one rank goes on on another kind of machine."""

    def make(path: Path) -> None:
        for phase in ("crash", "resume"):
            record([f"{kind}-{phase}" for kind in MOVED], 2, path, program=PROGRAM)

    return recordings.get("moved-jobs", make, MOVED)


def told(jobs: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads((jobs / kind / f"{rank}.json").read_text()) for rank in range(2)]


def replayed(path: Path) -> dict[str, Any]:
    """Replays a job in this process."""
    request = {"path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30}
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return JobReplay(request, [], lambda message: None).run()


def decided(path: Path) -> tuple[str, int, str]:
    """Returns the only violation of a job's replay, with its step and operation."""
    answer = replayed(path)
    worst = answer["ranks"][answer["rank"]]
    (found,) = violations(worst)
    return found, worst["first_difference"]["step"], worst["first_difference"]["operation"]


def ranks(path: Path) -> list[Path]:
    return [path / rank_name(rank) for rank in range(2)]


def test_a_rank_that_lost_its_last_steps_makes_them_again(jobs: Path) -> None:
    """The others keep theirs, and compare what they exchange with it."""
    assert told(jobs, "rolled") == [{}, {}]
    for run, other in zip(ranks(jobs / "rolled" / "run"), ranks(jobs / "whole" / "run"), strict=True):
        assert soak_resume.same(run, Transcript.open(other))
    assert replayed(jobs / "rolled" / "run")["verdict"] == "match"


@pytest.mark.finding("record.resume.differs")
def test_a_rank_that_makes_other_steps_in_the_place_of_lost_ones_is_refused_by_the_others(jobs: Path) -> None:
    first, second = told(jobs, "changed")
    assert first["code"] == "record.resume.differs"
    assert f"of step {TAKEN} does not give what was recorded" in first["refused"]
    assert "alone" in second or "another rank of the job has ended" in second["refused"]


def test_what_the_others_refused_was_not_recorded(jobs: Path) -> None:
    """So with the right data, all go on."""
    assert told(jobs, "right") == [{}, {}]
    assert replayed(jobs / "changed" / "run")["verdict"] == "match"


@pytest.mark.finding("replay.mismatch")
def test_where_no_rank_compares_anything_the_replay_of_the_job_does(jobs: Path) -> None:
    assert told(jobs, "unchecked") == [{}, {}]
    assert decided(jobs / "unchecked" / "run") == ("replay.mismatch", TAKEN, "weighbridge::all_reduce.default")


@pytest.mark.finding("replay.mismatch")
@pytest.mark.parametrize("branches", [("run", "branch"), ("branch", "run")])
def test_ranks_of_two_branches_of_one_job_are_no_job(jobs: Path, tmp_path: Path, branches: tuple[str, str]) -> None:
    """Drafts and the job's record cannot tell branches apart; what ranks exchanged does."""
    assert told(jobs, "branched") == [{"first": {}, "second": {}}] * 2
    for rank, branch in enumerate(branches):
        shutil.copytree(jobs / "branched" / branch / rank_name(rank), tmp_path / rank_name(rank))
    shutil.copy(jobs / "branched" / "run" / "job.cbor", tmp_path)
    found, step, operation = decided(tmp_path)
    assert (found, operation) == ("replay.mismatch", "weighbridge::all_reduce.default")
    assert step == 7


@pytest.mark.parametrize("branch", ["run", "branch"])
def test_each_branch_alone_is_a_true_training(jobs: Path, branch: str) -> None:
    assert replayed(jobs / "branched" / branch)["verdict"] == "match"


def test_branches_have_other_heads_and_one_draft(jobs: Path) -> None:
    """A chip's log and its snapshots name the head, so each of them is of one branch."""
    for run, other in zip(*(ranks(jobs / "branched" / branch) for branch in ("run", "branch")), strict=True):
        one, two = Transcript.open(run), Transcript.open(other)
        assert one.draft_digest == two.draft_digest
        assert [one.step(n).state == two.step(n).state for n in (6, 7)] == [True, False]
        assert one.manifest.head != two.manifest.head


def test_logs_of_steps_that_were_taken_back_are_not_those_of_the_steps_in_their_place(
    jobs: Path, tmp_path: Path
) -> None:
    """They are bound to the states around their step, which are others, and signed; the same key signed both."""
    shutil.copytree(jobs / "together", tmp_path / "jobs")
    run, old = tmp_path / "jobs" / "run", tmp_path / "jobs" / "abandoned"
    for rank in ranks(old):
        recover(rank, key=key_of(rank))
        shutil.rmtree(rank.with_name(rank.name + ".resume"))
    regenerate_job(ranks_of(old), [key_of(rank) for rank in ranks_of(old)], steps=(0, TAKEN + 1))
    for rank in range(2):
        shutil.copytree(folder_of(ranks(old)[rank]), folder_of(ranks(run)[rank]))
    refused = [
        f["subject"] for f in replayed(run)["ranks"][1]["findings"] if f["id"] == "transcript.supplement.foreign"
    ]
    assert refused == [supplement_name(TAKEN)]
    made = regenerate_job(ranks_of(run), [key_of(rank) for rank in ranks_of(run)])
    assert [each.written for each in made] == [Transcript.open(run).steps - TAKEN for run in ranks(run)]
    answer = replayed(run)
    assert answer["verdict"] == "match"
    assert not {f["id"] for each in answer["ranks"] for f in each["findings"]} - {"data.not_precommitted"}
    said = [read_statement(folder_of(ranks(job)[1]) / supplement_name(TAKEN)) for job in (run, old)]
    assert len({(statement.draft, statement.step, signer) for statement, signer, _ in said}) == 1
    assert len({statement.rounding for statement, _, _ in said}) == 2, "a Verifier who gets both finds equivocation"


# --- bounds of ranks --------------------------------------------------------------------------------------------------


def test_each_rank_is_replayed_under_the_bounds_of_its_own_draft(jobs: Path) -> None:
    assert told(jobs, "unlike") == [{}, {}]
    policies = [Transcript.open(run).draft["policy"] for run in ranks(jobs / "unlike" / "run")]
    assert policies == ["blocked-64", "mixed"]
    assert replayed(jobs / "unlike" / "run")["verdict"] == "match"


@pytest.mark.finding("record.resume.differs")
def test_one_rank_does_not_go_on_under_other_bounds(jobs: Path) -> None:
    for answer in told(jobs, "repoliced"):
        assert answer["code"] == "record.resume.differs"
        assert "the recording there was begun with another policy" in answer["refused"]
        assert answer["then"] == {}, "under the bounds of its draft it does"


# --- another kind of machine ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MOVED)
def test_a_rank_may_go_on_on_another_kind_of_machine(moved: Path, kind: str) -> None:
    assert told(moved, kind) == [{}, {}]
    devices = [Transcript.open(run).resumptions[0].device for run in ranks(moved / kind / "run")]
    assert devices[0] != devices[1]
    assert "cpu DEFAULT" in str(devices[1])
    assert replayed(moved / kind / "run")["verdict"] == "match"


@pytest.mark.finding("record.regenerate.device")
def test_then_its_logs_can_be_made_up_to_there_alone(moved: Path, tmp_path: Path) -> None:
    """No machine is of both kinds. So a Prover loses the logs that an inspection asks for, and what these verify."""
    shutil.copytree(moved / "moved_bare" / "run", tmp_path / "run")
    keys = [key_of(rank) for rank in ranks_of(tmp_path / "run")]
    moment = Transcript.open(ranks(tmp_path / "run")[1]).resumptions[0].step
    with pytest.raises(UsageError, match=f"step {moment} was recorded on another kind of machine") as caught:
        regenerate_job(ranks_of(tmp_path / "run"), keys)
    assert caught.value.reason == "record.regenerate.device"
    made = regenerate_job(ranks_of(tmp_path / "run"), keys, steps=(0, moment))
    assert [each.written for each in made] == [moment] * 2
