"""Jobs on several ranks: the transcripts of all ranks put together, and replayed up to a position of one of them.

Each rank runs on its own chip and has its own transcript. What a rank computes depends on all others through the
collectives, so a snapshot of its chip is explained by a replay of all ranks in turn, up to its position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from verifier.cache import Cache
from verifier.facts import Shard, TranscriptFacts
from weighbridge.errors import ReplayWorkerError, TranscriptError, WeighbridgeError
from weighbridge.job import Place, check_place
from weighbridge.job_replay import JobReplayResult, replay_job
from weighbridge.replay import Limits, ReplayResult
from weighbridge.transcript import Transcript


def shard_of(
    facts: TranscriptFacts, ranks: Sequence[str], fetch: Callable[[str], TranscriptFacts], cache: Cache
) -> Shard | None:
    """Returns which rank's transcript it is, with the job that it is part of; None if it is of none.

    Args:
        facts: The transcript that the Prover names for a snapshot.
        ranks: The transcripts that it names for all ranks.
        fetch: Fetches a transcript.
        cache: Where jobs are put together.

    Raises:
        FormatError: What the transcript says about its job is malformed.
    """
    if isinstance(facts.opened, WeighbridgeError):
        return None
    place = Place.of(facts.opened.draft)
    if place is None:
        return None
    try:
        return Shard(place=place, job=cache.job(place.job, _transcripts(place, facts, ranks, fetch)))
    except WeighbridgeError as error:
        return Shard(place=place, job=error)


def _transcripts(
    place: Place, facts: TranscriptFacts, ranks: Sequence[str], fetch: Callable[[str], TranscriptFacts]
) -> list[Transcript]:
    """Returns the transcripts of all ranks, each of which is that of its rank.

    Raises:
        WeighbridgeError: One is missing, cannot be used, or is another rank's.
    """
    if len(ranks) != place.job.ranks or ranks[place.rank] != facts.id or not all(ranks):
        raise TranscriptError(
            f"this is the transcript of rank {place.rank} of {place.job.ranks}, and the Prover does not name one for "
            "each of them; demand the others",
            code="job.incomplete",
        )
    opened = []
    for rank, identifier in enumerate(ranks):
        transcript = fetch(identifier).opened
        if isinstance(transcript, WeighbridgeError):
            raise transcript
        check_place(place.job, rank, transcript)
        opened.append(transcript)
    return opened


def replay_shard(
    shard: Shard,
    step: int,
    op: int,
    *,
    salt: bytes,
    device: str,
    limits: Limits,
    env: Mapping[str, str],
    progress: Callable[[int, int], None],
) -> ReplayResult:
    """Replays all ranks of a job up to a position of one, and returns what was found there.

    Args:
        shard: Whose position it is; its job must be there.
        step: Step of the position.
        op: Operations of that step that were complete.
        salt: Keys the digests of the live storages.
        device: What executes.
        limits: On memory and time.
        env: Environment for the worker.
        progress: Called with (steps done, steps to do).

    Returns:
        The rank's own result on a match. Else that of the rank that decided, with that rank in every finding and in the
        first difference.

    Raises:
        WeighbridgeError: The job cannot be replayed.
    """
    if isinstance(shard.job, WeighbridgeError):
        raise shard.job
    rank = shard.place.rank
    result = replay_job(
        shard.job, device=device, stop=(rank, step, op), salt=salt, limits=limits, env=env, progress=progress
    )
    return of_rank(result, rank)


def of_rank(result: JobReplayResult, rank: int) -> ReplayResult:
    """Returns what the replay of a job says about one rank's snapshot; see `replay_shard`.

    Raises:
        ReplayWorkerError: The worker's answer has nothing about the rank.
    """
    decided = rank if result.rank is None else result.rank
    found = result.ranks[decided] if 0 <= decided < len(result.ranks) else None
    if found is None:
        raise ReplayWorkerError(f"the replay worker says nothing about rank {decided}")
    if result.verdict == "match":
        return found
    findings = [replace(each, subject=f"rank {decided}: {each.subject}".rstrip(": ")) for each in found.findings]
    return replace(found, findings=findings, first_difference=result.first_difference, live=None)
