"""What the digest of the work takes beside a replay, and whether other instruction sets give the same one.

`python -m benchmarks.bench_audits [--steps 4 12] [--rounds 2]`. A small GPT-2 is recorded for several lengths, and all
of its steps are replayed as one segment, in workers of their own: without a key (straight-line programs run there once
a program was executed), with one, and with one on another instruction set. In each round these are measured in turn, on
the wall. Ratios are of minima over the rounds of one run. Every digest of a round is compared with those of the others.
Results go to benchmarks/results/audits.json.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from benchmarks import bench_disputes, machine
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits

STEPS = (4, 12)
ROUNDS = 2
LIMITS = Limits(4 << 30, 600)


def measure(run: Path, rounds: int) -> dict[str, Any]:
    """Measures replays of one training.

    Raises:
        RuntimeError: A replay does not match, or two have different digests.
    """
    times: dict[str, list[float]] = {name: [] for name in ("plain", "keyed", "elsewhere")}
    steps = 0
    for _ in range(rounds):
        key, digests = secrets.token_bytes(32), set()
        for name, env in (("plain", machine.HERE), ("keyed", machine.HERE), ("elsewhere", machine.SSE2)):
            began = time.perf_counter()
            result = replay(run, limits=LIMITS, env=env, work_key=None if name == "plain" else key)
            times[name].append(time.perf_counter() - began)
            if result.verdict != "match":
                raise RuntimeError(f"the replay is a {result.verdict}")
            digests |= {result.work} - {None}
            steps = result.steps[1]
        if len(digests) != 1:
            raise RuntimeError("two replays of one segment have different digests")
    least = {name: min(taken) for name, taken in times.items()}
    return {
        "steps": steps,
        "seconds": {name: [round(each, 3) for each in taken] for name, taken in times.items()},
        "keyed / plain": round(least["keyed"] / least["plain"], 3),
    }


if __name__ == "__main__":
    bench_disputes.measure_lengths("audits", __doc__, measure, STEPS, ROUNDS)
