"""Jobs on two ranks that crash and are resumed end as those left alone, and what a dishonest one does is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recording_store import RecordingStore
from support.sharded_runs import record

from benchmarks import soak_resume
from weighbridge.execution.job_replay import replay_job
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript

PROGRAM = Path(__file__).parents[2] / "support" / "resumed_job.py"
REFUSED = {
    "lost": ("rank 1 lacks what step 4 begins with",) * 2,
    "beside": ("rank 1 lacks what step 4 begins with",) * 2,
    "swapped": ("rank 1 cannot go on: the recording there was begun with another job", "begun with another job"),
    "twin": ("operation 38 of step 4 does not give what was recorded",) * 2,
    "numbered": ("holds the recording of rank 1, and this", "holds the recording of rank 0, and this"),
    "meshed": ("was begun on 4 ranks (data 4), and this one has 2", "rank 0 cannot go on: the job in"),
    "apart": ("of step 6 does not give what was recorded", "of step 5 does not give what was recorded"),
}
"""Kinds, and what each rank is told."""
KINDS = ["whole", "behind", "at_once", "twice", "unsigned", *REFUSED, "rewritten", "unchecked"]
WRAPPED = ["ddp", "fsdp", "tensor"]
RESUMED = {
    "behind": [[(7, 4)], [(6, 4)]],
    "at_once": [[(2, 0)], [(1, 0)]],
    "twice": [[(7, 4), (8, 4)], [(6, 4), (7, 4)]],
}
"""Kinds, and of each rank and crash the steps that it had, and the first that it made again."""


@pytest.fixture(scope="module")
def jobs(recordings: RecordingStore) -> Path:
    """One directory for each kind; do not change them, copy them."""
    return recordings.get("resumed-jobs", lambda path: record(KINDS, 2, path, program=PROGRAM), KINDS)


@pytest.fixture(scope="module")
def wrapped(recordings: RecordingStore) -> Path:
    """The same of modules that keep more than tensors say."""

    def make(path: Path) -> None:
        for phase in ("whole", "crash", "resume"):
            record([f"{kind}-{phase}" for kind in WRAPPED], 2, path, program=PROGRAM)

    return recordings.get("resumed-modules", make, WRAPPED)


def told(jobs: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads((jobs / kind / f"{rank}.json").read_text()) for rank in range(2)]


def ranks(path: Path) -> list[Path]:
    return [path / rank_name(rank) for rank in range(2)]


def same(path: Path, reference: Path) -> bool:
    pairs = zip(ranks(path), ranks(reference), strict=True)
    return all(soak_resume.same(run, Transcript.open(other)) for run, other in pairs)


def replayed(path: Path) -> dict[str, Any]:
    """Replays a job in this process."""
    request = {"path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30}
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return JobReplay(request, [], lambda message: None).run()


@pytest.mark.parametrize("kind", RESUMED)
def test_a_resumed_job_ends_as_one_left_alone(jobs: Path, kind: str) -> None:
    """One rank had recorded a step that the other was in, or there was no whole step yet."""
    assert told(jobs, kind) == [{}, {}]
    assert same(jobs / kind / "run", jobs / "whole" / "run")
    found = [[(r.step, r.begin) for r in Transcript.open(run).resumptions] for run in ranks(jobs / kind / "run")]
    assert found == RESUMED[kind]
    assert {each.name for each in (jobs / kind / "run").iterdir()} == {"job.cbor", *map(rank_name, range(2))}


def test_a_resumed_job_is_replayed_as_any_other(jobs: Path) -> None:
    assert replay_job(jobs / "twice" / "run").verdict == "match"


@pytest.mark.parametrize("kind", WRAPPED)
def test_modules_that_keep_more_than_tensors_make_all_steps_again(wrapped: Path, kind: str) -> None:
    assert told(wrapped, kind) == [{}, {}]
    assert same(wrapped / kind / "run", wrapped / kind / "whole" / "run")
    assert [[r.begin for r in Transcript.open(run).resumptions] for run in ranks(wrapped / kind / "run")] == [[0], [0]]


def test_what_a_crash_left_unsigned_is_signed_and_nothing_else_is_done(jobs: Path) -> None:
    for answer in told(jobs, "unsigned"):
        assert "complete: there is nothing to resume; rank-0001, which a crash had left open" in answer["refused"]
    assert same(jobs / "unsigned" / "run", jobs / "whole" / "run")


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.finding("record.resume.differs")
def test_what_does_not_go_together_is_refused_by_name(jobs: Path, kind: str) -> None:
    """Another run's transcript, another numbering or mesh, a rank that lost what it had, or goes on elsewhere."""
    for answer, says in zip(told(jobs, kind), REFUSED[kind], strict=True):
        assert says in answer["refused"]
        assert answer["code"] == "record.resume.differs"


@pytest.mark.parametrize("kind", ["lost", "beside"])
def test_nothing_is_lost_by_a_refusal(jobs: Path, kind: str) -> None:
    """The first is resumed when what was lost is there again, the other when all steps are made again."""
    assert [answer["then"] for answer in told(jobs, kind)] == [{}, {}]
    assert same(jobs / kind / "run", jobs / "whole" / "run")
    begun = 4 if kind == "lost" else 0
    assert all(Transcript.open(run).resumptions[0].begin == begun for run in ranks(jobs / kind / "run"))


def test_another_mesh_of_as_many_ranks_is_refused(jobs: Path) -> None:
    for answer in told(jobs, "meshed"):
        assert "was begun on 2 ranks (tensor 2), and this one has 2 (data 2)" in answer["then"]["refused"]


@pytest.mark.finding("replay.mismatch")
def test_ranks_that_go_on_with_different_steps_and_compare_nothing_are_found(jobs: Path) -> None:
    assert told(jobs, "unchecked") == [{}, {}]
    answer = replayed(jobs / "unchecked" / "run")
    assert (answer["verdict"], answer["ranks"][answer["rank"]]["first_difference"]["step"]) == ("mismatch", 6)


@pytest.mark.finding("replay.mismatch")
def test_what_was_rewritten_before_the_resumption_is_found(jobs: Path) -> None:
    """The resumption looks at no step before its own; a replay does, and a chip's log has the running heads."""
    assert told(jobs, "rewritten") == [{}, {}]
    answer = replayed(jobs / "rewritten" / "run")
    assert (answer["verdict"], answer["rank"]) == ("mismatch", 1)
    assert answer["ranks"][1]["first_difference"]["step"] == 2
    heads = [Transcript.open(run).manifest.head for run in ranks(jobs / "rewritten" / "run")]
    assert heads[0] == Transcript.open(ranks(jobs / "whole" / "run")[0]).manifest.head
    assert heads[1] != Transcript.open(ranks(jobs / "whole" / "run")[1]).manifest.head
