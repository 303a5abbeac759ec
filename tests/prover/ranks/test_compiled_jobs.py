"""Compiled steps of jobs: each rank's transcript is that of a job recorded one by one, whatever the other ranks do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recording_store import RecordingStore
from support.sharded_runs import record
from torch import Tensor

from prover.keeping import collective_replay
from weighbridge.core.errors import TranscriptError
from weighbridge.execution.given_results import write_results
from weighbridge.execution.given_terms import GIVEN
from weighbridge.execution.straight_line.general import Exchanged
from weighbridge.execution.virtual_ranks import Rendezvous
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.collectives import Call
from weighbridge.transcript.job_record import MeshCoordinate, rank_name, read_job
from weighbridge.transcript.tensor_file import TensorFile

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
LAST = 6
"""The last step that all kinds have whose replays are looked at."""
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


class _False(Rendezvous):
    """Where one rank gets another result, in the last step."""

    def exchange(self, rank: int, step: int, call: Call, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> list[Tensor]:
        results = super().exchange(rank, step, call, ins, outs)
        return [each + 1 for each in results] if (rank, step) == (1, LAST) and call.op > 0 else results


def replayed(path: Path, *, programs: bool, rendezvous: Rendezvous | None = None) -> tuple[dict[str, Any], list[int]]:
    """Returns what a replay of a job says, and how many collectives the programs of each rank have."""
    request = {"path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30}
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        replay = JobReplay(request, [], lambda message: None, rendezvous)
        executors = [each._executor for each in replay._replays]
        for executor in executors:
            executor.programs = programs
        said = replay.run()
    for answer in filter(None, said["ranks"]):
        for drawn in ("only_logged", "only_here", "both"):  # of outputs that each replay draws for itself
            del answer["evidence"][drawn]
    made = [[each for each in executor.made.values() if each is not None] for executor in executors]
    return said, [sum(isinstance(i, Exchanged) for p in each for i in p._instructions) for each in made]


REPLAYED = ["averaged", "wrapped", "viewed:on-demand", "accumulated:sketch", "sharded:on-demand", "every", "uneven"]


@pytest.mark.parametrize("kind", REPLAYED)
def test_a_replay_says_the_same_with_programs_and_operation_by_operation(jobs: Path, kind: str) -> None:
    """A program ends at each collective, where a rank waits for the others."""
    path = jobs / kind.replace(":", "-") / "compiled" / "run"
    for rendezvous, verdict in ((None, "match"), (_False, "mismatch")):
        (said, exchanged), (one_by_one, none) = (
            replayed(path, programs=each, rendezvous=rendezvous and rendezvous(2)) for each in (True, False)
        )
        assert said["verdict"] == verdict
        if rendezvous is not None:
            assert said["rank"] == 1
            assert said["ranks"][1]["first_difference"]["step"] == LAST
        assert said == one_by_one
        assert min(exchanged) > 0
        assert not any(none)


def test_a_cell_says_the_same_with_programs_and_operation_by_operation(jobs: Path, tmp_path: Path) -> None:
    """It takes the results of collectives from a file; one that the record does not name is refused, wherever it is."""
    path, results = jobs / "wrapped" / "compiled" / "run", tmp_path / "results"
    steps = (0, LAST + 1)
    collective_replay.cell_results(path, 1, steps, results)
    coordinate = MeshCoordinate(read_job(path), 1)
    request = {
        "path": str(path / rank_name(1)), "coordinate": [coordinate.job.encode().hex(), 1], "steps": steps,
        "results": str(results), "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30,
    }  # fmt: skip

    def cell(*, programs: bool) -> tuple[Replay, dict[str, Any]]:
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
            replay = Replay(request, [], lambda message: None)
            replay._executor.programs = programs
            return replay, replay.run()

    (replay, said), (_, one_by_one) = (cell(programs=each) for each in (True, False))
    assert said["verdict"] == one_by_one["verdict"] == GIVEN
    assert said["state"] == one_by_one["state"]
    assert any(isinstance(i, Exchanged) for p in replay._executor.made.values() if p for i in p._instructions)
    file = TensorFile(results)
    given = {tuple(map(int, name.split("/"))): file.read(name).clone() for name in file}
    given[max(given)][3] ^= 1
    write_results(results, coordinate, given)
    refused = []
    for programs in (True, False):
        with pytest.raises(TranscriptError) as raised:
            cell(programs=programs)
        assert raised.value.reason == "job.results.mismatch"
        refused.append(raised.value.message)
    assert refused[0] == refused[1]
    assert f"step {LAST}" in refused[0]
