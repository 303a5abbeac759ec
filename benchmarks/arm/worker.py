"""Records and replays what it is told to, on the processor that it runs on: JSON in and out, a line each.

No confinement: an emulated process cannot give up rights of the real one, and what is replayed was recorded here.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.differences import Pair
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.warm import warm
from weighbridge.program.same_operations import digest_of_operations
from weighbridge.transcript.reader import Transcript

_GIVEN = {"steps": None, "device": "cpu", "stop": None, "salt": bytes(32).hex(), "memory": 16 << 30}


def about() -> dict[str, Any]:
    """Returns what this process runs on, after all loops are compiled."""
    compiled = warm(lambda done, total: print(f"compiled loops: {done} of {total}", file=sys.stderr, flush=True))
    return {**machine.about(), "processor": machine.processor(), "compiled": compiled}


def record(path: Path, subject: str) -> dict[str, Any]:
    """Records a subject; returns what its transcript says."""
    from benchmarks.arm import subjects

    facts = subjects.record(subject, path)
    return {**facts, **recorded(path)}


def programs(path: Path, other: Path) -> dict[str, Any]:
    """Compares the programs of two transcripts of one training.

    Returns:
        Of how many steps the tapes are equal byte by byte, of how many they are the same operations on the same data,
        and the first other difference, or None.
    """
    pair = Pair(Transcript.open(path), Transcript.open(other))
    same, known, different = [0, 0], dict[bytes, bool](), None
    for step in range(pair.a.steps):
        digest = pair.a.step(step).tape
        identical = digest == pair.b.step(step).tape
        if digest not in known:
            a, b = pair.tapes(step)
            known[digest] = identical or digest_of_operations(a) == digest_of_operations(b)
        same[0] += identical
        same[1] += known[digest]
        if not known[digest] and different is None:
            different = pair.differences(step)[0]
    return {"steps": pair.a.steps, "equal_tapes": same[0], "same_operations": same[1], "first": different}


def recorded(path: Path) -> dict[str, Any]:
    """Returns what a transcript says: its policy, its roundings, and its last state."""
    transcript = Transcript.open(path)
    steps = [transcript.step(number) for number in range(transcript.steps)]
    return {
        "policy": transcript.draft["policy"],
        "steps": len(steps),
        "rounded": sum(step.rounded for step in steps),
        "logged": sum(step.logged for step in steps),
        "state": steps[-1].state.hex(),
    }


def replay(path: Path) -> dict[str, Any]:
    """Replays a transcript, or all ranks of a job together; returns the outcome."""
    request = {**_GIVEN, "path": str(path)}
    with torch.no_grad(), conforming():
        if (path / "job.cbor").exists():
            whole = JobReplay(request, [], lambda message: None).run()
            return _outcome(whole["ranks"], whole["verdict"])
        found = Replay(request, [], lambda message: None).run()
    return _outcome([found], found["verdict"])


def _outcome(ranks: list[dict[str, Any]], verdict: str) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "states": [rank["state"] for rank in ranks],
        **{name: sum(rank[name] for rank in ranks) for name in ("followed", "logged", "rounded", "calibrated")},
        "first_difference": next((r["first_difference"] for r in ranks if r["first_difference"] is not None), None),
        "findings": sorted({finding["id"] for rank in ranks for finding in rank["findings"]}),
    }


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    path = Path(request["path"])
    match request["do"]:
        case "about":
            return about()
        case "record":
            return record(path, request["subject"])
        case "programs":
            return programs(path, path.parent / request["other"])
        case "replay":
            return replay(path)
    raise ValueError(f"no request is named {request['do']!r}")


def main() -> None:
    """Answers until stdin ends."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            with redirect_stdout(sys.stderr):
                answer = _answer(json.loads(line))
        except (WeighbridgeError, LookupError, ValueError, RuntimeError, OSError) as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
