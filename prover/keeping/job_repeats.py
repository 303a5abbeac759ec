"""Repeats a segment of a job that goes on, for one of its ranks: copies of all ranks' recordings are repeated together.

What a rank computes depends on all others. Each rank's segments are drawn by themselves, and each rank has a process of
its own that repeats them, so several may need one segment at a time. One of them works in a job at a time. It makes the
logs of all ranks, and the next one finds its own there.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prover.keeping.unfinished_recordings import close_copy, progress
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.core.errors import UsageError
from weighbridge.execution.job_regeneration import regenerate_job
from weighbridge.transcript.job_record import RECORD, JobRecord, rank_name
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import folder_of, key_path

_LOOK_SECONDS = 0.5


@contextmanager
def turn(job: Path) -> Iterator[None]:
    """Waits until no other rank's process works in a job's directory, and keeps the others waiting meanwhile."""
    with (job / RECORD).open("r+b") as file:  # for writing, as locks over a network want it
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_made(transcript: Transcript, folder: Path, steps: tuple[int, int]) -> bool:
    """Whether the logs of some steps of a rank lie in a directory, whole and of this run: another rank needed them."""
    if not folder.is_dir():
        return False
    transcript.supplement(folder)
    there = transcript.supplements
    return there is not None and all(there.reader(transcript.step(step)) is not None for step in range(*steps))


def repeat_ranks(job: Path, record: JobRecord, copies: Path, steps: tuple[int, int], wait_s: float) -> None:
    """Makes the supplements of a segment of all ranks, beside their recordings.

    Args:
        job: The job's directory, in which all ranks record.
        record: What it says of the job.
        copies: Directory for copies of the recordings.
        steps: (first, last + 1).
        wait_s: How long ranks that are behind are waited for.

    Raises:
        UsageError: A rank's recording or key is not there, or does not get so far.
        WeighbridgeError: As `regenerate_job`.
    """
    until, runs = time.monotonic() + wait_s, [job / rank_name(rank) for rank in range(record.ranks)]
    keys = [_closed(run, copies / run.name, steps[1], until) for run in runs]
    outs = [folder_of(run) for run in runs]
    regenerate_job([copies / run.name for run in runs], keys, steps=steps, outs=outs)


def _closed(run: Path, copy: Path, last: int, until: float) -> SigningKey:
    """Closes a copy of a rank's recording as soon as it is whole up to a step; returns its key."""
    seen: tuple[str, ...] = ()
    while True:
        if key_path(run).is_file() and run.is_dir() and (reached := progress(run)) != seen:
            shutil.rmtree(copy, ignore_errors=True)
            key = load_or_create_key(key_path(run))
            if close_copy(run, copy, key):
                if Transcript.open(copy).steps >= last:
                    return key
                seen = reached
        if time.monotonic() > until:
            raise UsageError(
                f"{run.name} of the job has no recording and key here, or did not get to step {last} in time; all "
                "ranks of a job that repeats segments record in one directory, which all of them share"
            )
        time.sleep(_LOOK_SECONDS)
