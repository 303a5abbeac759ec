"""Compiled steps of jobs: each rank's transcript is that of a job recorded one by one, whatever the other ranks do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recording_store import RecordingStore
from support.sharded_runs import record

from weighbridge.execution.workers.job_worker import JobReplay

PROGRAM = Path(__file__).parents[2] / "support" / "compiled_job.py"
SAME = {
    "averaged": (3, 3), "averaged:first": (3, 0), "wrapped": (3, 3), "viewed:on-demand": (3, 3),
    "accumulated:sketch": (3, 3), "norms": (3, 3), "sharded:on-demand": (3, 3), "every": (3, 3), "apart": (3, 3),
    "uneven": (3, 4), "lopsided": (3, 0),
}  # fmt: skip
"""Kinds, and how many steps of each rank are programs."""
REFUSED = {
    "barred": "it waits at a barrier, which no tape has",
    "asked": "all_reduce.default), and that asks other ranks",
    "unused": "looks at a result (a number that was read",
}
ONCE = {"resized": "it resizes memory, as FSDP2 does", "parallel": "it computes with DTensors"}
"""The same of kinds whose modules set up the process once: a second recording in a process has another step 0."""
WRAPPERS = {"held": 3, "swapped": 1}
"""Kinds whose weights lie in `DTensor`s that they do not compute with, and how many steps are programs."""
APART = [*ONCE, *WRAPPERS, "given"]


@pytest.fixture(scope="module")
def jobs(recordings: RecordingStore) -> Path:
    """One directory for each kind; do not change them, copy them."""
    return recordings.get("compiled-jobs", lambda path: record([*SAME], 2, path, program=PROGRAM), [*SAME])


@pytest.fixture(scope="module")
def refused(recordings: RecordingStore) -> Path:
    """The same for kinds that cannot be compiled."""
    return recordings.get("refused-jobs", lambda path: record([*REFUSED], 2, path, program=PROGRAM), [*REFUSED])


@pytest.fixture(scope="module")
def apart(recordings: RecordingStore) -> Path:
    """For each way, plain and compiled, one directory for each kind, recorded by processes of its own."""

    def make(path: Path) -> None:
        for way in ("plain", "compiled"):
            record([f"{kind}:{way}" for kind in APART], 2, path / way, program=PROGRAM)

    return recordings.get("jobs-apart", make, APART)


def answers(jobs: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads((jobs / kind.replace(":", "-") / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", SAME)
def test_transcripts_are_those_of_jobs_recorded_one_by_one(jobs: Path, kind: str) -> None:
    found = answers(jobs, kind)
    assert [each["differ"] for each in found] == [[], []]
    assert tuple(each["compiled"] for each in found) == SAME[kind], found


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_program_can_do_is_recorded_as_ever_with_a_warning_by_name(refused: Path, kind: str) -> None:
    """An error on one rank would leave the others in their next collective, to wait for it."""
    for rank, answer in enumerate(answers(refused, kind)):
        assert answer["differ"] == []
        (warned,) = answer["warned"]
        assert f"rank {rank} records every call as ever" in warned
        assert REFUSED[kind] in warned
        assert REFUSED[kind] in answer["reasons"][-1]
        assert (answer["compiled"], answer["recorded"]) == (0, len(answer["reasons"]))


def ways(apart: Path, kind: str) -> list[list[dict[str, Any]]]:
    """Returns of each way what each rank found."""
    return [answers(apart / way, f"{kind}:{way}") for way in ("plain", "compiled")]


@pytest.mark.parametrize("kind", ONCE)
def test_fsdp2_and_tensor_parallelism_are_refused_and_recorded_as_ever(apart: Path, kind: str) -> None:
    for rank, (plain, compiled) in enumerate(zip(*ways(apart, kind), strict=True)):
        assert plain["content"]
        assert (compiled["content"], compiled["results"]) == (plain["content"], plain["results"])
        (warned,) = compiled["warned"]
        assert f"rank {rank} records every call as ever" in warned
        assert ONCE[kind] in warned
        assert (compiled["compiled"], compiled["recorded"]) == (0, len(compiled["reasons"]))


@pytest.mark.parametrize("kind", WRAPPERS)
def test_dtensors_that_only_hold_weights_are_no_hindrance(apart: Path, kind: str) -> None:
    """The function computes with their local parts; if another part takes the place of one, that is noticed."""
    for plain, compiled in zip(*ways(apart, kind), strict=True):
        assert plain["content"]
        assert (compiled["content"], compiled["results"]) == (plain["content"], plain["results"])
        assert compiled["compiled"] == WRAPPERS[kind], compiled["reasons"]


def test_a_dtensor_in_a_batch_is_refused_by_name_in_either_way(apart: Path) -> None:
    for answer in [each for way in ways(apart, "given") for each in way]:
        assert answer["failed"].startswith("usage: x of the batch is a DTensor, which wraps other tensors")


def test_a_function_that_is_refused_on_one_rank_keeps_no_other_from_its_programs(jobs: Path) -> None:
    first, second = answers(jobs, "lopsided")
    assert first["warned"] == []
    assert [each.partition(", since ")[0] for each in second["warned"]] == ["rank 1 records every call as ever"]
    assert "do that outside" in second["reasons"][-1]


@pytest.mark.parametrize("kind", ["wrapped", "every"])
def test_such_a_job_is_replayed_as_any_other(jobs: Path, kind: str) -> None:
    request = {
        "path": str(jobs / kind / "compiled" / "run"), "steps": None, "device": "cpu", "stop": None, "salt": None,
        "memory": 1 << 30,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        result = JobReplay(request, [], lambda message: None).run()
    assert result["verdict"] == "match"
    assert [answer["verdict"] for answer in result["ranks"]] == ["match"] * 2
