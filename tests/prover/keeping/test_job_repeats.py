"""A segment of a job that is due for one rank: the logs of all ranks are made once, from what lies in one directory."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.forging import at_step, forge
from support.on_demand import key_of, place
from support.recording_store import RecordingStore
from support.sharded_runs import record

from prover.keeping import repeat_process
from weighbridge.attest.repeats import commitment
from weighbridge.core.errors import UsageError
from weighbridge.execution.following import DifferenceError
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import folder_of, key_path, read_statement

KINDS, RANKS = ["tied", "fsdp"], 2
SEGMENT = (1, 3)


@pytest.fixture
def job(recordings: RecordingStore, tmp_path: Path) -> Path:
    """A job on two ranks without logs, with the keys of its ranks."""
    stored = recordings.get("bare", lambda path: record(KINDS, RANKS, path, logs="on-demand"), KINDS, RANKS)
    return Path(shutil.copytree(stored / "tied", tmp_path / "job"))


def repeated(job: Path, rank: int, *, wait_s: float = 60, **also: Any) -> bytes:
    """What a rank's process comes to."""
    run = job / rank_name(rank)
    after = Transcript.open(run).head(SEGMENT[1] - 1).hex()
    paths = {"run": str(run), "key": str(key_path(run)), "out": str(folder_of(run))}
    return repeat_process.repeat(**paths, **{"steps": SEGMENT, "after": after, "wait_s": wait_s, **also})


def expected(job: Path, rank: int) -> bytes:
    """The commitment to the logs that lie beside a rank's recording."""
    run = job / rank_name(rank)
    transcript = Transcript.open(run)
    logs = [bytes.fromhex(read_statement(place(run, step))[0].rounding) for step in range(*SEGMENT)]
    heads = transcript.head(SEGMENT[0] - 1), transcript.head(SEGMENT[1] - 1)
    return commitment(transcript.draft_digest, heads, logs)


def left_behind(job: Path) -> list[str]:
    """Copies of recordings that were not taken away."""
    return [each.name for each in job.iterdir() if each.name.startswith(".")]


def test_the_logs_of_all_ranks_are_made_once_and_each_commits_to_its_own(job: Path) -> None:
    assert repeated(job, 1) == expected(job, 1)
    made = {rank: [place(job / rank_name(rank), step).stat().st_mtime_ns for step in (1, 2)] for rank in range(RANKS)}
    assert repeated(job, 0) == expected(job, 0) != expected(job, 1)
    again = {rank: [place(job / rank_name(rank), step).stat().st_mtime_ns for step in (1, 2)] for rank in range(RANKS)}
    assert (again, left_behind(job)) == (made, [])


def test_two_ranks_at_once_take_turns(job: Path) -> None:
    found: dict[int, bytes] = {}
    threads = [threading.Thread(target=lambda rank=rank: found.update({rank: repeated(job, rank)})) for rank in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {rank: expected(job, rank) for rank in range(RANKS)}


def test_a_log_that_a_disk_damaged_is_made_anew(job: Path) -> None:
    repeated(job, 0)
    damaged = place(job / rank_name(1), 2)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert repeated(job, 1) == expected(job, 1)


def test_a_rank_that_is_behind_is_waited_for(job: Path, tmp_path: Path) -> None:
    """Its recording is there later; gloo lets ranks be a step apart, and files become durable by and by."""
    away = tmp_path / "away"
    shutil.move(job / rank_name(0), away)

    def comes() -> None:
        time.sleep(1)
        shutil.move(away, job / rank_name(0))

    thread = threading.Thread(target=comes)
    thread.start()
    assert repeated(job, 1) == expected(job, 1)
    thread.join()


def test_a_rank_that_records_elsewhere_or_without_its_key_is_named(job: Path, tmp_path: Path) -> None:
    """And no key is made up for it."""
    key_path(job / rank_name(0)).unlink()
    with pytest.raises(UsageError, match="rank-0000 of the job has no recording and key here"):
        repeated(job, 1, wait_s=0)
    assert not key_path(job / rank_name(0)).exists()
    shutil.rmtree(job / rank_name(0))
    with pytest.raises(UsageError, match="rank-0000 of the job has no recording and key here"):
        repeated(job, 1, wait_s=0)
    assert not place(job / rank_name(1), 1).exists()
    assert left_behind(job) == []


def test_other_steps_than_the_chip_logged_are_refused(job: Path) -> None:
    with pytest.raises(UsageError, match="are others than the chip logged"):
        repeated(job, 1, after="00" * 32)


def test_a_repeat_that_differs_commits_to_nothing(job: Path, tmp_path: Path) -> None:
    """One rank recorded that it trained on another batch: no rank's segment can be repeated."""
    honest = tmp_path / "honest"
    shutil.move(job / rank_name(0), honest)

    def lie(_: Any, fields: dict[str, Any]) -> None:
        fields["batch"] = {"x": fields["batch"]["x"] + 1}

    forge(honest, job / rank_name(0), at_step(2, lie), key=key_of(job / rank_name(0)))
    with pytest.raises(DifferenceError, match="rank 0: step 2"):
        repeated(job, 1)
    assert not place(job / rank_name(1), 2).exists()
