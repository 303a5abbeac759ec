"""What logs as sketches keep and cost: steps recorded in the three kinds of logs, and replays with other kernels.

`python -m benchmarks.bench_sketched_logs [--rounds N] [--only NAME ...]`. Kinds are measured in turn, with one thread
each (`benchmarks.stepping`), under autocast in bfloat16. Then a fresh process with
SSE2 kernels replays the runs with logs in full and with sketches; seconds are of the whole replay. Ratios are of
medians, and of minima, which the rest of the machine disturbs least. Bytes are of the rounding files, over the steps.

Results go to benchmarks/results/sketched_logs.json after each model, beside what it has of others on the same machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.bench_logs_on_demand import SEED, recorded
from benchmarks.stepping import in_turn, ratio, summary
from weighbridge import replay
from weighbridge.core.host_memory import keep_freed

NAMES = ("gpt2", "gpt2-11m")
KINDS = ("full", "on-demand", "sketch")
PRECISION = "bf16 autocast"
WARM = 2
ELSEWHERE = {**machine.SSE2, "MKL_CBWR": "COMPATIBLE"}
"""MKL heeds `MKL_CBWR` on processors of every make."""


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Measures one model."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        folder = Path(directory)
        arguments = {kind: ("--kind", kind, "--child", name, "--path", str(folder / kind)) for kind in KINDS}
        times = in_turn("benchmarks.bench_sketched_logs", arguments, rounds, WARM, orderly=True)
        kept = {kind: _size(folder / kind / "rounding") / (WARM + rounds) for kind in KINDS}
        replays = {kind: _replay(folder / kind) for kind in ("full", "sketch")}
    pairs = (("sketch", "full"), ("sketch", "on-demand"), ("on-demand", "full"))
    return {
        "rounds": rounds,
        "milliseconds": {kind: summary(taken) for kind, taken in times.items()},
        "ratios": {f"{a} / {b}": ratio(times, a, b) for a, b in pairs},
        "bytes_a_step": {kind: round(size) for kind, size in kept.items()},
        "smaller_by": round(kept["full"] / kept["sketch"], 1),
        "replays": replays,
    }


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _replay(run: Path) -> dict[str, Any]:
    begin = time.perf_counter()
    result = replay(run, env=ELSEWHERE)
    return {
        "verdict": result.verdict,
        "steps": result.steps[1] - result.steps[0],
        "overruled": result.evidence["overruled"],
        "charged_bits": round(result.evidence["charged_bits"], 1),
        "seconds": round(time.perf_counter() - begin, 2),
    }


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if options.child:
        torch.manual_seed(SEED)
        keep_freed()
        recorded(options.child, PRECISION, options.path, options.kind)
        return
    for name in options.only or NAMES:
        found = measure(name, options.rounds)
        print(f"{name}: {json.dumps(found)}", flush=True)
        keep({f"{name}, {PRECISION}": found})


def keep(found: dict[str, Any]) -> None:
    """Saves what was found, beside what is known of other models on the same machine: a table has one machine."""
    about = {**machine.about(), "seed": SEED}
    known = machine.load("sketched_logs") or {}
    same = all(known.get(key) == value for key, value in about.items() if key != "date")
    machine.save("sketched_logs", {**about, "models": {**(known["models"] if same else {}), **found}})


if __name__ == "__main__":
    main()
