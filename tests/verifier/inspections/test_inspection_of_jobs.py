"""Inspections of a job on two ranks, each on its own chip: Provers that lie about its shards, and logs on demand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exactly import found
from support.on_demand import ELSEWHERE, flipped, key_of, resigned
from support.recording_store import RecordingStore
from support.releases import need_jobs
from support.sharded_runs import record
from support.station import ROOT, Station, ids
from support.written_chips import Bench, WrittenChip

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from prover.keeping.archive import Archive
from prover.service import ALLOW, ProverService
from verifier.farm.sharded_jobs import of_rank
from verifier.model.policies import SegmentPolicy
from verifier.model.supplement_facts import MISSING, REFUSED
from verifier.store.cache import Cache
from weighbridge.attest.identity import Credentials
from weighbridge.core.bound_failure import false_accusation
from weighbridge.core.errors import Finding, ReplayWorkerError
from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
from weighbridge.execution.job_replay import JobReplayResult
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.rpc import endpoints
from weighbridge.transcript.job_record import rank_name, read_job
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import key_path

RANKS = 2
needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """A station on whose chips a job has run: one rank each, with one snapshot in step 2."""
    need_jobs()
    with Station(tmp_path_factory.mktemp("station")) as station:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        processes = []
        for rank in range(RANKS):
            chip = station.chip(f"rank-{rank}")
            command = [sys.executable, "-m", "weighbridge.cli.demo.job", "sharded", "--socket", str(chip.socket)]
            command += ["--out", str(station.runs / "job"), "--steps", "3", "--snapshot-in", "2"]
            command += ["--rank", str(rank), "--ranks", str(RANKS), "--meeting", str(station.root / "meeting")]
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL))
        assert [process.wait(timeout=300) for process in processes] == [0] * RANKS
        yield station


@contextmanager
def prover(station: Station, answer: Callable[[prover_pb2.ExplainResponse, Archive], None]) -> Iterator[None]:
    """A Prover that changes its explanations, registered for all chips."""

    class Changing(ProverService):
        def Explain(self, request: Any, context: Any) -> prover_pb2.ExplainResponse:  # noqa: N802
            response = super().Explain(request, context)
            answer(response, self._archive)
            return response

    server, address = endpoints.server(Credentials.load(station.root / "prover"), allow=ALLOW)
    prover_pb2_grpc.add_ProverServiceServicer_to_server(Changing(Archive(station.runs)), server)  # type: ignore[no-untyped-call]
    server.start()
    for name in station.chips:
        station.register(name, address)
    yield
    server.stop(grace=1).wait()


def honest(response: prover_pb2.ExplainResponse, archive: Archive) -> None:
    assert len(response.ranks) == RANKS
    assert response.transcript_id in response.ranks


def test_each_ranks_chip_is_explained_by_a_replay_of_all_ranks(station: Station, tmp_path: Path) -> None:
    with prover(station, honest):
        report = station.inspect("rank-0", "rank-1", cache=Cache(tmp_path))
    assert ids(report) == []
    shards = {}
    for chip in report["chips"]:
        assert chip["verified"]
        (snapshot,) = chip["snapshots"]
        assert (snapshot["status"], snapshot["replay"]["verdict"], snapshot["step"]) == ("explained", "match", 2)
        assert snapshot["memory"]["explained"] == snapshot["bytes"] - snapshot["memory"]["declared"]
        shards[chip["ueid"]] = snapshot["shard"]
    job = read_job(station.runs / "job")
    for rank in range(RANKS):
        expected = {"job": job.id.hex(), "rank": rank, "ranks": RANKS}
        assert shards[station.ueids[f"rank-{rank}"].hex()] == expected
    assert {transcript["name"] for transcript in report["transcripts"]} == {"rank-0000", "rank-0001"}


def test_segments_of_a_rank_are_replayed_with_all_ranks_and_recognised(station: Station, tmp_path: Path) -> None:
    policy = SegmentPolicy(random=1, largest=1, recognise=3, memorisation=0, records=0)
    with prover(station, honest):
        report = station.inspect("rank-0", "rank-1", cache=Cache(tmp_path), segments=policy)
    assert [each for each in ids(report) if not each.startswith("recognition.")] == []
    segments = report["evidence"]["segments"]
    assert len(segments) == RANKS
    assert all(each["whole"] for each in report["replayed"])
    training = report["evidence"]["training"]
    assert len(training) == RANKS
    for each in training:
        assert each["looked_at"] == each["recognised"] > 0
        assert each["losses"] == ["negative log likelihood"] or each["losses"] == ["cross entropy"]
        assert any("batches of 2 ranks" in line for line in each["found"]), each["found"]
    (run,) = report["facts"]["runs"]
    assert run["training"]["outcome"] == "recognised"
    assert (run["training"]["looked_at"], run["training"]["verified_share"]) == (training[0]["looked_at"], 1)
    assert [each["training"] for each in run["programs"] if each["kind"] == "step"] == ["recognised"] * 3


def swap_ranks(response: prover_pb2.ExplainResponse, archive: Archive) -> None:
    """Each rank's transcript as that of the other."""
    response.ranks[:] = [response.transcript_id, response.transcript_id]


