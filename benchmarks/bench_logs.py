"""How large rounding logs are: bits per rounded element, ours and the published method's, side by side.

`python -m benchmarks.bench_logs [--steps N] [--only NAME ...]` records each model in float32 under strict and under
calibrated bounds, and in bfloat16 (native weights, and by autocast) under calibrated bounds. A log's size is that of
its file in the transcript (`rounding/*.wlog.zst`); the elements are those that the recorded steps rounded.

The dense method spends 1.6 bits on each element that it rounds. The published method rounds fewer: what modules
return and pass back. Its trainer runs here in float64 on the same model and batches (`benchmarks.baselines`), with its
fixed band, and with bands measured between this instruction set and SSE2; its log is also compressed with zstd, which
the published method does not do.

Results go to benchmarks/results/logs.json, unless only some models were measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import zstandard

from benchmarks import machine, models
from benchmarks.baselines import rounding, ternary
from benchmarks.baselines.threshold import pivots
from benchmarks.models import Step
from prover import Recorder
from weighbridge.transcript.reader import Transcript

NAMES = ("gpt2", "llama", "resnet")
SEED = 11
DENSE_BITS = 8 / ternary.PER_BYTE
PRECISIONS = {
    "fp32 strict": ("strict", None, None),
    "fp32 calibrated": ("calibrated", None, None),
    "bf16 calibrated": ("calibrated", torch.bfloat16, None),
    "bf16 autocast calibrated": ("calibrated", None, torch.bfloat16),
}
"""Policy, type of the weights, type of autocast."""


def build(name: str, weights: torch.dtype | None, autocast: torch.dtype | None) -> Step:
    """Makes a model in a precision."""
    step = models.named(name)()
    step.autocast = autocast
    return step if weights is None else step.to(weights)


@contextmanager
def recorded(name: str, precision: str, steps: int) -> Iterator[Transcript]:
    """Records a model in one precision; the transcript is there within the block."""
    policy, weights, autocast = PRECISIONS[precision]
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        path = Path(directory) / "run"
        with Recorder(path, seed=SEED, checkpoint_every=steps + 1, policy=policy) as recorder:
            with recorder.initialisation():
                step = build(name, weights, autocast)
            recorder.attach(*step.attached)
            for number in range(steps):
                batch = step.batch(number)
                with recorder.step(batch):
                    step.update(batch)
        yield Transcript.open(path)


def measure(name: str, precision: str, steps: int) -> dict[str, Any]:
    """Records a model in one precision; returns counts and sizes of its steps, initialisation aside."""
    with recorded(name, precision, steps) as transcript:
        records = [transcript.step(number) for number in range(1, transcript.steps)]
        size = sum(file.stat().st_size for file in (transcript.path / "rounding").iterdir())
    rounded, logged = sum(r.rounded for r in records), sum(r.logged for r in records)
    return {
        "steps": steps,
        "rounded": rounded,
        "logged": logged,
        "log_bytes": size,
        "bits_per_element": round(8 * size / rounded, 6),
        "dense_bytes": ternary.size(rounded),
        "dense_over_ours": round(ternary.size(rounded) / size, 1),
    }


def published(name: str, steps: int) -> dict[str, Any]:
    """Trains a model by the published method, with its fixed and with measured bands; returns counts and sizes."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        shared = ("--model", name, "--seed", str(SEED), "--directory", directory)
        module = "benchmarks.baselines.training"
        fixed = machine.ask(module, "train", *shared, "--steps", str(steps), environment=machine.HERE)
        packed = _compressed(Path(directory))
        seen = (*shared, "--steps", str(min(2, steps)), "--values")
        machine.ask(module, "train", *seen, environment=machine.HERE)
        compared = machine.ask(module, "audit", *seen, environment=machine.SSE2)
        measured = pivots(compared["widths"])
        arguments = ("train", *shared, "--steps", str(steps), "--pivots", json.dumps(measured))
        adaptive = machine.ask(module, *arguments, environment=machine.HERE)
        return {
            "steps": steps,
            "rounded": fixed["elements"],
            "log_bytes": fixed["bytes"],
            "bits_per_element": round(8 * fixed["bytes"] / fixed["elements"], 6),
            "in_band": round(fixed["near"] / fixed["elements"], 6),
            "fixed_pivot": rounding.PIVOT,
            "compressed_bytes": packed,
            "adaptive_in_band": round(adaptive["near"] / adaptive["elements"], 8),
            "adaptive_pivots": {kind: round(pivot, 9) for kind, pivot in measured.items()},
            "adaptive_compressed_bytes": _compressed(Path(directory)),
        }


def _compressed(directory: Path) -> int:
    compressor = zstandard.ZstdCompressor(level=9)
    return sum(len(compressor.compress(log.read_bytes())) for log in directory.glob("*.log"))


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    result: dict[str, Any] = {**machine.about(), "seed": SEED, "dense_bits": DENSE_BITS, "models": {}}
    for name in options.only or NAMES:
        found: dict[str, Any] = {"ours": {p: measure(name, p, options.steps) for p in PRECISIONS}}
        found["published"] = published(name, options.steps)
        result["models"][name] = found
        bits = ", ".join(f"{p} {m['bits_per_element']}" for p, m in found["ours"].items())
        print(f"{name}: bits per rounded element: {bits}; dense {DENSE_BITS}", flush=True)
    if not options.only:
        machine.save("logs", result)


if __name__ == "__main__":
    main()
