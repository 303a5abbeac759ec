"""Losses of a run's own batches at its checkpoints, computed in a confined process without any of the run's code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.worker_process import Limits, raise_error, run_worker

_DEFAULT = Limits()


def losses(
    path: str | Path,
    checkpoints: Sequence[int],
    steps: Sequence[int],
    *,
    device: str = "cpu",
    limits: Limits = _DEFAULT,
    env: Mapping[str, str] | None = None,
) -> list[list[float]]:
    """Evaluates the batches of some steps under the weights of some checkpoints.

    As for `weighbridge.execution.scoring`, the model is evaluated as it trains, on one loss of negative
    log-likelihoods.

    Args:
        path: Transcript directory.
        checkpoints: Steps that have a checkpoint.
        steps: Whose batches to evaluate.
        device: Where to.
        limits: On memory and time.
        env: Environment for the worker.

    Returns:
        For each checkpoint, the mean loss of each batch in nats.

    Raises:
        ScoringError: The programs that ran there cannot be evaluated.
        WeighbridgeError: The transcript is damaged.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    request = {
        "path": str(Path(path).resolve()),
        "checkpoints": list(checkpoints),
        "steps": list(steps),
        "device": device,
        "memory": limits.memory,
        "seconds": limits.seconds,
    }
    answer = run_worker("weighbridge.execution.workers.losses_worker", request, limits, env)
    return parse(answer, rows=len(checkpoints), columns=len(steps))


def parse(message: dict[str, Any], *, rows: int, columns: int) -> list[list[float]]:
    """Reads the worker's answer as hostile.

    Raises:
        WeighbridgeError: The error that the worker answered.
        ReplayWorkerError: The answer is malformed, or a loss is no finite number.
    """
    try:
        raise_error(message)
        found = message["result"]["losses"]
        shaped = len(found) == rows and all(len(row) == columns for row in found)
        if shaped and all(type(x) is float and math.isfinite(x) for row in found for x in row):
            return [list(row) for row in found]
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise ReplayWorkerError("the answer of the process that evaluates losses is malformed")
