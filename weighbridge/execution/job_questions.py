"""What a Verifier has to know of a job, found out in a confined worker.

Which results a cell has follows from the tapes of its rank, and whether opened chunks are what all ranks committed to
from the tapes and step records of them all. The Verifier's own process decodes neither: it draws chunks, and passes on
what the Prover opens, in a file. Answers are read as hostile.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from weighbridge.core.bounded import open_regular
from weighbridge.core.errors import Finding
from weighbridge.execution.collective_openings import Target
from weighbridge.execution.replay_answer import MOST_FINDINGS, finding_of
from weighbridge.execution.worker_answers import MALFORMED, digest, malformed, natural, shaped
from weighbridge.execution.worker_process import Limits, raise_error, run_worker
from weighbridge.transcript.collectives import chunk_count

T = TypeVar("T")

MOST_SIDES = 1_000_000
LIMITS = Limits()
_WORKER = "weighbridge.execution.workers.job_questions_worker"
DESCRIPTION = {
    "job": str, "mesh": {str: int},
    "ranks": [{"rank": int, "transcript": str, "steps": int, "shards": int, "collectives": {str: int}}],
}  # fmt: skip
"""What `describe` returns, for `shaped`."""


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

    @property
    def chunks(self) -> int:
        """How many chunks it has."""
        return chunk_count(self.bytes)


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What a cell consists of.

    Attributes:
        steps: (first, last + 1): from the last checkpoint, to the step of which operations ran.
        sides: All results of collectives in these steps that have elements, in the order of the program.
    """

    steps: tuple[int, int]
    sides: tuple[Side, ...]


def describe(job: Path, *, limits: Limits = LIMITS) -> dict[str, Any]:
    """Says which ranks a job has and what they exchange.

    Args:
        job: Directory with the transcripts of all ranks.
        limits: On the worker's memory and time.

    Returns:
        `job` (its hex identifier), `mesh` (axis to size), and `ranks`: of each its `rank`, the identifier of its
        `transcript`, how many `steps` and sharded tensors (`shards`) that has, and `collectives` by name.

    Raises:
        WeighbridgeError: A transcript is damaged or that of another rank, or the worker could not do it.
    """

    def read(raw: Any) -> dict[str, Any]:
        said: dict[str, Any] = shaped(raw, DESCRIPTION)
        bytes.fromhex(said["job"])
        for each in said["ranks"]:
            digest(each["transcript"])
        return said

    return _ask("describe", job, {}, limits, read)


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

    def read(raw: Any) -> CellPlan:
        first, end = raw["steps"]
        return CellPlan((natural(first), natural(end)), _sides(raw))

    return _ask("plan", job, {"rank": rank, "step": position[0], "op": position[1]}, limits, read)


def results(job: Path, rank: int, steps: tuple[int, int], *, limits: Limits = LIMITS) -> tuple[Side, ...]:
    """Finds out which results of collectives with elements a cell has, in the order of the program.

    Args:
        job: Directory with the transcripts of all ranks.
        rank: The cell's rank.
        steps: (first, last + 1) of the cell.
        limits: On the worker's memory and time.

    Raises:
        WeighbridgeError: A transcript is damaged, or the worker could not do it.
    """
    return _ask("results", job, {"rank": rank, "steps": steps}, limits, _sides)


def chunks_of(sides: Sequence[Side], numbers: Iterable[int]) -> list[Target]:
    """Returns chunks of a cell's results by their numbers among all of its chunks, in the given order.

    There is no list of all chunks: a hostile tape may claim more of them than memory holds.

    Args:
        sides: The results.
        numbers: Each from 0 to the sum of the results' `chunks` less 1.
    """
    ends = list(accumulate(side.chunks for side in sides))
    found = []
    for number in numbers:
        at = bisect.bisect_right(ends, number)
        found.append(Target(sides[at].step, sides[at].op, sides[at].out, number - (ends[at] - sides[at].chunks)))
    return found


def check(
    job: Path,
    rank: int,
    steps: tuple[int, int],
    targets: Sequence[Target],
    opened: Path,
    *,
    together: bool = False,
    limits: Limits = LIMITS,
) -> list[Finding]:
    """Checks opened chunks of a cell's results, and compares what the members of its collectives say that they got.

    Args:
        job: Directory with the transcripts of all ranks.
        rank: The cell's rank.
        steps: (first, last + 1) of the cell.
        targets: The chunks that were asked for.
        opened: A file with a CBOR sequence of what `collective_openings.encode` gives of one opening, for each of them.
        together: The file has what it gives of all openings at once instead, whichever they are.
        limits: On the worker's memory and time.

    Raises:
        WeighbridgeError: A transcript is damaged, `opened` is no regular file, or the worker could not do it.
    """
    open_regular(opened).close()  # a worker with a root of its own sees what a link leads to, and not the link
    opened = opened.resolve()
    chunks = [[each.step, each.op, each.out, each.chunk] for each in targets]
    about = {"rank": rank, "steps": steps, "chunks": chunks, "opened": str(opened), "together": together}
    return _ask("check", job, about, limits, _findings, opened)


def layout(job: Path, run: Path, step: int, *, limits: Limits = LIMITS) -> tuple[int, list[Finding]]:
    """Compares what each rank of a job holds with the state of a run that was not sharded.

    Args:
        job: Directory with the transcripts of all ranks.
        run: Transcript of the same training on one device.
        step: The states before this step are compared.
        limits: On the worker's memory and time.

    Returns:
        How many shards were compared, and the findings (`layout.differs`).

    Raises:
        UsageError: They do not all have a checkpoint before this step.
        WeighbridgeError: A transcript is damaged, or the worker could not do it.
    """
    about = {"run": str(run.resolve()), "step": step}
    return _ask("layout", job, about, limits, lambda raw: (natural(raw["shards"]), _findings(raw)), run)


def _ask(
    question: str, job: Path, about: Mapping[str, Any], limits: Limits, read: Callable[[Any], T], *files: Path
) -> T:
    """Asks a worker and reads its answer as hostile."""
    request = {
        "path": str(job.resolve()), "paths": [str(each.resolve()) for each in (job, *files)], "question": question,
        "about": dict(about), "device": "cpu", "memory": limits.memory, "seconds": limits.seconds,
    }  # fmt: skip
    message = run_worker(_WORKER, request, limits)
    raise_error(message)
    try:
        return read(message["result"])
    except MALFORMED as error:
        raise malformed(error) from None


def _sides(raw: Any) -> tuple[Side, ...]:
    if len(raw["sides"]) > MOST_SIDES:
        raise ValueError("sides")
    return tuple(Side(*(natural(number, 1 << 62) for number in side)) for side in raw["sides"])


def _findings(raw: Any) -> list[Finding]:
    return [finding_of(each) for each in raw["findings"][:MOST_FINDINGS]]
