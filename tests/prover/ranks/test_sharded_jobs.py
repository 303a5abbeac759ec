"""Jobs on several ranks, recorded by real processes: they replay on virtual ranks, and attackers are caught."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recording_store import RecordingStore
from support.sharded_runs import record, recorded
from torch import nn

from prover import Recorder
from prover.keeping import collective_replay
from weighbridge.attest.manifest import SigningKey
from weighbridge.cli.main import run
from weighbridge.core.errors import TranscriptError, UsageError, WeighbridgeError
from weighbridge.execution import collective_openings
from weighbridge.execution.collective_openings import Commitments, Target
from weighbridge.execution.given_results import write_results
from weighbridge.execution.given_terms import GIVEN
from weighbridge.execution.job_replay import replay_cell, replay_job
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript import layout
from weighbridge.transcript.collectives import CHUNK, commit
from weighbridge.transcript.job_record import MeshCoordinate, rank_name, read_job
from weighbridge.transcript.reader import Transcript, recover
from weighbridge.transcript.tensor_file import TensorFile

TWO = [
    "primitives",
    "ddp",
    "unused",
    "static",
    "accumulate",
    "tensor",
    "fsdp",
    "meta",
    "pipeline",
    "lingering",
    "false",
]
FOUR = ["fsdp-tensor", "wide", "lying"]
HONEST = [("two", kind) for kind in TWO if kind != "false"] + [("four", kind) for kind in FOUR if kind != "lying"]
SALT = bytes(32)
Kept = dict[tuple[int, Any], tuple[list[torch.Tensor], list[torch.Tensor]]]


@pytest.fixture(scope="module")
def jobs(recordings: RecordingStore) -> dict[str, Path]:
    """One directory of jobs for each number of ranks; do not change them, copy them."""
    return {"two": recorded(recordings, TWO, 2), "four": recorded(recordings, FOUR, 4)}


def job_here(
    path: Path, *, stop: tuple[int, int, int] | None = None, steps: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Replays a job in this process: the code that the worker runs, without its start-up time."""
    request = {
        "path": str(path), "steps": steps, "device": "cpu", "stop": stop, "salt": SALT.hex(), "memory": 1 << 30,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return JobReplay(request, [], lambda message: None).run()


def cell_here(path: Path, rank: int, results: Path | None, steps: tuple[int, int]) -> dict[str, Any]:
    """Replays a cell in this process."""
    request = {
        "path": str(path / rank_name(rank)), "coordinate": [read_job(path).encode().hex(), rank], "steps": steps,
        "results": None if results is None else str(results), "device": "cpu", "stop": None, "salt": None,
        "memory": 1 << 30,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return Replay(request, [], lambda message: None).run()


def held(transcript: Transcript, step: int) -> dict[str, torch.Tensor]:
    checkpoint = transcript.checkpoint(step)
    return {view.name: view.tensor(checkpoint.storages) for view in checkpoint.views}


def assembled(path: Path, step: int) -> dict[str, torch.Tensor]:
    """The unsharded state of a job before a step."""
    parts = []
    for rank in range(read_job(path).ranks):
        transcript = Transcript.open(path / rank_name(rank))
        tensors = held(transcript, step)
        parts.append(([s for s in transcript.layout() if s.name in tensors], tensors))
    return layout.assemble(parts)


@pytest.mark.parametrize(("ranks", "kind"), HONEST)
def test_an_honest_job_matches_on_virtual_ranks(jobs: dict[str, Path], ranks: str, kind: str) -> None:
    result = job_here(jobs[ranks] / kind)
    assert result["verdict"] == "match"
    assert [answer["verdict"] for answer in result["ranks"]] == ["match"] * (2 if ranks == "two" else 4)
    assert {f["id"] for answer in result["ranks"] for f in answer["findings"]} <= {"data.not_precommitted"}


def test_a_job_matches_in_a_confined_process(jobs: dict[str, Path]) -> None:
    result = replay_job(jobs["two"] / "ddp")
    assert (result.verdict, result.rank, result.first_difference) == ("match", None, None)
    assert all(rank is not None and "no-network" in rank.confinement for rank in result.ranks)


def test_every_collective_has_the_value_that_its_definition_gives(jobs: dict[str, Path]) -> None:
    """What each rank's record commits to is what the definitions give here, without any exchange."""
    a, b = (torch.arange(6, dtype=torch.float32).view(2, 3) / 7 + rank for rank in (0, 1))
    total = (a.double() + b.double()).float()
    mean, product = ((a.double() + b.double()) / 2).float(), (a.double() * b.double()).float()
    least = torch.minimum(product, product)  # what the broadcast left on both ranks
    for rank in (0, 1):
        found = Commitments(jobs["two"] / "primitives").step(rank, 1).values()
        results = {(c.call.name, c.call.op): c.result for c in sorted(found, key=lambda c: c.call.op)}
        assert len(results) == 14
        reduced = [root for (name, _), root in results.items() if name == "all_reduce"]
        bits = (a * 10).to(torch.int64) | (b * 10).to(torch.int64)
        assert reduced == [commit([t]) for t in (total, mean, torch.maximum(a, b), product, bits)]
        by_name = {name: root for (name, _), root in results.items() if name != "all_reduce"}
        assert by_name == {
            "all_gather": commit([a, b]),
            "broadcast": commit([product]),
            "reduce": commit([least] if rank == 1 else []),
            "scatter": commit([(a, b)[rank]]),
            "gather": commit([a, b] if rank == 1 else []),
            "reduce_scatter": commit([total[rank]]),
            "all_to_all": commit([a[0], b[0]]),
            "send": commit([]),
            "recv": commit([(b, a)[rank]]),
        }


def test_replicas_hold_the_same_and_shards_make_up_the_whole(jobs: dict[str, Path]) -> None:
    ddp = [held(Transcript.open(jobs["two"] / "ddp" / rank_name(r)), 3) for r in (0, 1)]
    names = [n for n in ddp[0] if "exp_avg" in n or n.endswith("weight")]
    assert names
    assert all(torch.equal(ddp[0][n], ddp[1][n]) for n in names)
    # FSDP2 on the same batches gives what DDP gives: sums have one right answer, in whatever pieces they are made.
    sharded = assembled(jobs["two"] / "fsdp", 3)
    for name, t in ddp[0].items():
        other = sharded.get(name.replace("module.", ""))
        if other is not None:
            assert torch.allclose(other, t, rtol=1e-5, atol=1e-7), name


def test_a_sharded_fill_gives_what_the_unsharded_one_gives(jobs: dict[str, Path], tmp_path: Path) -> None:
    with Recorder(tmp_path / "whole", seed=7) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(8, 12, device="meta"), nn.ReLU(), nn.Linear(12, 5, device="meta"))
            model.to_empty(device="cpu")
            for module in (model[0], model[2]):
                nn.init.normal_(module.weight)
                nn.init.uniform_(module.bias, -0.5, 0.5)
        recorder.attach(model)
    whole = held(Transcript.open(tmp_path / "whole"), 1)
    assert float(whole["model.0.weight"].detach().std()) > 0.5
    for rank in (0, 1):
        run = Transcript.open(jobs["two"] / "meta" / rank_name(rank))
        shards = [s for s in run.layout() if s.name in whole]
        assert sum(s.sizes != s.shape for s in shards) == 4
        assert layout.check(shards, held(run, 1), whole) == []


def test_another_ranks_shard_is_not_the_part_that_the_layout_says(jobs: dict[str, Path]) -> None:
    whole = assembled(jobs["two"] / "fsdp", 3)
    runs = [Transcript.open(jobs["two"] / "fsdp" / rank_name(rank)) for rank in (0, 1)]
    shards = [s for s in runs[0].layout() if s.name in whole]
    assert layout.check(shards, held(runs[0], 3), whole) == []
    found = layout.check(shards, held(runs[1], 3), whole)
    assert {f.id for f in found} == {"layout.differs"}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_ranks_transcript_is_not_taken_for_anothers(jobs: dict[str, Path], tmp_path: Path, kind: str) -> None:
    job = tmp_path / "job"
    shutil.copytree(jobs["two"] / kind, job)
    shutil.rmtree(job / rank_name(1))
    shutil.copytree(job / rank_name(0), job / rank_name(1))
    for attempt in (lambda: job_here(job), lambda: cell_here(job, 1, None, (0, 1)), lambda: Commitments(job)):
        with pytest.raises(TranscriptError) as raised:
            attempt()
        assert raised.value.reason == "job.rank.mismatch"
    with pytest.raises(TranscriptError) as raised:
        replay_job(job)
    assert raised.value.reason == "job.rank.mismatch"


def test_ranks_of_two_jobs_do_not_make_one(jobs: dict[str, Path], tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(jobs["two"] / "ddp", job)
    shutil.rmtree(job / rank_name(1))
    shutil.copytree(jobs["two"] / "fsdp" / rank_name(1), job / rank_name(1))
    with pytest.raises(TranscriptError, match=r"job\.rank\.mismatch"):
        job_here(job)


def test_a_job_lacks_no_rank_and_has_nothing_else(jobs: dict[str, Path], tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(jobs["two"] / "ddp", job)
    (job / "notes.txt").write_text("x")
    with pytest.raises(TranscriptError, match=r"transcript\.file\.unlisted"):
        read_job(job)
    (job / "notes.txt").unlink()
    shutil.rmtree(job / rank_name(1))
    with pytest.raises(TranscriptError, match=r"transcript\.file\.missing"):
        read_job(job)
    with pytest.raises(UsageError):
        read_job(tmp_path)


def test_a_rank_alone_needs_the_results_of_its_collectives(jobs: dict[str, Path]) -> None:
    with pytest.raises(WeighbridgeError) as raised:
        cell_here(jobs["two"] / "fsdp", 1, None, (0, 4))
    assert raised.value.reason == "replay.collectives.missing"


def test_a_cell_matches_given_collectives_and_its_chunks_verify(jobs: dict[str, Path], tmp_path: Path) -> None:
    job, results = jobs["four"] / "fsdp-tensor", tmp_path / "results.safetensors"
    collective_replay.cell_results(job, 2, (1, 3), results)
    found = replay_cell(job, 2, results=results, steps=(1, 3))
    assert (found.verdict, found.first_difference) == (GIVEN, None)
    commitments = Commitments(job)
    targets = list(commitments.targets(2, (1, 3)))
    assert len(targets) >= 14
    opened = collective_openings.decode(collective_openings.encode(collective_replay.open_chunks(job, 2, targets)))
    assert collective_openings.verify(commitments, 2, targets, opened) == []
    assert commitments.equal_results(2, (1, 3)) == []


def test_results_that_the_record_does_not_name_are_refused(jobs: dict[str, Path], tmp_path: Path) -> None:
    job, path = jobs["two"] / "fsdp", tmp_path / "results"
    collective_replay.cell_results(job, 1, (1, 3), path)
    assert cell_here(job, 1, path, (1, 3))["verdict"] == GIVEN
    file = TensorFile(path)
    results = {tuple(map(int, name.split("/"))): file.read(name).clone() for name in file}
    coordinate = MeshCoordinate(read_job(job), 1)
    key = min(results)
    results[key][3] ^= 1
    write_results(path, coordinate, results)
    with pytest.raises(TranscriptError) as raised:
        cell_here(job, 1, path, (1, 3))
    assert raised.value.reason == "job.results.mismatch"
    del results[key]
    write_results(path, coordinate, results)
    with pytest.raises(TranscriptError) as raised:
        cell_here(job, 1, path, (1, 3))
    assert raised.value.reason == "job.results.mismatch"
    write_results(path, MeshCoordinate(coordinate.job, 0), results)
    with pytest.raises(TranscriptError) as raised:
        cell_here(job, 1, path, (1, 3))
    assert raised.value.reason == "job.results.mismatch"


def test_a_rank_that_a_crash_cut_off_leaves_the_others_undecided(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="rank 1"):
        record(["cut"], 2, tmp_path)
    recover(tmp_path / "cut" / "rank-0001", key=SigningKey.generate())
    survivor, victim = (Transcript.open(tmp_path / "cut" / rank_name(rank)) for rank in (0, 1))
    assert (survivor.steps, survivor.manifest.complete, victim.steps, victim.manifest.complete) == (4, True, 3, False)
    answer = job_here(tmp_path / "cut")
    assert (answer["verdict"], answer["rank"]) == ("inconclusive", 0)
    assert [(f["id"], f["severity"]) for f in answer["ranks"][0]["findings"] if f["id"].startswith("job.")] == [
        ("job.tail", "info")
    ]
    for steps in ((3, 4), (2, 4)):  # as an inspection replays a segment of the survivor's
        part = job_here(tmp_path / "cut", steps=steps)
        assert (part["verdict"], part["ranks"][0]["verdict"]) == ("inconclusive", "inconclusive")
        assert "job.tail" in [finding["id"] for finding in part["ranks"][0]["findings"]]
    assert job_here(tmp_path / "cut", steps=(1, 3))["verdict"] == "match"
    for steps in ((3, 5), (2, 1)):
        with pytest.raises(WeighbridgeError, match="are not among them"):
            job_here(tmp_path / "cut", steps=steps)
    first = next(c.call.op for c in Commitments(tmp_path / "cut").step(0, 3).values())
    assert job_here(tmp_path / "cut", stop=(0, 3, first))["verdict"] == "match"
    assert job_here(tmp_path / "cut", stop=(0, 3, 0))["verdict"] == "match"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_can_be_replayed_to_a_position_of_a_rank(jobs: dict[str, Path], rank: int) -> None:
    job = jobs["two"] / "fsdp"
    committed = list(Commitments(job).step(rank, 2).values())
    result = job_here(job, stop=(rank, 2, committed[1].call.op + 1))
    answer = result["ranks"][rank]
    assert (result["verdict"], answer["verdict"]) == ("match", "match")
    assert len(answer["live"]) > 10
    assert answer["running"]


def test_the_commands_for_jobs_do_what_they_say(
    jobs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, chosen, opened = str(jobs["two"] / "fsdp"), str(tmp_path / "chosen"), str(tmp_path / "opened")
    assert run(["job", "show", job, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["mesh"] == {"data": 2}
    assert [row["collectives"]["reduce_scatter"] for row in shown["ranks"]] == [6, 6]
    cell = ["--rank", "1", "--steps", "1:3"]
    assert run(["job", "results", job, *cell, "--out", str(tmp_path / "results")]) == 0
    assert run(["replay", job, *cell, "--results", str(tmp_path / "results"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == GIVEN
    # Enough chunks that some are surely of results that rank 0 has not: gathered ones are the same on both.
    assert run(["job", "challenge", job, *cell, "--chunks", "200", "--out", chosen]) == 0
    assert run(["job", "open", job, "--rank", "1", "--challenge", chosen, "--out", opened]) == 0
    assert run(["job", "check", job, "--rank", "1", "--challenge", chosen, "--openings", opened]) == 0
    assert run(["job", "check", job, "--rank", "0", "--challenge", chosen, "--openings", opened]) == 1
    assert run(["replay", job, "--rank", "1"]) == 2
    assert run(["job", "show", str(tmp_path)]) == 2


# -- ranks that agree on a false sum -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def false_job(jobs: dict[str, Path]) -> tuple[Path, Commitments, Kept]:
    """The job whose ranks agree on a false all-reduce, and what its Prover kept in order to go through with it."""
    return with_kept(jobs["two"], "false")


def with_kept(runs: Path, kind: str) -> tuple[Path, Commitments, Kept]:
    commitments = Commitments(runs / kind)
    kept: Kept = {}
    for rank in range(commitments.record.ranks):
        file = TensorFile(runs / f"kept-{rank}")
        number = 0
        for step in range(commitments.transcript(rank).steps):
            for pairing, committed in commitments.step(rank, step).items():
                sides = [
                    [file.read(f"{number}/{side}/{i}") for i in range(len(refs))]
                    for side, refs in (("in", committed.call.ins), ("out", committed.call.outs))
                ]
                kept[rank, pairing] = sides[0], sides[1]
                number += 1
    return runs / kind, commitments, kept


def test_a_full_replay_always_finds_a_false_sum(false_job: tuple[Path, Commitments, Kept]) -> None:
    result = replay_job(false_job[0])
    assert (result.verdict, result.rank) == ("mismatch", 1)
    where = result.first_difference
    assert where is not None
    assert (where["rank"], where["step"], where["operation"]) == (1, 2, "weighbridge::all_reduce.default")


def test_a_rank_that_sums_its_share_falsely_is_found_by_replay_and_by_chunks(jobs: dict[str, Path]) -> None:
    """All four ranks go on with the false share that one of them gave away, so their results agree."""
    path, commitments, kept = with_kept(jobs["four"], "lying")
    result = job_here(path)
    where = result["ranks"][result["rank"]]["first_difference"]
    assert (result["verdict"], where["step"], where["operation"]) == ("mismatch", 2, "weighbridge::all_reduce.default")
    assert commitments.equal_results(0, (1, 4)) == []
    targets = list(commitments.targets(0, (2, 3)))
    opened = collective_replay.opened(commitments, 0, targets, kept)
    false = {t for t in targets if collective_openings.verify(commitments, 0, [t], opened)}
    reduced = next(c.call for c in commitments.step(0, 2).values() if c.call.name == "all_reduce")
    elements = math.prod(reduced.outs[0][2])
    share = -(-elements // 4) * 4  # bytes of the liar's, the third one
    inside = range(2 * share // CHUNK, -(-3 * share // CHUNK))
    assert {(t.step, t.op, t.chunk) for t in false} == {(2, reduced.op, chunk) for chunk in inside}


def test_a_false_sum_passes_its_cell_and_is_found_by_chunks_at_the_stated_rate(
    false_job: tuple[Path, Commitments, Kept], tmp_path: Path
) -> None:
    path, commitments, kept = false_job
    results = {
        (step, committed.call.op, i): t.view(torch.uint8)
        for step in (1, 2, 3)
        for pairing, committed in commitments.step(0, step).items()
        for i, t in enumerate(kept[0, pairing][1])
    }
    write_results(tmp_path / "results", MeshCoordinate(commitments.record, 0), results)
    assert cell_here(path, 0, tmp_path / "results", (1, 4))["verdict"] == GIVEN
    assert commitments.equal_results(0, (1, 4)) == []

    targets = list(commitments.targets(0, (2, 3)))
    opened = collective_replay.opened(commitments, 0, targets, kept)
    false = {
        target for target in targets if collective_openings.verify(commitments, 0, [target], opened)
    }  # fmt: skip
    assert len(false) == 4
    assert {t.chunk for t in false} == {0, 1, 2, 3}
    (finding, *_) = collective_openings.verify(commitments, 0, sorted(false), opened)
    assert finding.id == "job.chunk.mismatch"

    share, count, trials = len(false) / len(targets), 3, 400
    expected = 1 - (1 - share) ** count
    caught = sum(
        bool(collective_openings.verify(commitments, 0, random.Random(seed).choices(targets, k=count), opened))
        for seed in range(trials)
    )
    assert abs(caught / trials - expected) < 4 * math.sqrt(expected * (1 - expected) / trials)


def test_a_chunk_is_opened_as_it_was_committed_or_not_at_all(false_job: tuple[Path, Commitments, Kept]) -> None:
    _, commitments, kept = false_job
    target = Target(2, next(c.call.op for c in commitments.step(0, 2).values() if c.call.name == "all_reduce"), 0, 0)
    (opening,) = collective_replay.opened(commitments, 0, [target], kept)
    # A contribution made up so that the false sum comes out is not what the step record commits to.
    wanted = torch.frombuffer(bytearray(opening.result.data), dtype=torch.float32)
    other = torch.frombuffer(bytearray(opening.parts[1].data), dtype=torch.float32)
    made_up = collective_openings.Piece(bytes((wanted - other).view(torch.uint8).numpy()), opening.parts[0].proof)
    lie = collective_openings.Opening(target, opening.result, (made_up, opening.parts[1]))
    assert [f.id for f in collective_openings.verify(commitments, 0, [target], [lie])] == ["merkle.proof"]
    assert [f.id for f in collective_openings.verify(commitments, 0, [target], [])] == ["job.chunk.missing"]
    # Nor is a true chunk from elsewhere, or one rank's contribution twice.
    elsewhere = collective_replay.opened(commitments, 0, [Target(2, target.op, 0, 5)], kept)[0]
    moved = collective_openings.Opening(target, elsewhere.result, elsewhere.parts)
    assert [f.id for f in collective_openings.verify(commitments, 0, [target], [moved])] == ["merkle.proof"]
    twice = collective_openings.Opening(target, opening.result, (opening.parts[0], opening.parts[0]))
    assert [f.id for f in collective_openings.verify(commitments, 0, [target], [twice])] == ["merkle.proof"]
    assert len(opening.result.data) == CHUNK
