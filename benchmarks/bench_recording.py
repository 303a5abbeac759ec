"""What recording costs: time per step with and without a Recorder, bytes of transcript, time of replay.

`python benchmarks/bench_recording.py [--steps N] [--device cpu]` prints the rows of the table in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
import warnings
from datetime import date
from pathlib import Path

import torch

from prover import Recorder
from prover.recipes.digits import Digits
from prover.recipes.gpt2 import Gpt2
from prover.recipes.recipe import Recipe, commit, train
from weighbridge.replay import replay

SEED = 7


def seconds_per_step(recipe: Recipe, recorder: Recorder | None, steps: int) -> float:
    """Trains and returns the mean time of a step; the first is left out, because it compiles kernels."""
    times: list[float] = []
    train(recipe, recorder, steps=steps + 1, seed=SEED, on_step=lambda *_: times.append(time.perf_counter()))
    return (times[-1] - times[0]) / steps


def row(recipe: Recipe, steps: int, device: str) -> str:
    """Measures one recipe and returns its row of the table."""
    plain = seconds_per_step(recipe, None, steps)
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / recipe.name
        data = commit(recipe, seed=SEED, steps=steps + 1)
        with Recorder(run, seed=SEED, data=data, checkpoint_every=10) as recorder:
            recorded = seconds_per_step(recipe, recorder, steps)
        begin = time.perf_counter()
        result = replay(run, device=device)
        replayed = (time.perf_counter() - begin) / (steps + 1)
        log = sum(path.stat().st_size for path in (run / "rounding").iterdir()) / (steps + 1)
        whole = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    return (
        f"| {recipe.name} | {plain * 1e3:.0f} | {recorded * 1e3:.0f} | {replayed * 1e3:.0f} | "
        f"{result.logged / result.rounded:.2e} | {log / 1e3:.1f} | {whole / 1e6:.1f} | {result.verdict} |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="TF32 acceleration")
    threads, capability = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    print(
        f"{date.today()}: torch {torch.__version__}, {platform.machine()}, {capability}, {threads} thread(s), "
        f"{options.device}, {options.steps} steps after the first\n"
    )
    print(
        "| recipe | plain ms/step | recorded ms/step | replay ms/step | logged/rounded | log kB/step | MB | verdict |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for recipe in (Gpt2(device=options.device), Digits(device=options.device)):
        print(row(recipe, options.steps, options.device), flush=True)


if __name__ == "__main__":
    main()
