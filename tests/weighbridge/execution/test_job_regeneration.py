"""Logs on demand of jobs on several ranks: all ranks make theirs together, and one rank's false log is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import weighbridge
from support.forging import at_step, forge
from support.on_demand import ELSEWHERE, flipped, key_of, place, resigned
from support.recording_store import RecordingStore
from support.sharded_runs import record

from prover.keeping.archive import Archive
from prover.keeping.collective_replay import cell_results
from prover.keeping.supplement_requests import Regenerations, SupplementPiece
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.execution.following import DifferenceError
from weighbridge.execution.given_terms import GIVEN
from weighbridge.execution.job_regeneration import ranks_of, regenerate_job
from weighbridge.execution.job_replay import replay_cell, replay_job
from weighbridge.execution.regeneration import Regenerated, regenerate
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import folder_of, key_path
from weighbridge.transcript.tape import Tape

KINDS, RANKS, STEPS = ["tied", "fsdp"], 2, 4
needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")


@pytest.fixture(scope="module")
def bare(recordings: RecordingStore) -> Path:
    """Jobs without logs; do not change them, copy them."""
    return recordings.get("bare", lambda path: record(KINDS, RANKS, path, logs="on-demand"), KINDS, RANKS)


@pytest.fixture(scope="module")
def full(recordings: RecordingStore) -> Path:
    """The same jobs with their logs in full."""
    return recordings.get("full", lambda path: record(KINDS, RANKS, path), KINDS, RANKS)


@pytest.fixture(scope="module")
def supplemented(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jobs, and the supplements that their Provers made."""
    there = tmp_path_factory.mktemp("supplemented") / "jobs"
    shutil.copytree(bare, there)
    for kind in KINDS:
        regenerated(there / kind)
    return there


def regenerated(job: Path, **options: Any) -> list[Regenerated]:
    """Makes supplements as an honest Prover does; `options` are those of `regenerate_job`."""
    ranks = ranks_of(job)
    return regenerate_job(ranks, [key_of(each) for each in ranks], **options)


def judged(job: Path) -> dict[str, Any]:
    """The replay of a job in this process."""
    request = {"path": str(job), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30}
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return JobReplay(request, [], lambda message: None).run()


@pytest.mark.parametrize("kind", KINDS)
def test_states_and_logs_are_those_of_a_job_recorded_in_full(supplemented: Path, full: Path, kind: str) -> None:
    for rank in range(RANKS):
        ours, theirs = (Transcript.open(jobs / kind / rank_name(rank)) for jobs in (supplemented, full))
        ours.supplement(folder_of(ours.path))
        assert ours.supplements is not None
        assert (ours.on_demand, theirs.on_demand) == (True, False)
        for step in range(STEPS):
            assert ours.step(step).state == theirs.step(step).state
            assert ours.step(step).checksums == theirs.step(step).checksums
            assert ours.supplements.rounding(step) == theirs.step(step).rounding.hex()


@needs_mkl
def test_with_the_logs_of_all_ranks_another_machine_gives_the_same_bits(supplemented: Path, full: Path) -> None:
    result = replay_job(supplemented / "tied", env=ELSEWHERE)
    in_full = replay_job(full / "tied", env=ELSEWHERE)
    assert result.verdict == in_full.verdict == "match"
    for ours, theirs in zip(result.ranks, in_full.ranks, strict=True):
        assert ours is not None
        assert theirs is not None
        assert 0 < ours.followed <= ours.logged == theirs.logged
        assert (ours.state, ours.chosen) == (theirs.state, theirs.chosen), "the ledger counts supplements as logs"


@needs_mkl
def test_without_logs_another_machine_says_what_to_regenerate(bare: Path) -> None:
    result = replay_job(bare / "tied", env=ELSEWHERE)
    assert (result.verdict, result.rank) == ("inconclusive", 0)
    assert result.ranks[0] is not None
    assert "replay.log.absent" in {each.id for each in result.ranks[0].findings}


@needs_mkl
def test_a_rank_alone_is_replayed_with_its_own_log(supplemented: Path, tmp_path: Path) -> None:
    there = tmp_path / "tied"
    shutil.copytree(supplemented / "tied", there)
    cell_results(there, 1, (1, STEPS), tmp_path / "results")
    result = replay_cell(there, 1, results=tmp_path / "results", steps=(1, STEPS), env=ELSEWHERE)
    assert (result.verdict, result.followed > 0) == (GIVEN, True)
    shutil.rmtree(folder_of(there / rank_name(1)))
    result = replay_cell(there, 1, results=tmp_path / "results", steps=(1, STEPS), env=ELSEWHERE)
    assert result.verdict == "inconclusive"


