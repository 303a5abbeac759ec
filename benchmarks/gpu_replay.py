"""Full sizes recorded on the CPU and replayed on a GPU, and the other way, bit for bit.

`python -m benchmarks.gpu_replay [--only NAME ...] [--devices RECORDED,REPLAYED ...] [--steps N]`. A replay runs in the
confined worker and compares every rounded result and the digest of the whole state, optimizer included, after each
step. Each pair of subject and devices is written to benchmarks/results/gpu.json as soon as it is done; others keep
their last results. Exit code 1 if a replay did not match, 2 without a CUDA device.

`--dry-run` tries the script out on the CPU with tiny sizes: both sides are the CPU, and nothing is written.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_subjects, machine
from benchmarks.gpu_subjects import SEED, SUBJECTS
from prover import Recorder
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.reader import Transcript

PAIRS = ("cpu,cuda", "cuda,cpu")
LEAST_STEPS = 20


def record(name: str, device: str, path: Path, steps: int, tiny: bool) -> dict[str, Any]:
    """Records a subject from its initialisation on; returns what it took."""
    taken = []
    begin = time.perf_counter()
    with Recorder(path, seed=SEED, policy=gpu_subjects.policy(name)) as recorder:
        with recorder.initialisation():
            made = SUBJECTS[name](device, tiny)
        recorder.attach(made.model, made.optimizer)
        for number in range(steps):
            batch = made.batch(number)
            start = time.perf_counter()
            with recorder.step(batch):
                made.update(batch)
            taken.append(time.perf_counter() - start)
        rounded, logged = recorder.rounded, recorder.logged
    return {
        "parameters": sum(p.numel() for p in made.model.parameters()),
        "updates": steps,
        "rounded": rounded,
        "logged": logged,
        "step_seconds": round(statistics.median(taken), 3),
        "record_seconds": round(time.perf_counter() - begin, 1),
    }


def examine(name: str, recorded_on: str, replayed_on: str, steps: int, tiny: bool) -> dict[str, Any]:
    """Records on one device and replays on another; a run that fails is a result too."""
    result: dict[str, Any] = {
        "recorded_on": recorded_on, "replayed_on": replayed_on, "seed": SEED, "policy": gpu_subjects.policy(name),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="weighbridge-gpu-") as directory:
        path = Path(directory) / "run"
        try:
            result |= record(name, recorded_on, path, steps, tiny)
            transcript = Transcript.open(path)
            state = transcript.step(transcript.steps - 1).state.hex()
            begin = time.perf_counter()
            found = replay(path, device=replayed_on, limits=Limits(memory=64 << 30, seconds=3600))
        except WeighbridgeError as error:
            return {**result, "verdict": "error", "same_state": False, "message": error.message}
        return {
            **result,
            "verdict": found.verdict,
            "same_state": found.state == state and found.steps[1] == transcript.steps,
            "state": state,
            "replay_device": found.device,
            "replay_seconds": round(time.perf_counter() - begin, 1),
            "roundings_that_differed": found.followed,
            "first_difference": found.first_difference,
            "confinement": found.confinement,
        }


def line(name: str, result: dict[str, Any]) -> str:
    """One result for a person."""
    matched = result["verdict"] == "match" and result["same_state"]
    rest = result.get("message") or (
        f"{result['updates']} updates, {result['step_seconds']} s a step, replayed in {result['replay_seconds']} s; "
        f"{result['rounded']:,} roundings, {result['logged']:,} logged, {result['roundings_that_differed']:,} differed"
    )
    return f"{name}, {result['recorded_on']} -> {result['replayed_on']}: {'match' if matched else 'DIFFERS'}; {rest}"


def main() -> int:
    """Runs what was asked for; returns 1 if a replay did not match."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SUBJECTS), help="run this subject; may be repeated")
    parser.add_argument("--devices", action="append", choices=PAIRS, help="recorded on,replayed on; may be repeated")
    parser.add_argument("--steps", type=int, default=LEAST_STEPS, help=f"updates, at least {LEAST_STEPS}")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, CPU on both sides, nothing written")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.dry_run:
        print("DRY RUN: tiny models, 2 updates, the CPU on both sides; no result is written", flush=True)
    else:
        gpu_subjects.require_cuda()
        if options.steps < LEAST_STEPS:
            parser.error(f"results are of at least {LEAST_STEPS} steps")
    failed = 0
    for name in options.only or list(SUBJECTS):
        for pair in ["cpu,cpu"] if options.dry_run else options.devices or PAIRS:
            recorded_on, replayed_on = pair.split(",")
            steps = 2 if options.dry_run else options.steps
            result = examine(name, recorded_on, replayed_on, steps, tiny=options.dry_run)
            failed += not (result["verdict"] == "match" and result["same_state"])
            print(line(name, result), flush=True)
            if not options.dry_run:
                torch.cuda.empty_cache()
                whole = machine.load("gpu") or {}
                whole[f"{name} {recorded_on} to {replayed_on}"] = {**gpu_subjects.about(), **result}
                machine.save("gpu", dict(sorted(whole.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
