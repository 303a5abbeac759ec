"""Facts about a run that follow from its transcript alone: FLOPs, programs, data used, hyperparameters, size.

A confined worker reads the tapes and counts; nothing is executed. The parent reads its small answer as hostile. Whether
the transcript is true is for replays to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.worker_answers import digest
from weighbridge.execution.worker_process import Limits, raise_error, run_worker

KINDS = ("init", "step", "edit")
_MOST = 100_000
_LARGEST = 1 << 200
_DEFAULT = Limits()


@dataclass(frozen=True, slots=True)
class Program:
    """One tape of a run.

    Attributes:
        digest: Hex digest.
        kind: `init`, `step` or `edit`: of the first step that ran it.
        first: That step.
        count: How often it ran.
        operations: Its length.
        flops: FLOPs of one execution, by `weighbridge.program.flops`; None if it cannot be counted.
        steps: How many of them were records of kind `step`; None in facts that an earlier version counted.
    """

    digest: str
    kind: str
    first: int
    count: int
    operations: int
    flops: int | None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Amount:
    """How much was computed.

    Attributes:
        flops: FLOPs, by `weighbridge.program.flops`.
        narrow: Elements in 16 bits.
    """

    flops: int = 0
    narrow: int = 0


@dataclass(frozen=True, slots=True)
class Repetition:
    """What a recorded resumption had computed again.

    Attributes:
        step: Steps that were whole by then.
        begin: First step that was recomputed.
        start: What comes before the checkpoint from which the state before `begin` is made.
        end: What there is up to the end of `step`, which the crash may have cut off anywhere.
    """

    step: int
    begin: int
    start: Amount
    end: Amount


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What a transcript says about its run, counted by its reader.

    Attributes:
        steps: Records of kind `step`.
        flops: By kind of record, FLOPs of all its executions; None if a tape cannot be counted.
        fixed: Whether the draft names the programs that may run; what ran beside them is a finding (`tape.undeclared`).
        programs: Every tape that ran, in order of first use.
        operations: Every ATen overload in them, ascending.
        parameters: Elements of the storages that hold the model's weights; None if the run names none.
        used: Different records that the steps used.
        seen: Records that they used, counted as often as they were.
        hyperparameters: By formula that explains a value: its least, greatest and last value.
        initial: What step 0 computed, which every resumption does again.
        repetitions: One for each recorded resumption, in order; none if a tape cannot be counted.
        passport: Hex digest of the passport of its programs (`weighbridge.program.passport`); empty in facts that an
            earlier version counted.
    """

    steps: int
    flops: Mapping[str, int] | None
    fixed: bool
    programs: tuple[Program, ...]
    operations: tuple[str, ...]
    parameters: int | None
    used: int
    seen: int
    hyperparameters: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    initial: Amount = Amount()
    repetitions: tuple[Repetition, ...] = ()
    passport: str = ""

    @property
    def total(self) -> int | None:
        """FLOPs of the whole run; None if they cannot be counted."""
        return None if self.flops is None else sum(self.flops.values())

    @property
    def repeated(self) -> int:
        """FLOPs that its resumptions did again, at most."""
        return sum(max(0, r.end.flops - r.start.flops) + self.initial.flops for r in self.repetitions)


def examine(path: str | Path, *, limits: Limits = _DEFAULT, env: Mapping[str, str] | None = None) -> RunFacts:
    """Counts what a transcript says about its run.

    Args:
        path: Transcript directory.
        limits: On memory and time.
        env: Environment for the worker.

    Raises:
        TranscriptError: The transcript is unreadable or altered (or another `WeighbridgeError` with its code).
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    request = {
        "path": str(Path(path).resolve()),
        "device": "cpu",
        "memory": limits.memory,
        "seconds": limits.seconds,
    }
    return parse(run_worker("weighbridge.execution.workers.run_facts_worker", request, limits, env))


def parse(message: dict[str, Any]) -> RunFacts:
    """Reads the worker's answer as hostile: every field has its type or the answer is refused.

    Raises:
        WeighbridgeError: The error that the worker answered.
        ReplayWorkerError: The answer is malformed.
    """
    try:
        raise_error(message)
        raw = message["result"]
        flops = raw["flops"]
        return RunFacts(
            steps=_whole(raw["steps"]),
            flops=None if flops is None else {kind: _whole(flops[kind]) for kind in KINDS},
            fixed=_truth(raw["fixed"]),
            programs=tuple(
                Program(
                    digest=bytes.fromhex(each["digest"]).hex(),
                    kind=KINDS[KINDS.index(each["kind"])],
                    first=_whole(each["first"]),
                    count=_whole(each["count"]),
                    operations=_whole(each["operations"]),
                    flops=None if each["flops"] is None else _whole(each["flops"]),
                    steps=_whole(each["steps"]),
                )
                for each in raw["programs"][:_MOST]
            ),
            operations=tuple(str(name)[:200] for name in raw["operations"][:_MOST]),
            parameters=None if raw["parameters"] is None else _whole(raw["parameters"]),
            used=_whole(raw["used"]),
            seen=_whole(raw["seen"]),
            hyperparameters={
                str(name)[:40]: (_finite(values[0]), _finite(values[1]), _finite(values[2]))
                for name, values in list(raw["hyperparameters"].items())[:_MOST]
            },
            initial=_amount(raw["initial"]),
            repetitions=tuple(
                Repetition(_whole(step), _whole(begin), _amount(start), _amount(end))
                for step, begin, start, end in raw["repetitions"][:_MOST]
            ),
            passport=digest(raw["passport"]).hex(),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ReplayWorkerError(f"the worker's answer is malformed ({type(error).__name__})") from None


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError("number")
    return value


def _amount(value: Any) -> Amount:
    flops, narrow = value
    return Amount(_whole(flops), _whole(narrow))


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("truth value")
    return value


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("number")
    return float(value)