def test_the_false_log_of_one_rank_is_a_mismatch(supplemented: Path, tmp_path: Path) -> None:
    there = tmp_path / "tied"
    shutil.copytree(supplemented / "tied", there)
    assert judged(there)["verdict"] == "match"
    resigned(there / rank_name(1), 2, entries=flipped)
    result = judged(there)
    assert (result["verdict"], result["rank"]) == ("mismatch", 1)
    assert result["ranks"][1]["first_difference"]["step"] == 2


def test_the_log_of_another_rank_is_not_taken(supplemented: Path, tmp_path: Path) -> None:
    there = tmp_path / "tied"
    shutil.copytree(supplemented / "tied", there)
    shutil.copy(place(there / rank_name(0), 2), place(there / rank_name(1), 2))
    (answer,) = [each for each in judged(there)["ranks"] if each["steps"][1] == STEPS and each["findings"][1:]]
    assert "transcript.supplement.foreign" in {each["id"] for each in answer["findings"]}


def test_some_steps_begin_at_the_checkpoint_before_them(bare: Path, tmp_path: Path) -> None:
    there, told = tmp_path / "tied", list[tuple[int, int]]()
    shutil.copytree(bare / "tied", there)
    made = regenerated(there, steps=(2, 3), progress=lambda *each: told.append(each))
    assert [(each.steps, each.written) for each in made] == [((2, 3), 1)] * RANKS
    assert told == [(1, 2), (2, 2)], "from checkpoint 1 on, of the first rank"
    assert [each.written for each in regenerated(there, steps=(2, 3))] == [0] * RANKS


def test_one_rank_alone_and_ranks_of_no_job_are_refused(bare: Path, tmp_path: Path) -> None:
    first, second = ranks_of(bare / "tied")
    with pytest.raises(UsageError, match="give the directory of the job"):
        regenerate(first, key_of(first))
    with pytest.raises(UsageError, match="not the transcripts of all ranks"):
        regenerate_job([first], [key_of(first)])
    with pytest.raises(TranscriptError) as swapped:
        regenerate_job([second, first], [key_of(second), key_of(first)])
    assert swapped.value.reason == "job.rank.mismatch"
    with pytest.raises(UsageError, match="was signed by the key"):
        regenerate_job([first, second], [key_of(first)] * 2)


def test_a_repeat_that_differs_names_rank_and_step(bare: Path, tmp_path: Path) -> None:
    """One rank claims to have trained on another batch in a step."""
    there = tmp_path / "tied"
    shutil.copytree(bare / "tied", there)
    shutil.rmtree(there / rank_name(1))

    def lie(_: Tape, fields: dict[str, Any]) -> None:
        fields["batch"] = {"x": fields["batch"]["x"] + 1}

    source = bare / "tied" / rank_name(1)
    forge(source, there / rank_name(1), at_step(2, lie), key=key_of(source))
    with pytest.raises(DifferenceError, match="rank 1: step 2, operation") as differs:
        regenerated(there)
    assert differs.value.details["step"] == 2
    assert not place(there / rank_name(1), 2).exists()


def test_the_command_makes_the_logs_of_all_ranks(bare: Path, tmp_path: Path) -> None:
    there = tmp_path / "tied"
    shutil.copytree(bare / "tied", there)
    status, said, _ = weighbridge("regenerate", there, "--steps", "1:3", "--json")
    answer = json.loads(said)
    assert (status, answer["steps"], answer["written"]) == (0, [1, 3], 2 * RANKS)
    assert answer["folders"] == [str(folder_of(each)) for each in ranks_of(there)]
    status, said, _ = weighbridge("regenerate", there, "--steps", "1:2", "--out", tmp_path / "out", "--json")
    assert sorted(str(each.relative_to(tmp_path / "out")) for each in (tmp_path / "out").rglob("*.wsup")) == [
        f"rank-000{rank}.supplements/00000001.wsup" for rank in range(RANKS)
    ]
    key_path(there / rank_name(1)).unlink()
    assert weighbridge("regenerate", there)[0] == 2


@pytest.mark.finding("record.regenerate.ranks")
def test_the_service_makes_the_logs_of_all_ranks_when_one_is_asked_for(bare: Path, tmp_path: Path) -> None:
    there = tmp_path / "runs" / "tied"
    shutil.copytree(bare / "tied", there)
    identifier = Transcript.open(there / rank_name(1)).manifest.digest
    answer = list(Regenerations(Archive(tmp_path / "runs")).pieces(identifier, (2, 3), lambda: True))
    data = b"".join(each.data for each in answer if isinstance(each, SupplementPiece))
    assert data == place(there / rank_name(1), 2).read_bytes()
    assert place(there / rank_name(0), 2).is_file(), "which will be asked for next"
    shutil.move(there / rank_name(0), tmp_path / "away")
    with pytest.raises(UsageError) as refused:
        list(Regenerations(Archive(tmp_path / "runs")).pieces(identifier, (3, 4), lambda: True))
    assert refused.value.reason == "record.regenerate.ranks"
