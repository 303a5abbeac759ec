"""Makes the rounding logs of a job that was recorded without them: all ranks repeat their steps together.

What a rank computes depends on all others, so one of them alone cannot be repeated. They meet as in a replay of the job
(`virtual_ranks`), in one process; each rank's logs become supplements of its own transcript, signed by that one's key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import UsageError
from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.regeneration import Regenerated, Regeneration
from weighbridge.execution.virtual_ranks import Rendezvous, VirtualRank, in_turn
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.warm import warm
from weighbridge.transcript.job_record import check_coordinate, rank_name, read_job


def regenerate_job(
    paths: Sequence[str | Path], keys: Sequence[SigningKey], *, steps: tuple[int, int] | None = None,
    device: str | None = None, outs: Sequence[str | Path] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Regenerated]:  # fmt: skip
    """Makes the supplements of some steps of all ranks.

    Args:
        paths: The transcripts of all ranks, in their order; they are the caller's own, and executed in this process.
        keys: The key that signed each.
        steps: (first, last + 1); by default all that every rank has. Execution starts at the nearest checkpoint at or
            before `first` that all ranks have.
        device: As for `weighbridge.execution.regeneration.regenerate`.
        outs: Directories for the supplements of each; by default beside each transcript.
        progress: Called with (steps done, steps to do) of the first rank.

    Returns:
        What was made, of each rank.

    Raises:
        UsageError: These are not the ranks of one job, or as `regenerate` raises it.
        DifferenceError: A repeat differs; the error names the rank and the first operation and step.
        TranscriptError: A transcript is unreadable, altered or incomplete, or another rank's (`job.rank.mismatch`).
    """
    folders: Sequence[str | Path | None] = [None] * len(paths) if outs is None else outs
    ranks = [Regeneration(path, key, out) for path, key, out in zip(paths, keys, folders, strict=True)]
    job = ranks[0].coordinate.job if ranks and ranks[0].coordinate is not None else None
    if job is None or len(ranks) != job.ranks:
        raise UsageError("these are not the transcripts of all ranks of one job; give the directory of a job")
    for number, each in enumerate(ranks):
        check_coordinate(job, number, each.coordinate)
    first, last = steps or (0, min(each.transcript.steps for each in ranks))
    common = set.intersection(*(set(each.transcript.checkpoint_steps) for each in ranks))
    begin = max((c for c in common if c <= first), default=0)
    rendezvous = Rendezvous(len(ranks))
    for number, each in enumerate(ranks):
        each.prepare(begin, (first, last), device, VirtualRank(rendezvous, number))
    keep_freed()
    warm()
    works = [partial(each.run, None if number else progress) for number, each in enumerate(ranks)]
    with conforming():
        made = in_turn(rendezvous.turns, works, lambda rank, gave: False)
    return [each for each in made if each is not None]


def ranks_of(job: Path) -> list[Path]:
    """Returns the directories of the transcripts of a job's ranks; raises as `read_job`."""
    return [job / rank_name(rank) for rank in range(read_job(job).ranks)]