def name_another(response: prover_pb2.ExplainResponse, archive: Archive) -> None:
    """The other rank's transcript for this chip's snapshot."""
    response.transcript_id = next(each for each in response.ranks if each != response.transcript_id)


def name_none(response: prover_pb2.ExplainResponse, archive: Archive) -> None:
    """Nothing of the other ranks."""
    del response.ranks[:]


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        pytest.param(swap_ranks, {"job.rank.mismatch"}, marks=pytest.mark.finding("job.rank.mismatch")),
        (
            name_another,
            {
                "snapshot.position.mismatch",
                "snapshot.running.mismatch",
                "snapshot.memory.missing",
                "snapshot.memory.unexplained",
                "snapshot.weights.mismatch",
                "transcript.commitment.missing",
            },
        ),
        pytest.param(name_none, {"job.incomplete"}, marks=pytest.mark.finding("job.incomplete")),
    ],
)
def test_a_shard_presented_as_another_ranks_is_caught(
    station: Station, tmp_path: Path, lie: Callable[[prover_pb2.ExplainResponse, Archive], None], expected: set[str]
) -> None:
    with prover(station, lie):
        report = station.inspect("rank-0", cache=Cache(tmp_path))
    assert set(ids(report)) == expected
    (chip,) = report["chips"]
    assert not chip["verified"]
    assert [snapshot["status"] for snapshot in chip["snapshots"]] == ["mismatch"]


def result(verdict: str, *findings: str) -> ReplayResult:
    return ReplayResult(
        verdict=verdict,  # type: ignore[arg-type]
        steps=(0, 2),
        state="",
        findings=[Finding(id=each, message="", subject="step 1") for each in findings],
        first_difference=None if verdict == "match" else {"step": 1, "op": 5},
        live=[(4, "00" * 32)],
    )


def test_another_ranks_difference_counts_against_every_shard() -> None:
    match = JobReplayResult("00", "match", None, [None, result("match")])
    assert of_rank(match, 1) == replace(result("match"), of_ranks=[[], []])
    with pytest.raises(ReplayWorkerError):
        of_rank(match, 0)
    differs = JobReplayResult("00", "mismatch", 1, [result("match"), result("mismatch", "replay.mismatch")])
    found = of_rank(differs, 0)
    assert (found.verdict, found.live) == ("mismatch", None)
    assert found.first_difference == {"rank": 1, "step": 1, "op": 5}
    assert [finding.subject for finding in found.findings] == ["rank 1: step 1"]


def test_bounds_of_all_ranks_may_accuse_a_job() -> None:
    ranks = [replace(result("match"), probable=each) for each in (5, 70, 600)]
    found = of_rank(JobReplayResult("00", "match", None, [*ranks, None]), 1)
    assert (found.probable, found.probable_elsewhere) == (70, 605)
    assert found.false_accusation == pytest.approx(false_accusation(675), rel=1e-12)
    job = JobReplayResult("00", "match", None, [*ranks, None]).to_json()
    assert [each and each["false_accusation"] for each in job["ranks"]] == [
        false_accusation(5), false_accusation(70), false_accusation(600), None,
    ]  # fmt: skip


def test_jobs_are_put_together_from_what_was_fetched(station: Station, tmp_path: Path) -> None:
    """Without copies of the files, and again after a restart."""
    cache, archive = Cache(tmp_path), Archive(station.runs)
    transcripts = [
        cache.get(each.id, archive.pieces(each.id))
        for each in sorted(archive.transcripts(), key=lambda each: each.coordinate.rank if each.coordinate else -1)
    ]
    coordinate = transcripts[0].coordinate()
    assert coordinate is not None
    path = cache.job(coordinate.job, transcripts)
    assert path == cache.job(coordinate.job, transcripts)
    assert read_job(path) == coordinate.job
    for rank, transcript in enumerate(transcripts):
        assert Transcript.open(path / f"rank-{rank:04d}").digest == transcript.digest
        assert (path / f"rank-{rank:04d}" / "draft.cbor").samefile(transcript.path / "draft.cbor")
    Cache(tmp_path)
    assert not path.exists()
    assert (tmp_path / transcripts[0].digest).is_dir()


