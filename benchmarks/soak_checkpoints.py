"""Honest replays on other instruction sets: how many of many checkpoints would accuse an honest Prover.

`python -m benchmarks.soak_checkpoints [--only NAME ...] [--checkpoints N]` records models of 2 M parameters with a
checkpoint after every step, in runs of 100 steps with a seed each, on this machine's own instruction set with one
thread. Every run is replayed in fresh processes under two other instruction sets with other numbers of threads; each
compares the digest of the whole state (weights, buffers, optimizer state, generators) after every step.

Beside it the published method (`benchmarks.baselines`) trains the same models from the same seeds with the same
batches, logging at the published band, and is audited in the same places. It commits to weights and buffers as float32;
a checkpoint in which any of them differs is a false accusation.

Results go to benchmarks/results/soak_checkpoints.json after every run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, models
from prover import Recorder
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.transcript.reader import Transcript

SUBJECTS = ("mlp-2m", "gpt2-2m")
SEED = 100
RUN = 100
"""Steps of a run: a checkpoint after each takes up to 22 MB."""


def record(name: str, seed: int, steps: int, path: Path) -> None:
    """Records one run, in this process, with a checkpoint after every step."""
    torch.set_num_threads(1)
    with Recorder(path, seed=seed, checkpoint_every=1) as recorder:
        with recorder.initialisation():
            step = models.named(name)()
        recorder.attach(*step.attached)
        for number in range(steps):
            batch = step.batch(1000 * seed + number)
            with recorder.step(batch):
                step.update(batch)


def again(path: Path, environment: machine.Environment) -> dict[str, Any]:
    """Replays a run elsewhere; returns the checkpoints compared and those that did not match."""
    transcript = Transcript.open(path)
    checkpoints = len([c for c in transcript.checkpoint_steps if c > 1])  # 1 is W_0
    begin = time.perf_counter()
    try:
        result = replay(path, env=environment)
    except WeighbridgeError as error:
        return {"matched": 0, "not_matched": checkpoints, "message": error.message}
    final = transcript.step(transcript.steps - 1).state.hex()
    whole = result.verdict == "match" and result.state == final and result.steps == (0, transcript.steps)
    matched = checkpoints if whole else max(0, result.steps[1] - 1)
    return {
        "device": result.device, "verdict": result.verdict, "matched": matched, "not_matched": checkpoints - matched,
        "roundings_that_differed": result.followed, "rounded": result.rounded, "logged": result.logged,
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def ours(name: str, seed: int, steps: int, directory: Path) -> dict[str, Any]:
    """Records and replays one run."""
    path = directory / "run"
    begin = time.perf_counter()
    arguments = ("--record", name, "--seed", str(seed), "--checkpoints", str(steps), "--path", str(path))
    machine.ask("benchmarks.soak_checkpoints", *arguments, environment=machine.HERE)
    took = time.perf_counter() - begin
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda environment: again(path, environment), machine.ELSEWHERE.values())
    shutil.rmtree(path)
    return {"record_seconds": round(took, 1), "replays": dict(zip(machine.ELSEWHERE, answers, strict=True))}


def baseline(name: str, seed: int, steps: int, directory: Path) -> dict[str, Any]:
    """Trains and audits one run by the published method."""
    arguments = ("--model", name, "--steps", str(steps), "--seed", str(seed), "--directory", str(directory))
    trained = machine.ask("benchmarks.baselines.training", "train", *arguments, environment=machine.HERE)
    audits = {
        place: machine.start("benchmarks.baselines.training", "audit", *arguments, environment=environment)
        for place, environment in machine.ELSEWHERE.items()
    }
    answers = {}
    for place, process in audits.items():
        audited = machine.answer(process)
        differing = [
            [tensor for tensor, digest in theirs.items() if mine[tensor] != digest]
            for theirs, mine in zip(trained["states"], audited["states"], strict=True)
        ]
        answers[place] = {
            "matched": sum(not d for d in differing),
            "not_matched": sum(bool(d) for d in differing),
            "not_matched_but_for_attention_biases": sum(any("c_attn.bias" not in t for t in d) for d in differing),
            "tensors": dict(Counter(t for d in differing for t in d)),
            "roundings_moved": audited["moved"],
            "seconds": round(audited["seconds"], 1),
        }
    return {
        "train_seconds": round(trained["seconds"], 1),
        "rounded": trained["elements"],
        "log_bytes": trained["bytes"],
        "audits": answers,
    }


def examine(name: str, checkpoints: int, keep: Any) -> int:
    """Does all runs of one model; `keep(result)` is called after each. Returns how many of ours did not match."""
    runs: list[dict[str, Any]] = []
    parameters = sum(p.numel() for p in models.named(name)().model.parameters())
    for seed in range(SEED, SEED + -(-checkpoints // RUN)):
        steps = min(RUN, checkpoints - RUN * len(runs))
        with tempfile.TemporaryDirectory(prefix="weighbridge-soak-") as directory:
            run = {"seed": seed, "checkpoints": steps, **ours(name, seed, steps, Path(directory))}
            run["baseline"] = baseline(name, seed, steps, Path(directory))
        runs.append(run)
        keep({**machine.about(), "parameters": parameters, "totals": totals(runs), "runs": runs})
        print(f"{name}, seed {seed}: {json.dumps(totals(runs))}", flush=True)
    return sum(t["not_matched"] for t in totals(runs)["ours"].values())


def totals(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Adds the runs up, by method and by instruction set."""

    def added(answers: list[dict[str, Any]]) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for answer in answers:
            sums.update({k: v for k, v in answer.items() if isinstance(v, int)})
        return dict(sums)

    return {
        "checkpoints": sum(run["checkpoints"] for run in runs),
        "ours": {place: added([run["replays"][place] for run in runs]) for place in machine.ELSEWHERE},
        "baseline": {place: added([run["baseline"]["audits"][place] for run in runs]) for place in machine.ELSEWHERE},
    }


def main() -> int:
    """Runs the subjects; returns 1 if a checkpoint of ours did not match."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="this model; may be repeated")
    parser.add_argument("--checkpoints", type=int, default=1000, help="of each model")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=SEED, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.record:
        record(options.record, options.seed, options.checkpoints, options.path)
        print(json.dumps({"capability": torch.backends.cpu.get_cpu_capability()}))
        return 0
    torch.set_num_threads(1)
    failed = 0
    for name in options.only or SUBJECTS:

        def keep(result: dict[str, Any], name: str = name) -> None:
            machine.save("soak_checkpoints", {**(machine.load("soak_checkpoints") or {}), name: result})

        failed += examine(name, options.checkpoints, keep)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
