"""What a Verifier has to know of a job's collectives to check a cell, found out in a confined worker.

Which results a cell has follows from the tapes of its rank, and whether opened chunks are what all ranks committed to
from the tapes and step records of them all. The Verifier's own process decodes neither: it draws chunks, and passes on
what the Prover opens, in a file. Answers are read as hostile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weighbridge.core.errors import Finding, ReplayWorkerError
from weighbridge.execution.collective_openings import Target
from weighbridge.execution.replay import Limits, finding_of, raise_error, run_worker

MOST_SIDES, MOST_FINDINGS = 1_000_000, 1_000
LIMITS = Limits()
_WORKER = "weighbridge.execution.workers.cell_worker"


@dataclass(frozen=True, slots=True)
class Side:
    """One result of a collective of a cell.

    Attributes:
        step: The step.
        op: Index of the collective in the rank's tape.
        out: Which of its results.
        bytes: Its size.
    """

    step: int
    op: int
    out: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What a cell consists of.

    Attributes:
        steps: (first, last + 1): from the last checkpoint, to the step of which operations ran.
        sides: All results of collectives in these steps that have elements, in the order of the program.
    """

    steps: tuple[int, int]
    sides: tuple[Side, ...]


def plan(job: Path, rank: int, position: tuple[int, int], *, limits: Limits = LIMITS) -> CellPlan:
    """Finds out which steps and results the cell of a position has.

    Args:
        job: Directory with the transcripts of all ranks.
        rank: The cell's rank.
        position: (step, operations complete).
        limits: On the worker's memory and time.

    Raises:
        TranscriptError: `job.tail` if a crash kept a rank from steps whose collectives are needed; or a transcript is
            damaged.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    raw = _ask("plan", job, {"rank": rank, "step": position[0], "op": position[1]}, limits)
    try:
        first, end = raw["steps"]
        if len(raw["sides"]) > MOST_SIDES:
            raise ValueError("sides")
        sides = tuple(Side(*(_natural(number) for number in side)) for side in raw["sides"])
        return CellPlan((_natural(first), _natural(end)), sides)
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(error) from None


def check(
    job: Path, rank: int, steps: tuple[int, int], targets: Sequence[Target], opened: Path, *, limits: Limits = LIMITS
) -> list[Finding]:
    """Checks opened chunks of a cell's results, and compares what the members of its collectives say that they got.

    Args:
        job: Directory with the transcripts of all ranks.
        rank: The cell's rank.
        steps: (first, last + 1) of the cell.
        targets: The chunks that were opened.
        opened: A file with a CBOR sequence of what `collective_openings.encode` gives of one opening, for each of them.
        limits: On the worker's memory and time.

    Raises:
        WeighbridgeError: A transcript is damaged, or the worker could not do it.
    """
    chunks = [[each.step, each.op, each.out, each.chunk] for each in targets]
    about = {"rank": rank, "steps": steps, "chunks": chunks, "opened": str(opened.resolve())}
    raw = _ask("check", job, about, limits, opened)
    try:
        return [finding_of(each) for each in raw["findings"][:MOST_FINDINGS]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(error) from None


def _ask(question: str, job: Path, about: Mapping[str, Any], limits: Limits, *files: Path) -> Any:
    request = {
        "path": str(job.resolve()), "paths": [str(each.resolve()) for each in (job, *files)], "question": question,
        "about": dict(about), "device": "cpu", "memory": limits.memory, "seconds": limits.seconds,
    }  # fmt: skip
    message = run_worker(_WORKER, request, limits)
    raise_error(message)
    if not isinstance(message.get("result"), dict):
        raise ReplayWorkerError("the worker's answer is malformed")
    return message["result"]


def _natural(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw < 1 << 62:
        raise ValueError("number")
    return raw


def _malformed(error: Exception) -> ReplayWorkerError:
    return ReplayWorkerError(f"the worker's answer is malformed ({type(error).__name__})")
