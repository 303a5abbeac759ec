"""The process that reads a job's tapes and step records to check a cell: `workers.cell_worker`, confined.

See `weighbridge.execution.cell_questions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor_sequence, read_file
from weighbridge.core.errors import TranscriptError
from weighbridge.execution.cell_questions import MOST_FINDINGS, MOST_SIDES
from weighbridge.execution.collective_openings import (
    MAX_OPENINGS,
    Commitments,
    Target,
    read_openings,
    ref_bytes,
    verify,
)
from weighbridge.execution.workers.replay_worker import serve


def plan(commitments: Commitments, rank: int, step: int, op: int) -> dict[str, Any]:
    """Says which steps and results of collectives the cell of a position has."""
    transcript = commitments.transcript(rank)
    begin = max((c for c in transcript.checkpoint_steps if c <= step), default=0)
    end = min(step + bool(op), transcript.steps)
    for other in range(commitments.record.ranks):
        theirs = commitments.transcript(other)
        if theirs.steps < end and not theirs.manifest.complete:
            raise TranscriptError(
                f"the transcript of rank {other} ends in a crash before step {end - 1} was whole, so what it "
                "contributed cannot be recomputed; not verified",
                code="job.tail",
            )
    sides = [
        [at, committed.call.op, out, ref_bytes(ref)]
        for at in range(begin, end)
        for committed in sorted(commitments.step(rank, at).values(), key=lambda each: each.call.op)
        for out, ref in enumerate(committed.call.outs)
        if ref_bytes(ref)
    ]
    if len(sides) > MOST_SIDES:
        raise TranscriptError(f"the cell has more than {MOST_SIDES} results of collectives; replay all ranks")
    return {"steps": [begin, end], "sides": sides}


def check(
    commitments: Commitments, rank: int, steps: list[int], chunks: list[list[int]], opened: str
) -> dict[str, Any]:
    """Checks opened chunks one by one, and compares what members say that they got."""
    targets = [Target(*chunk) for chunk in chunks]
    data = read_file(Path(opened), max_bytes=DEFAULT_LIMITS.file)
    findings = []
    if data:
        sequence = decode_cbor_sequence(data, max_length=MAX_OPENINGS, max_items=DEFAULT_LIMITS.items)
        for target, raw in zip(targets, sequence, strict=True):
            findings += verify(commitments, rank, [target], read_openings(raw))
    findings += commitments.equal_results(rank, (steps[0], steps[1]))
    return {"findings": [finding.to_json() for finding in findings[:MOST_FINDINGS]]}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request of `weighbridge.execution.cell_questions`."""
    questions = {each.__name__: each for each in (plan, check)}
    return questions[request["question"]](Commitments(request["path"]), **request["about"])


def main() -> None:
    """Answers one request."""
    serve(lambda request, confined, send: answer(request))


if __name__ == "__main__":
    main()
