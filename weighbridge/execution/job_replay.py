"""Replays a job on several ranks on one machine, all ranks in turn, and says whether it holds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weighbridge.core.errors import ReplayWorkerError, UsageError
from weighbridge.execution.replay import DEFAULT_LIMITS, replay, request_of
from weighbridge.execution.replay_answer import ReplayResult, Verdict, parse
from weighbridge.execution.worker_process import Limits, Worker, raise_error, run_worker
from weighbridge.program.tape_policy import AS_DESIGNED, TapePolicy
from weighbridge.transcript.job_record import MeshCoordinate, rank_name, read_job


@dataclass(slots=True)
class JobReplayResult:
    """What the replay of a whole job found.

    Attributes:
        job: Hex identifier of the job.
        verdict: The worst of all ranks; `match` is unconditional.
        rank: The rank that decided the verdict; None on a match.
        ranks: Result of each rank; None for one that was stopped because another ended the replay.
    """

    job: str
    verdict: Verdict
    rank: int | None
    ranks: list[ReplayResult | None]

    @property
    def first_difference(self) -> dict[str, Any] | None:
        """The first difference, as in a `ReplayResult`, with its `rank`; None on a match."""
        result = None if self.rank is None else self.ranks[self.rank]
        found = None if result is None else result.first_difference
        return None if found is None else {"rank": self.rank, **found}

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary with every field."""
        ranks = [None if each is None else each.to_json() for each in self.ranks]
        return {**asdict(self), "ranks": ranks, "first_difference": self.first_difference}


def replay_job(
    path: str | Path,
    *,
    steps: tuple[int, int] | None = None,
    device: str = "cpu",
    stop: tuple[int, int, int] | None = None,
    salt: bytes | None = None,
    limits: Limits = DEFAULT_LIMITS,
    env: Mapping[str, str] | None = None,
    op_rules: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    tapes: TapePolicy = AS_DESIGNED,
    cancelled: Callable[[], bool] | None = None,
    worker: Worker | None = None,
    recognise: int = 0,
    recognise_seed: int | None = None,
) -> JobReplayResult:
    """Replays all ranks of a job in one process, without `torch.distributed`.

    Args:
        path: The job's directory.
        steps: (first, last + 1) of every rank; all by default.
        device: What executes: `cpu`, `cuda`, ...
        stop: Replay until (rank, step, operations complete), and return that rank's live storages there.
        salt: Keys the digests of the live storages; required with `stop`.
        limits: On memory (of each rank's tapes) and time (of all).
        env: Environment for the worker on top of the few variables passed on.
        op_rules: As for `weighbridge.execution.replay.replay`.
        progress: Called with (steps done, steps to do) of the first rank.
        tapes: What may enter programs, and how grave it is if more does.
        cancelled: As for `weighbridge.execution.replay.replay`.
        worker: As for `weighbridge.execution.replay.replay`.
        recognise: Of so many of the executed steps, drawn at random, the training is recognised, of all ranks together.
        recognise_seed: 64 bits of which this draw follows; chance by default.

    Returns:
        The result; a mismatch is a result, not an error.

    Raises:
        TranscriptError: A transcript is unreadable, altered, incomplete, or another rank's (`job.rank.mismatch`).
        UsageError: It is no job, or the arguments make no sense for it.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    request = request_of(path, steps, device, stop, salt, limits, op_rules, tapes)
    request["recognise"] = (
        [recognise, secrets.randbits(64) if recognise_seed is None else recognise_seed]
        if recognise and stop is None
        else None
    )
    return _parse(
        (worker or run_worker)("weighbridge.execution.workers.job_worker", request, limits, env, progress, cancelled)
    )


def replay_cell(
    path: str | Path,
    rank: int,
    *,
    results: str | Path,
    steps: tuple[int, int] | None = None,
    device: str = "cpu",
    stop: tuple[int, int] | None = None,
    salt: bytes | None = None,
    limits: Limits = DEFAULT_LIMITS,
    env: Mapping[str, str] | None = None,
    op_rules: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    tapes: TapePolicy = AS_DESIGNED,
    cancelled: Callable[[], bool] | None = None,
    worker: Worker | None = None,
) -> ReplayResult:
    """Replays one rank of a job alone, with the results of its collectives taken as given.

    Args:
        path: The job's directory.
        rank: The rank.
        results: The file of results that the Prover made for this cell.
        steps: (first, last + 1), usually between two checkpoints; all by default.
        device: What executes.
        stop: Replay to exactly this position (step, operations complete) instead; see `execution.replay.replay`.
        salt: Keys the digests of the live storages; required with `stop`.
        limits: On memory and time.
        env: As for `weighbridge.execution.replay.replay`.
        op_rules: As for `weighbridge.execution.replay.replay`.
        progress: Called with (steps done, steps to do).
        tapes: What may enter programs, and how grave it is if more does.
        cancelled: As for `weighbridge.execution.replay.replay`.
        worker: As for `weighbridge.execution.replay.replay`.

    Returns:
        The result; a match is `match given collectives` (unless the cell has none), and then the Verifier opens random
        chunks (`weighbridge.execution.collective_openings`).

    Raises:
        TranscriptError: The transcript does not verify or is another rank's, or the results are not those that the step
            records name (`job.results.mismatch`).
        UsageError: It is no job, or has no such rank or steps.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    record = read_job(path)
    if not 0 <= rank < record.ranks:
        raise UsageError(f"the job has ranks 0:{record.ranks}; there is no rank {rank}")
    return replay(
        Path(path) / rank_name(rank), steps=steps, device=device, stop=stop, salt=salt, limits=limits, env=env,
        op_rules=op_rules, progress=progress, tapes=tapes, results=results, coordinate=MeshCoordinate(record, rank),
        cancelled=cancelled, worker=worker,
    )  # fmt: skip


def _parse(message: dict[str, Any]) -> JobReplayResult:
    """Reads the worker's answer as hostile."""
    try:
        raise_error(message)
        raw = message["result"]
        ranks = [None if each is None else parse({"result": each}) for each in raw["ranks"][:4096]]
        rank = None if raw["rank"] is None else int(raw["rank"])
        verdict = raw["verdict"]
        decided = [r for r in ranks if r is not None] if rank is None else [ranks[rank]]
        if not decided or any(r is None or r.verdict != verdict for r in decided):
            raise ValueError("verdict")
        return JobReplayResult(bytes.fromhex(raw["job"]).hex(), verdict, rank, ranks)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ReplayWorkerError(f"the replay worker's answer is malformed ({type(error).__name__})") from None
