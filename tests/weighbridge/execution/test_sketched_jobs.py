"""Sketches of jobs on several ranks: replays elsewhere need no rank's log; one rank's false sketches bring in nothing.

What a collective gives is rounded by its definition, on all machines alike, and has no sketch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forging import forge
from support.on_demand import ELSEWHERE, key_of
from support.recording_store import RecordingStore
from support.sharded_runs import record
from support.sketched import garbage

from prover.keeping.collective_replay import cell_results
from weighbridge.execution.following import LOOKS
from weighbridge.execution.given_terms import GIVEN
from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
from weighbridge.execution.job_replay import JobReplayResult, replay_cell, replay_job
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import folder_of

KINDS, RANKS, STEPS = ["narrow", "narrow-fsdp"], 2, 4
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "1"}
needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")


@pytest.fixture(scope="module")
def sketched(recordings: RecordingStore) -> Path:
    """Jobs with sketches; do not change them, copy them."""
    return recordings.get("sketched", lambda path: record(KINDS, RANKS, path, logs="sketch"), KINDS, RANKS)


@pytest.fixture(scope="module")
def full(recordings: RecordingStore) -> Path:
    """The same jobs with their logs in full."""
    return recordings.get("full", lambda path: record(KINDS, RANKS, path), KINDS, RANKS)


def here(job: Path) -> dict[str, Any]:
    """The replay of a job in this process."""
    request = {"path": str(job), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30}
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return JobReplay(request, [], lambda message: None).run()


def found(result: JobReplayResult) -> set[str]:
    """The findings of all ranks."""
    ids = {each.id for rank in result.ranks if rank is not None for each in rank.findings}
    return ids - {"data.not_precommitted"}


def forged(job: Path, rank: int, target: Path, change: Callable[[dict[str, Any]], bytes], *steps: int) -> Path:
    """A copy of a job, one of whose ranks has other bytes for its sketches in some steps."""
    shutil.copytree(job, target)
    source = job / rank_name(rank)
    shutil.rmtree(target / rank_name(rank))

    def lie(step: int, _: Any, fields: dict[str, Any]) -> None:
        if step in steps:
            fields["rounding"] = change(fields)

    forge(source, target / rank_name(rank), lie, key=key_of(source))
    return target


# -- honest ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_that_of_a_job_recorded_in_full(sketched: Path, full: Path, kind: str) -> None:
    for rank in range(RANKS):
        ours, theirs = (Transcript.open(jobs / kind / rank_name(rank)) for jobs in (sketched, full))
        assert (ours.draft["format"], theirs.draft["format"]) == (3, 1)
        for a, b in zip(ours.records(), theirs.records(), strict=True):
            for name in ("tape", "values", "state", "checksums", "batch", "rounded", "collectives"):
                assert getattr(a, name) == getattr(b, name), name
            assert (len(a.outputs), a.sketches, b.sketches) == (32, 1, 0)
        sizes = [sum(len(each.named_log(step)) for step in range(STEPS)) for each in (ours, theirs)]
        assert 10 * sizes[0] < sizes[1]


@needs_mkl
def test_another_instruction_set_comes_to_the_recorded_bits_without_a_log(sketched: Path, full: Path) -> None:
    """Of FSDP2 with weights gathered and gradients summed in bfloat16."""
    result, logged = (replay_job(jobs / "narrow-fsdp", env=ELSEWHERE) for jobs in (sketched, full))
    assert (result.verdict, logged.verdict, found(result)) == ("match", "match", set())
    for ours, theirs in zip(result.ranks, logged.ranks, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.followed == theirs.followed > 0
        assert ours.state == theirs.state
        for name in ("overruled", "bits_in", "charged_bits", "charged_step_bits"):
            assert ours.evidence[name] == theirs.evidence[name] > 0


@needs_mkl
@pytest.mark.soak
def test_a_third_one_too(sketched: Path) -> None:
    assert replay_job(sketched / "narrow", env=AVX2).verdict == "match"


@needs_mkl
def test_a_rank_alone_is_replayed_with_its_own_sketches(sketched: Path, tmp_path: Path) -> None:
    job = sketched / "narrow-fsdp"
    cell_results(job, 1, (1, STEPS), tmp_path / "results")
    result = replay_cell(job, 1, results=tmp_path / "results", steps=(1, STEPS), env=ELSEWHERE)
    assert (result.verdict, result.followed > 0) == (GIVEN, True)


@needs_mkl
@pytest.mark.finding("replay.sketch.failed")
def test_where_the_sketches_of_a_rank_fail_all_ranks_make_the_logs(sketched: Path, tmp_path: Path) -> None:
    job = forged(sketched / "narrow", 1, tmp_path / "job", garbage, 2)
    result = replay_job(job, env=ELSEWHERE)
    assert (result.verdict, result.rank, found(result)) == ("inconclusive", 1, {"replay.sketch.failed"})
    assert result.first_difference is not None
    assert result.first_difference["step"] == 2
    keys = [key_of(sketched / "narrow" / rank_name(rank)) for rank in range(RANKS)]
    made = regenerate_job(ranks_of(job), keys, steps=(2, 3))
    assert [each.written for each in made] == [1] * RANKS
    assert all(each.logged > 0 for each in made)
    assert replay_job(job, env=ELSEWHERE).verdict == "match"
    shutil.rmtree(folder_of(job / rank_name(1)))
    assert replay_job(job, env=ELSEWHERE).verdict == "inconclusive"


# -- hostile -----------------------------------------------------------------------------------------------------------


@pytest.mark.finding("replay.sketch.false")
def test_sketches_of_another_rank_are_found_where_nothing_differs(sketched: Path, tmp_path: Path) -> None:
    """Ranks of one job have outputs of the same sizes, so only what is in them tells them apart."""
    other = Transcript.open(sketched / "narrow" / rank_name(0))
    named = iter([other.named_log(step) for step in range(1, STEPS)])
    job = forged(sketched / "narrow", 1, tmp_path / "job", lambda fields: next(named), *range(1, STEPS))
    results = [here(job) for _ in range(8)]
    caught = [each for each in results if each["verdict"] == "mismatch"]
    assert caught, f"some 50 sketches, each looked at once in {LOOKS}"
    assert {each["rank"] for each in caught} == {1}
    ids = {each["id"] for result in caught for each in result["ranks"][1]["findings"]}
    assert ids - {"data.not_precommitted"} == {"replay.sketch.false"}


@pytest.mark.finding("replay.sketch.malformed")
def test_a_rank_whose_sketches_break_the_rules_is_refused(sketched: Path, tmp_path: Path) -> None:
    job = forged(sketched / "narrow", 1, tmp_path / "job", lambda fields: b"", 3)
    result = here(job)
    assert (result["verdict"], result["rank"]) == ("mismatch", 1)
    assert "replay.sketch.malformed" in {each["id"] for each in result["ranks"][1]["findings"]}
