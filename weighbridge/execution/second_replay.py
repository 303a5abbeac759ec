"""Replays a transcript with the second Executor (`second`) in a confined process, and reads its answer as hostile.

It loads neither PyTorch nor JAX: the worker does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from weighbridge.execution.replay import DEFAULT_LIMITS
from weighbridge.execution.worker_answers import MALFORMED, digest, malformed, natural, text
from weighbridge.execution.worker_process import Limits, raise_error, run_worker

Verdict = Literal["match", "differs", "not covered"]

_NAMES = ("operation", "expected", "found", "code", "message")


@dataclass(slots=True)
class SecondResult:
    """What a replay with the second Executor came to.

    Attributes:
        verdict: `match`; `differs`: an operation has another result, or the tape or its log is not in order; or `not
            covered`: an operation has no rule here, and nothing is said from there on.
        steps: First step executed, and the step that it came to.
        state: Hex digest of the state there.
        rounded: Elements rounded in complete steps.
        contested: Those of them of which the logs have entries.
        followed: Those of these that would have come out otherwise here.
        first_difference: Where it differs: `step`, `op`, `operation`, `expected`, `found`, as the first Executor says
            it, with `code` and `message`; or None.
        lacks: The first operation that has no rule here, or what else is not covered; empty if nothing.
        confinement: Restrictions that were in force.
    """

    verdict: Verdict
    steps: tuple[int, int]
    state: str
    rounded: int
    contested: int
    followed: int
    first_difference: dict[str, Any] | None = None
    lacks: str = ""
    confinement: list[str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary with every field."""
        return asdict(self)


def second_replay(
    path: str | Path, *, steps: tuple[int, int] | None = None, limits: Limits = DEFAULT_LIMITS,
    progress: Callable[[int, int], None] | None = None,
) -> SecondResult:  # fmt: skip
    """Replays a transcript with the second Executor.

    Args:
        path: Transcript directory.
        steps: (first, last + 1); all by default. Execution starts at the nearest checkpoint at or before `first`.
        limits: On memory and time.
        progress: Called with (steps done, steps to do).

    Raises:
        TranscriptError: If the transcript is unreadable, altered or incomplete (or another `WeighbridgeError` with its
            code).
        ReplayWorkerError: If the worker died, ran out of its limits or answered nonsense.
    """
    request = {
        "path": str(Path(path).resolve()), "steps": steps, "device": "cpu", "memory": limits.memory,
        "seconds": limits.seconds,
    }  # fmt: skip
    return parse(run_worker("weighbridge.execution.workers.second_worker", request, limits, None, progress))


def parse(message: dict[str, Any]) -> SecondResult:
    """Reads the worker's answer: every field has its type or the answer is refused.

    Raises:
        WeighbridgeError: The error that the worker answered.
        ReplayWorkerError: The answer is malformed.
    """
    try:
        raise_error(message)
        raw = message["result"]
        if raw["verdict"] not in get_args(Verdict):
            raise ValueError("verdict")
        difference = raw["first_difference"]
        if difference is not None:
            difference = {k: natural(difference[k]) for k in ("step", "op")} | {
                k: text(difference[k], 4000) for k in _NAMES if k in difference
            }
        if (raw["verdict"] == "differs") != (difference is not None) or len(raw["steps"]) != 2:
            raise ValueError("difference")
        return SecondResult(
            verdict=raw["verdict"],
            steps=(natural(raw["steps"][0]), natural(raw["steps"][1])),
            state=digest(raw["state"]).hex(),
            rounded=natural(raw["rounded"]),
            contested=natural(raw["contested"]),
            followed=natural(raw["followed"]),
            first_difference=difference,
            lacks=text(raw["lacks"], 200),
            confinement=[text(each, 50) for each in raw["confinement"] or []],
        )
    except MALFORMED as error:
        raise malformed(error) from None
