"""Scores of a run's final state on data that the run's owner never saw, computed without any of its code.

A benchmark is a file of batches in the form of the run's own. A confined worker replays the last step, so that the
state it scores is the transcript's; then it executes the program of that step once more, as if another step followed,
on each batch of the benchmark, up to the operation that computes the loss, and reads what the loss is computed from:
the scores of each class and the answers that are asked for. The metric is computed from these by our own arithmetic.

What that means: the model is evaluated as it trains (with dropout, and with statistics of the batch where it uses
them), in batches of the size that it trained with, on one loss of negative log-likelihoods; a program that reads
numbers back from tensors before its loss, or has several such losses, cannot be evaluated. The answers must be those of
the benchmark. A program can be written to do badly on purpose on data that it recognises: it is all on the tape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution.worker_process import Limits, raise_error, run_worker

Metric = Literal["cross_entropy", "accuracy"]
EXPECTED = "expected"
"""Name of the tensor of a batch that holds the answers, in order; the others are those of the run's batch."""

_DEFAULT = Limits()


class ScoringError(WeighbridgeError):
    """A run cannot be scored on a benchmark; not evidence against the Prover."""

    code = "score.unavailable"


@dataclass(frozen=True, slots=True)
class Score:
    """What a benchmark gave.

    Attributes:
        value: The metric: mean negative log-likelihood in nats, or share of right answers.
        answers: How many answers it is over.
    """

    value: float
    answers: int


def score(
    path: str | Path,
    benchmark: str | Path,
    metric: Metric,
    *,
    device: str = "cpu",
    limits: Limits = _DEFAULT,
    env: Mapping[str, str] | None = None,
) -> Score:
    """Scores the state after the last step of a transcript.

    Args:
        path: Transcript directory.
        benchmark: A safetensors file of batches: `0/NAME`, `1/NAME`, ..., the names, shapes and dtypes being those of
            the run's batch; and `0/expected`, `1/expected`, ...: the answers, int64, in one dimension.
        metric: What to compute.
        device: Where to.
        limits: On memory and time.
        env: Environment for the worker.

    Raises:
        ScoringError: The run or its program cannot be scored on this benchmark.
        WeighbridgeError: The transcript is damaged, or the benchmark is no such file.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    request = {
        "path": str(Path(path).resolve()),
        "benchmark": str(Path(benchmark).resolve()),
        "paths": [str(Path(path).resolve()), str(Path(benchmark).resolve())],
        "metric": metric,
        "device": device,
        "memory": limits.memory,
        "seconds": limits.seconds,
    }
    return parse(run_worker("weighbridge.execution.workers.scoring_worker", request, limits, env))


def parse(message: dict[str, Any]) -> Score:
    """Reads the worker's answer as hostile.

    Raises:
        WeighbridgeError: The error that the worker answered.
        ReplayWorkerError: The answer is malformed.
    """
    try:
        raise_error(message)
        value, answers = message["result"]["value"], message["result"]["answers"]
        if type(value) is float and math.isfinite(value) and type(answers) is int and 0 < answers < 1 << 62:
            return Score(value, answers)
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise ReplayWorkerError("the scoring worker's answer is malformed")