def test_a_prover_names_the_ranks_that_lie_together(station: Station, tmp_path: Path) -> None:
    archive = Archive(station.runs)
    declared = sorted(archive.transcripts(), key=lambda each: each.path)
    for each in declared:
        assert archive.ranks(each.id) == [other.id for other in declared]
    assert archive.ranks("00" * 32) == []
    assert json.loads(json.dumps(archive.ranks(declared[0].id))) == [each.id for each in declared]


# -- logs on demand: those of all ranks are asked for, as they are replayed together ----------------------------------

KINDS = ["tied", "fsdp"]
USUAL = {"data.not_precommitted"}


@pytest.fixture
def job(recordings: RecordingStore, bench: Bench, tmp_path: Path) -> Path:
    """A job on two ranks without logs, with the keys of its ranks. Each test has the same: later ones know its logs."""
    stored = recordings.get("bare", lambda path: record(KINDS, RANKS, path, logs="on-demand"), KINDS, RANKS)
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


@needs_mkl
def test_the_logs_of_all_ranks_are_asked_for_and_lead_to_a_match(bench: Bench, job: Path) -> None:
    report = inspected(bench, job, *(bench.at_end(each) for each in ranks_of(job)))
    assert (report["verdict"], found(report) - USUAL) == ("clean", set()), report["findings"]
    assert all(each["verified"] for each in report["chips"])
    assert requests(report) == [("rank-0000", 3, 4, 1), ("rank-0001", 3, 4, 1)]
    assert {each["snapshots"][0]["replay"]["verdict"] for each in report["chips"]} == {"match"}


@needs_mkl
def test_segments_are_replayed_with_the_logs_of_all_ranks(bench: Bench, job: Path) -> None:
    made(job)
    policy = SegmentPolicy(random=0, largest=1, recognise=0)
    report = inspected(bench, job, bench.at_end(job / rank_name(0)), segments=policy)
    assert (report["verdict"], found(report) - USUAL) == ("clean", set()), report["findings"]
    assert sorted(requests(report)) == [
        (rank_name(n), *steps) for n in range(RANKS) for steps in ((1, 3, 2), (3, 4, 1))
    ]
    assert {each["verdict"] for each in report["evidence"]["segments"][0]["verdicts"]} == {"match"}


@needs_mkl
def test_a_rank_that_is_replayed_alone_needs_its_own_log_only(bench: Bench, job: Path) -> None:
    report = inspected(bench, job, bench.at_end(job / rank_name(1)), sharded="cells", chunks=4)
    assert found(report) - USUAL == set(), report["findings"]
    assert [each[0] for each in requests(report)] == ["rank-0001"]
    assert report["chips"][0]["snapshots"][0]["replay"]["verdict"] == "match given collectives"


@needs_mkl
def test_a_prover_that_lacks_the_key_of_one_rank_verifies_nothing(bench: Bench, job: Path) -> None:
    chips = [bench.at_end(each) for each in ranks_of(job)]
    key_path(job / rank_name(1)).unlink()
    report = inspected(bench, job, *chips)
    assert found(report) - USUAL == {REFUSED, MISSING, "replay.log.absent"}, report["findings"]
    assert not any(each["verified"] for each in report["chips"])
    assert [each[3] for each in requests(report)] == [0, 0]


@needs_mkl
def test_something_else_than_a_log_counts_against_the_rank_that_it_came_for(bench: Bench, job: Path) -> None:
    made(job)
    chip = bench.at_end(job / rank_name(0))
    resigned(job / rank_name(1), 3, said=lambda said: replace(said, logged=said.logged + 1))
    report = inspected(bench, job, chip)
    assert {"transcript.supplement.malformed", REFUSED} <= found(report), report["findings"]
    assert dict((each[0], each[3]) for each in requests(report)) == {"rank-0000": 1, "rank-0001": 0}


@needs_mkl
def test_the_false_log_of_one_rank_accuses_the_job(bench: Bench, job: Path) -> None:
    made(job)
    chip = bench.at_end(job / rank_name(0))
    resigned(job / rank_name(1), 3, entries=flipped)
    report = inspected(bench, job, chip)
    assert "replay.mismatch" in found(report), report["findings"]
    (difference,) = [each for each in report["findings"] if each["id"] == "replay.mismatch"]
    assert "rank 1" in difference["subject"] or "rank 1" in difference["message"]
