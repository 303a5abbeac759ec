"""Jobs on several ranks: the transcripts of all ranks put together, and what a replay of them says about one rank.

Each rank runs on its own chip and has its own transcript. What a rank computes depends on all others through the
collectives, so a snapshot of its chip is explained by a replay of all ranks in turn, up to its position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from verifier.model.facts import Shard, TranscriptFacts
from verifier.store.cache import Cache
from weighbridge.core.errors import Finding, ReplayWorkerError, TranscriptError, WeighbridgeError
from weighbridge.execution.job_replay import JobReplayResult
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.job_record import MeshCoordinate, check_coordinate


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
    coordinate = facts.opened.coordinate()
    if coordinate is None:
        return None
    try:
        return Shard(
            coordinate=coordinate, job=cache.job(coordinate.job, _transcripts(coordinate, facts, ranks, fetch))
        )
    except WeighbridgeError as error:
        return Shard(coordinate=coordinate, job=error)


def _transcripts(
    coordinate: MeshCoordinate, facts: TranscriptFacts, ranks: Sequence[str], fetch: Callable[[str], TranscriptFacts]
) -> list[OpenedTranscript]:
    """Returns the transcripts of all ranks, each of which is that of its rank.

    Raises:
        WeighbridgeError: One is missing, cannot be used, or is another rank's.
    """
    if len(ranks) != coordinate.job.ranks or ranks[coordinate.rank] != facts.id or not all(ranks):
        raise TranscriptError(
            f"this is the transcript of rank {coordinate.rank} of {coordinate.job.ranks}, and the Prover does not name "
            "one for each of them; demand the others",
            code="job.incomplete",
        )
    opened = []
    for rank, identifier in enumerate(ranks):
        transcript = fetch(identifier).opened
        if isinstance(transcript, WeighbridgeError):
            raise transcript
        check_coordinate(coordinate.job, rank, transcript.coordinate())
        opened.append(transcript)
    return opened


def _by_rank(finding: Finding, rank: int) -> Finding:
    return replace(finding, subject=f"rank {rank}: {finding.subject}".rstrip(": "))


def of_rank(result: JobReplayResult, rank: int) -> ReplayResult:
    """Returns what the replay of a job says about one rank's snapshot: the rank's own result on a match.

    Beside it stands what training each rank's steps are, and which rounding logs of other ranks could not be used, as
    these were asked for too. Otherwise it returns the result of the rank that decided, with
    that rank in every finding and in the first difference.

    Raises:
        ReplayWorkerError: The worker's answer has nothing about the rank.
    """
    decided = rank if result.rank is None else result.rank
    found = result.ranks[decided] if 0 <= decided < len(result.ranks) else None
    if found is None:
        raise ReplayWorkerError(f"the replay worker says nothing about rank {decided}")
    logs = [
        _by_rank(each, number)
        for number, answer in enumerate(result.ranks)
        for each in (answer.findings if answer is not None and number != decided else ())
        if each.id.startswith("transcript.supplement.")
    ]
    others = (each.probable for number, each in enumerate(result.ranks) if each is not None and number != decided)
    found = replace(found, probable_elsewhere=sum(others))
    if result.verdict == "match":
        of_ranks = [each.recognised if each is not None else [] for each in result.ranks]
        return replace(found, findings=[*found.findings, *logs], of_ranks=of_ranks)
    findings = [*(_by_rank(each, decided) for each in found.findings), *logs]
    return replace(found, findings=findings, first_difference=result.first_difference, live=None)
