"""Inspections of jobs with logs on demand: the logs of all ranks are asked for, as they are replayed together."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exactly import found
from support.on_demand import ELSEWHERE, flipped, key_of, resigned
from support.recording_store import RecordingStore
from support.sharded_runs import record
from support.written_chips import Bench, WrittenChip

from verifier.model.policies import SegmentPolicy
from verifier.model.supplement_facts import MISSING, REFUSED
from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.supplements import key_path

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")

KINDS, RANKS = ["tied", "fsdp"], 2
USUAL = {"data.not_precommitted"}


@pytest.fixture
def job(recordings: RecordingStore, bench: Bench, tmp_path: Path) -> Path:
    """A job on two ranks without logs, with the keys of its ranks. Each test has the same: later ones know its logs."""
    stored = recordings.get("bare", lambda path: record(KINDS, RANKS, path, on_demand=True), KINDS, RANKS)
    return Path(shutil.copytree(stored / "tied", tmp_path / "runs" / "job"))


def made(job: Path) -> None:
    """Makes all logs, as an honest Prover does."""
    ranks = ranks_of(job)
    regenerate_job(ranks, [key_of(each) for each in ranks])


def inspected(bench: Bench, job: Path, *chips: WrittenChip, **also: Any) -> dict[str, Any]:
    """The report of a Verifier with a machine of another kind."""
    return bench.inspected(job.parent, *chips, apart=True, replay_env=ELSEWHERE, **also)


def requests(report: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """What was asked for, and how much came: (rank, first step, step after the last one, supplements)."""
    names = {each["id"]: each["name"] for each in report["transcripts"]}
    asked = report["evidence"]["supplements"]["requests"]
    return [(names[each["transcript"]], each["begin"], each["end"], each["came"]) for each in asked]


def test_the_logs_of_all_ranks_are_asked_for_and_lead_to_a_match(bench: Bench, job: Path) -> None:
    report = inspected(bench, job, *(bench.at_end(each) for each in ranks_of(job)))
    assert (report["verdict"], found(report) - USUAL) == ("clean", set()), report["findings"]
    assert all(each["verified"] for each in report["chips"])
    assert requests(report) == [("rank-0000", 3, 4, 1), ("rank-0001", 3, 4, 1)]
    assert {each["snapshots"][0]["replay"]["verdict"] for each in report["chips"]} == {"match"}


def test_segments_are_replayed_with_the_logs_of_all_ranks(bench: Bench, job: Path) -> None:
    made(job)
    policy = SegmentPolicy(random=0, largest=1, recognise=0)
    report = inspected(bench, job, bench.at_end(job / rank_name(0)), segments=policy)
    assert (report["verdict"], found(report) - USUAL) == ("clean", set()), report["findings"]
    assert sorted(requests(report)) == [
        (rank_name(n), *steps) for n in range(RANKS) for steps in ((1, 3, 2), (3, 4, 1))
    ]
    assert {each["verdict"] for each in report["evidence"]["segments"][0]["verdicts"]} == {"match"}


def test_a_rank_that_is_replayed_alone_needs_its_own_log_only(bench: Bench, job: Path) -> None:
    report = inspected(bench, job, bench.at_end(job / rank_name(1)), sharded="cells", chunks=4)
    assert found(report) - USUAL == set(), report["findings"]
    assert [each[0] for each in requests(report)] == ["rank-0001"]
    assert report["chips"][0]["snapshots"][0]["replay"]["verdict"] == "match given collectives"


def test_a_prover_that_lacks_the_key_of_one_rank_verifies_nothing(bench: Bench, job: Path) -> None:
    chips = [bench.at_end(each) for each in ranks_of(job)]
    key_path(job / rank_name(1)).unlink()
    report = inspected(bench, job, *chips)
    assert found(report) - USUAL == {REFUSED, MISSING, "replay.log.absent"}, report["findings"]
    assert not any(each["verified"] for each in report["chips"])
    assert [each[3] for each in requests(report)] == [0, 0]


def test_something_else_than_a_log_counts_against_the_rank_that_it_came_for(bench: Bench, job: Path) -> None:
    made(job)
    chip = bench.at_end(job / rank_name(0))
    resigned(job / rank_name(1), 3, said=lambda said: replace(said, logged=said.logged + 1))
    report = inspected(bench, job, chip)
    assert {"transcript.supplement.malformed", REFUSED} <= found(report), report["findings"]
    assert dict((each[0], each[3]) for each in requests(report)) == {"rank-0000": 1, "rank-0001": 0}


def test_the_false_log_of_one_rank_accuses_the_job(bench: Bench, job: Path) -> None:
    made(job)
    chip = bench.at_end(job / rank_name(0))
    resigned(job / rank_name(1), 3, entries=flipped)
    report = inspected(bench, job, chip)
    assert "replay.mismatch" in found(report), report["findings"]
    (difference,) = [each for each in report["findings"] if each["id"] == "replay.mismatch"]
    assert "rank 1" in difference["subject"] or "rank 1" in difference["message"]
