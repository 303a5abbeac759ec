"""The process that counts a run's facts: `workers.run_facts_worker`, confined as `replay_worker` is."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from weighbridge.attest.approved_passport import passport_digest
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.run_facts import KINDS
from weighbridge.execution.workers.serving import serve
from weighbridge.program.flops import flops, narrow
from weighbridge.program.origins import TapeValues, analyse
from weighbridge.program.passport import facts
from weighbridge.program.tape_checks import declared_programs
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import Scalar
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.tensor_file import DTYPES


def count(transcript: Transcript) -> dict[str, Any]:
    """Returns what `weighbridge.execution.run_facts.parse` reads.

    Args:
        transcript: A verified transcript.

    Raises:
        WeighbridgeError: A tape or a step record breaks its format.
    """

    @cache
    def program(digest: bytes) -> Tape:
        return Tape.decode(transcript.tape(digest))

    work: dict[bytes, tuple[int, int] | None] = {}
    programs: dict[bytes, dict[str, Any]] = {}
    done: dict[str, int] | None = dict.fromkeys(KINDS, 0)
    operations: set[str] = set()
    used: set[int] = set()
    seen = 0
    reached: list[tuple[int, int]] | None = [(0, 0)]
    for record in transcript.records():
        tape = program(record.tape)
        if record.tape not in work:
            work[record.tape] = _work(tape)
            operations |= {node.op for node in tape.nodes}
            programs[record.tape] = {
                "digest": record.tape.hex(), "kind": record.kind, "first": record.step, "count": 0, "steps": 0,
                "operations": len(tape.nodes), "flops": None if (own := work[record.tape]) is None else own[0],
            }  # fmt: skip
        programs[record.tape]["count"] += 1
        programs[record.tape]["steps"] += record.kind == "step"
        each = work[record.tape]
        done = None if done is None or each is None else {**done, record.kind: done[record.kind] + each[0]}
        if reached is not None:
            before = reached[-1]
            if each is None:
                reached = None
            else:
                reached.append((before[0] + each[0], before[1] + each[1]))
        used.update(record.records)
        seen += len(record.records)
    values = analyse(transcript, program)
    return {
        "steps": sum(record.kind == "step" for record in transcript.records()),
        "flops": done,
        "fixed": declared_programs(transcript) is not None,
        "programs": list(programs.values()),
        "operations": sorted(operations),
        "parameters": _parameters(transcript),
        "used": len(used),
        "seen": seen,
        "hyperparameters": _hyperparameters(transcript, values),
        "initial": (0, 0) if reached is None else reached[min(1, transcript.steps)],
        "passport": passport_digest(facts(transcript, program, values)),
        "repetitions": [] if reached is None else _repetitions(transcript, reached),
    }


def _repetitions(transcript: Transcript, reached: list[tuple[int, int]]) -> list[Any]:
    """Returns what each resumption did again: step, begin, and the amounts before its checkpoint and after its end."""
    found: list[Any] = []
    for each in transcript.resumptions:
        checkpoint = max((c for c in transcript.manifest.checkpoints if c <= each.begin), default=0)
        end = min(each.step + 1, transcript.steps)
        found.append((each.step, each.begin, reached[min(checkpoint, transcript.steps)], reached[end]))
    return found


def _work(tape: Tape) -> tuple[int, int] | None:
    """Returns a tape's FLOPs, and the elements in 16 bits that it computes."""
    try:
        counted = flops(tape)
        return sum(counted), sum(narrow(tape, counted))
    except WeighbridgeError:
        return None  # the replay says what is wrong with it


def _parameters(transcript: Transcript) -> int | None:
    """Counts the elements of the model's weights, in the first checkpoint that has them."""
    if transcript.notes is None or not transcript.notes.weights or not transcript.checkpoint_steps:
        return None
    checkpoint = transcript.checkpoint(transcript.checkpoint_steps[-1])
    sizes = {view.storage: DTYPES[view.dtype].itemsize for view in checkpoint.views}
    total = 0
    for name in transcript.notes.weights:
        if name not in checkpoint.storages or name not in sizes:
            return None
        total += checkpoint.storages[name].numel() // sizes[name]
    return total


def _hyperparameters(transcript: Transcript, values: dict[bytes, TapeValues]) -> dict[str, list[float]]:
    """Returns the least, greatest and last of the values that each declared formula explains."""
    found: dict[str, list[float]] = {}
    for record in transcript.records():
        for place, name in values[record.tape].changing.items():
            if name is None or name.endswith("host") or place >= len(record.values):
                continue
            value: Scalar = record.values[place]
            if math.isfinite(value):
                known = found.setdefault(name, [float(value)] * 3)
                found[name] = [min(known[0], value), max(known[1], value), float(value)]
    return found


def main() -> None:
    """Answers one request."""
    serve(lambda request, confined, send: count(Transcript.open(request["path"])), executes=False)


if __name__ == "__main__":
    main()
