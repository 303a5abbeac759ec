"""What steps cost that run as programs while they are recorded, beside plain ones and those recorded one by one.

`python -m benchmarks.bench_compiled [--rounds N] [--only NAME ...]`. Each way has a process of its own with one thread,
kept waiting between steps; rounds go through the ways in turn, one step each, so that all meet the same state of the
machine. A step's time is the processor time of its process, all threads together, with all that the Recorder does
beside. The first steps, which compile kernels and teach compiled steps, are not counted, and a compiled step that did
not run as a program ends the benchmark. *Plain* is float32 as PyTorch does it unasked; *wide* the same training in
float64 with nothing rounded or recorded. Ratios are of medians. Results go to benchmarks/results/compiled.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import machine
from benchmarks.bench_steps import FULL, SEED, _build
from prover import Recorder
from weighbridge.core.host_memory import keep_freed
from weighbridge.transcript.log_kinds import LogKind

NAMES = ("gpt2", "resnet", "lstm", "gpt2-11m")
RECORDED: dict[str, tuple[LogKind, bool]] = {
    "full": ("full", False),
    "full_compiled": ("full", True),
    "on_demand": ("on-demand", False),
    "on_demand_compiled": ("on-demand", True),
}
WAYS = ("plain", "wide", *RECORDED)
FEWER = dict.fromkeys(FULL, ("plain", "wide", "on_demand", "on_demand_compiled"))
"""Ways in which large models are measured, whose states would not all lie in memory at once."""
WARM = 7


def _timed(step: Callable[[int], Any]) -> None:
    """Does one step for every line on stdin and answers how much processor time it took, in seconds."""
    for number, _ in enumerate(sys.stdin):
        begin = time.process_time()
        step(number)
        print(json.dumps(time.process_time() - begin), flush=True)


def plain(name: str, dtype: torch.dtype = torch.float32) -> None:
    """Trains and records nothing."""
    made = _build(name).to(dtype)
    if dtype is torch.float32:
        _timed(lambda number: made.update(made.batch(number)))
        return
    with sdpa_kernel([SDPBackend.MATH]):
        _timed(lambda number: made.update(made.batch(number)))


def recorded(name: str, path: Path, logs: LogKind, *, compiled: bool) -> None:
    """Records."""
    with Recorder(path, seed=SEED, checkpoint_every=1 << 20, logs=logs, device="cpu") as recorder:
        with recorder.initialisation():
            made = _build(name)
        recorder.attach(*made.attached)
        call = recorder.compile(made.update)

        def step(number: int) -> None:
            batch = made.batch(number)
            if not compiled:
                with recorder.step(batch):
                    made.update(batch)
                return
            call(batch)
            if number >= WARM and call.reason:
                raise SystemExit(f"step {number} did not run as a program: {call.reason}")

        _timed(step)


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Measures one model in all ways."""
    processes: dict[str, subprocess.Popen[str]] = {}
    ways = FEWER.get(name, WAYS)
    times: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        try:
            for way in ways:
                given = ("--way", way, "--child", name, "--path", str(Path(directory) / way))
                processes[way] = machine.start(
                    "benchmarks.bench_compiled", *given, environment=machine.HERE, stdin=subprocess.PIPE
                )
            for _ in range(WARM + rounds):
                for way, process in processes.items():
                    times[way].append(1e3 * _step(way, process))
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()
    counted = {way: taken[WARM:] for way, taken in times.items()}
    middle = {way: statistics.median(taken) for way, taken in counted.items()}
    pairs = [(way, base) for way in RECORDED for base in ("plain", "wide")]
    pairs += [("full_compiled", "full"), ("on_demand_compiled", "on_demand"), ("wide", "plain")]
    return {
        "rounds": rounds,
        "cpu_ms": {
            way: {"median": round(middle[way], 2), "min": round(min(taken), 2), "max": round(max(taken), 2)}
            for way, taken in counted.items()
        },
        **{
            f"{way}_over_{base}": round(middle[way] / middle[base], 3)
            for way, base in pairs
            if way in middle and base in middle
        },
    }


def _step(way: str, process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the process that measures the way {way!r} died; its message is above")
    return float(json.loads(line))


def child(way: str, name: str, path: Path) -> None:
    """Is one of the processes."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    keep_freed()
    if way in RECORDED:
        logs, compiled = RECORDED[way]
        recorded(name, path, logs, compiled=compiled)
    else:
        plain(name, torch.float64 if way == "wide" else torch.float32)


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*NAMES, *FULL], help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if options.child:
        child(options.way, options.child, options.path)
        return
    about = {**machine.about(), "seed": SEED}
    known = machine.load("compiled") or {}
    same = all(known.get(key) == value for key, value in about.items() if key != "date")
    models: dict[str, Any] = known["models"] if known and same and options.only else {}
    for name in options.only or NAMES:
        models[name] = measured(name, options.rounds)
        print(f"{name}: {json.dumps(models[name])}", flush=True)
        machine.save("compiled", {**about, "models": models})


if __name__ == "__main__":
    main()
