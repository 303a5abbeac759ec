"""Ten simulated years of ten million chips, in a process that does nothing else: prints time and memory as JSON.

`python -m benchmarks.simulate_decade CASE WORKERS` with a case of `CASES`; see `benchmarks.bench_simulator`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.attack import found_probability
from analysis.simulated_fleet import simulate
from analysis.strategies import Goal, Holding, Policy, Strategy, crews

CHIPS = 10_000_000
A = 8.64e19  # FLOPs a day, as in the paper's table 1
DECADE = 3660.0  # 122 months of 30 days
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Case:
    """What is simulated: FLOPs and days of each run, chips drawn each month, histories, what replay misses."""

    flops: float
    days: float
    samples: int
    histories: int
    replay_missed: float = 0.0


CASES = {
    "GPT-3": Case(3.14e23, 30.0, 199_726, 10),
    "Chinchilla": Case(5.76e23, 30.0, 109_315, 10),
    "Chinchilla-1T": Case(1.27e26, 30.0, 495, 10),
    "Chinchilla-10T": Case(1.3e28, 30.0, 5, 10),
    "half drawn": Case(3.14e23, 30.0, CHIPS // 2, 1),
    "all": Case(CHIPS * A * DECADE, DECADE, CHIPS, 1, replay_missed=1.0),
}
"""The rows of table 1 with its samples a year, then the dearest cases: half of all chips drawn every month, and every
chip at work on one run of ten years and drawn every month, while no replay ever finds anything and so nothing ends."""


def peak_bytes() -> int:
    """Most memory that this process has held; what `getrusage` says includes the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(name: str, workers: int) -> dict[str, Any]:
    """Plays one case out."""
    case = CASES[name]
    plan: dict[str, Any] = {
        "holdings": (Holding(CHIPS, A),),
        "policy": Policy(
            samples=case.samples, period_days=30.0, snapshot_rate_per_day=0.1, replay_missed=case.replay_missed
        ),
        "goal": Goal(case.flops, case.days),
        "strategy": Strategy(),
    }
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = simulate(**plan, trials=case.histories, seed=1, horizon_days=DECADE, workers=workers)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = outcome.detected(CONFIDENCE)
    return {
        "case": name,
        "histories": case.histories,
        "runs": outcome.found_after.size,
        "involved": int(
            sum(crew.chips for crew in crews(plan["strategy"], plan["goal"], plan["holdings"], plan["policy"]))
        ),
        "samples": case.samples,
        "inspected": case.histories * outcome.drawn,
        "seconds": wall,
        "cpu_seconds": cpu,
        "peak_bytes": peak_bytes(),
        "found": found.value,
        "low": found.low,
        "high": found.high,
        "formula": found_probability(**plan),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
