"""The process that reads a job for one that must not: `workers.job_questions_worker`, confined.

See `weighbridge.execution.job_questions`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor_sequence, read_file
from weighbridge.core.errors import Finding, TranscriptError, UsageError
from weighbridge.execution.collective_openings import (
    Commitments,
    Target,
    decode,
    read_openings,
    ref_bytes,
    verify,
)
from weighbridge.execution.given_terms import MAX_OPENINGS
from weighbridge.execution.job_questions import MOST_SIDES
from weighbridge.execution.replay_answer import told
from weighbridge.execution.workers.serving import serve
from weighbridge.transcript import layout as layouts
from weighbridge.transcript.reader import Transcript


def describe(commitments: Commitments) -> dict[str, Any]:
    """Says which ranks the job has and what they exchange."""
    ranks: list[dict[str, Any]] = []
    for rank in range(commitments.record.ranks):
        transcript = commitments.transcript(rank)
        names = Counter(c.call.name for step in range(transcript.steps) for c in commitments.step(rank, step).values())
        shards = sum(s.sizes != s.shape for s in transcript.layout())
        facts = {"rank": rank, "transcript": transcript.digest, "steps": transcript.steps, "shards": shards}
        ranks.append({**facts, "collectives": dict(sorted(names.items()))})
    return {"job": commitments.record.id.hex(), "mesh": dict(commitments.record.mesh), "ranks": ranks}


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
    return {"steps": [begin, end], **results(commitments, rank, [begin, end])}


def results(commitments: Commitments, rank: int, steps: list[int]) -> dict[str, Any]:
    """Says which results of collectives some steps have."""
    sides = [
        [at, committed.call.op, out, ref_bytes(ref)]
        for at in range(*steps)
        for committed in sorted(commitments.step(rank, at).values(), key=lambda each: each.call.op)
        for out, ref in enumerate(committed.call.outs)
        if ref_bytes(ref)
    ]
    if len(sides) > MOST_SIDES:
        raise TranscriptError(f"the cell has more than {MOST_SIDES} results of collectives; replay all ranks")
    return {"sides": sides}


def check(
    commitments: Commitments, rank: int, steps: list[int], chunks: list[list[int]], opened: str, together: bool
) -> dict[str, Any]:
    """Checks opened chunks, and compares what members say that they got."""
    targets = [Target(*chunk) for chunk in chunks]
    data = read_file(Path(opened), max_bytes=DEFAULT_LIMITS.file)
    findings = []
    if together:
        findings += verify(commitments, rank, targets, decode(data))
    elif data:
        sequence = decode_cbor_sequence(data, max_length=MAX_OPENINGS, max_items=DEFAULT_LIMITS.items)
        for target, raw in zip(targets, sequence, strict=True):
            findings += verify(commitments, rank, [target], read_openings(raw))
    findings += commitments.equal_results(rank, (steps[0], steps[1]))
    return {"findings": told(findings)}


def layout(commitments: Commitments, run: str, step: int) -> dict[str, Any]:
    """Compares what each rank holds, by its layout, with the state of a run that was not sharded."""
    unsharded = Transcript.open(run)
    ranks = [commitments.transcript(rank) for rank in range(commitments.record.ranks)]
    common = sorted(set.intersection(*(set(each.checkpoint_steps) for each in (unsharded, *ranks))))
    if step not in common:
        raise UsageError(f"not all of them have a checkpoint before step {step}; they share those before {common[:20]}")
    whole, findings, shards = unsharded.tensors(step), list[Finding](), 0
    for rank, transcript in enumerate(ranks):
        held = transcript.tensors(step)
        wanted = [shard for shard in transcript.layout() if shard.name in held or shard.name in whole]
        shards += len(wanted)
        findings += [replace(f, subject=f"rank {rank}: {f.subject}") for f in layouts.check(wanted, held, whole)]
    return {"shards": shards, "findings": told(findings)}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request of `weighbridge.execution.job_questions`."""
    questions = {each.__name__: each for each in (describe, plan, results, check, layout)}
    return questions[request["question"]](Commitments(request["path"]), **request["about"])


def main() -> None:
    """Answers one request."""
    serve(lambda request, confined, send: answer(request))


if __name__ == "__main__":
    main()
