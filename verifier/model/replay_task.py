"""One replay as plain data: what a stage asks of a farm, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.worker_process import Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One replay: of some steps, or to a position.

    Attributes:
        key: Names it among others.
        name: What to call it in messages.
        path: The transcript's directory, or that of a job.
        rank: The rank whose position it is, of a job; else None.
        steps: (first, last + 1) of the steps to replay; None with a position.
        stop: The position: (step, operations of it that were complete).
        salt: Keys the digests of the live storages at a position.
        results: A file with the results of the rank's collectives, to be taken as given: then it is replayed alone.
        recognise: How many of the steps to recognise, and the seed of their draw; of transcripts that are no rank's.
        sensitivity: How many of the steps to test for their sensitivity; of transcripts that are no rank's.
        device: `cpu`, `cuda`, `cuda:1`; without a number, any of that kind.
        limits: On memory and time.
        env: Environment for the worker.
    """

    key: str
    name: str
    path: Path
    rank: int | None = None
    steps: tuple[int, int] | None = None
    stop: tuple[int, int] | None = None
    salt: bytes | None = None
    results: Path | None = None
    recognise: tuple[int, int] = (0, 0)
    sensitivity: int = 0
    device: str = "cpu"
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task.

    Attributes:
        result: What the replay found, or why there was none.
        seconds: How long it took.
    """

    result: ReplayResult | WeighbridgeError
    seconds: float
