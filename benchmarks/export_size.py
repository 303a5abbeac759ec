"""How large a transcript is that leaves out what a replay recomputes.

`python -m benchmarks.export_size [--only NAME ...] [--steps N]` records each model from its initialisation with a
checkpoint every two steps, makes a minimal copy, and replays the copy in a fresh process. Results go to
benchmarks/results/export_size.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, soak
from prover import Recorder
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.export import export

SUBJECTS = ("gpt2-124m", "gpt2")
EVERY = 2


def examine(name: str, steps: int) -> dict[str, Any]:
    """Records, copies and replays one model; returns its sizes in bytes."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-export-") as directory:
        run, out = Path(directory) / "run", Path(directory) / "minimal"
        begin = time.perf_counter()
        with Recorder(run, seed=soak.SEED, checkpoint_every=EVERY) as recorder:
            with recorder.initialisation():
                made = soak.SUBJECTS[name].build()
            recorder.attach(*made.attached)
            for number in range(steps):
                batch = made.batch(number)
                with recorder.step(batch):
                    made.update(batch)
        recorded = time.perf_counter()
        done = export(run, out, minimal=True)
        exported = time.perf_counter()
        result = replay(out, limits=Limits(seconds=7200))
        return {
            "parameters": sum(p.numel() for p in made.attached[0].parameters()),
            "steps": steps,
            "seed": soak.SEED,
            "before": done.before,
            "after": done.after,
            "bytes_before": sum(done.before.values()),
            "bytes_after": sum(done.after.values()),
            "files_left_out": len(done.left_out),
            "verdict": result.verdict,
            "state": result.state,
            "record_seconds": round(recorded - begin, 1),
            "export_seconds": round(exported - recorded, 1),
            "replay_seconds": round(time.perf_counter() - exported, 1),
        }


def main() -> int:
    """Runs the measurements; returns 1 if a copy did not replay to a match."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="measure this model; may be repeated")
    parser.add_argument("--steps", type=int, default=4, help="steps of each model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = machine.load("export_size") or {"models": {}}
    for name in options.only or SUBJECTS:
        found = examine(name, options.steps)
        results = {**machine.about(), "models": {**results["models"], name: found}}
        machine.save("export_size", results)
        print(
            f"{name}: {found['bytes_before']:,} bytes, {found['bytes_after']:,} minimal, {found['verdict']}", flush=True
        )
    return int(any(found["verdict"] != "match" for found in results["models"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
