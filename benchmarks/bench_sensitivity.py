"""How honest trainings respond to the test of sensitivity, how far imports get past it, and what a tested step costs.

`python -m benchmarks.bench_sensitivity [--steps 4] [--no-zoo]` records the models of `benchmarks.models`, with float32
weights and under autocast to bfloat16, and the zoo, and tests every step that changes weights (up to eight of a run).
For one training it adds noise of several sizes to the weights as an import would, and says from which size on the test
calls that insensitive. Written to benchmarks/results/sensitivity.json; docs/recognition.md has the figures.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import machine, zoo_recordings
from benchmarks.models import MODELS, Batch, named
from prover import Recorder
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.program.tape_policy import AS_DESIGNED

TESTED = 8
SEED = "5e" * 32
SIZES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


def measure(path: Path, tested: int = TESTED) -> dict[str, Any]:
    """Replays a transcript and tests some of its steps."""
    request = {
        "path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 4 << 30,
        "seconds": 3600, "sensitivity": [tested, SEED] if tested else None,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        begun = time.process_time()
        found = Replay(request, [], lambda message: None).run()
        seconds = time.process_time() - begun
    if found["verdict"] != "match":
        raise SystemExit(f"{path}: {found['verdict']}: {found['first_difference']}")
    return {**(found["sensitivity"] or {}), "seconds": seconds}


def record(path: Path, name: str, steps: int, autocast: torch.dtype | None = None, size: float | None = None) -> None:
    """Records a model; with a size, every step also adds numbers from the batch, so many times as large as its update.

    Args:
        path: Where to.
        name: Of the model.
        steps: How many.
        autocast: As `Step.autocast`.
        size: Of what is added to all weights, relative to the update of the first step.
    """
    with Recorder(path, seed=7, checkpoint_every=steps) as recorder:
        with recorder.initialisation():
            made = named(name)()
            made.autocast = autocast
        recorder.attach(*made.attached)
        for index in range(steps):
            batch = {**made.batch(index), **({} if size is None else _foreign(made.model, index))}
            with recorder.step(batch):
                foreign = {name: batch.pop(name) for name in list(batch) if name.startswith("foreign ")}
                made.update(batch)
                if size is not None:
                    _add(made.model, foreign, size * 1e-3)  # AdamW's first update moves each weight by its rate


def _foreign(model: nn.Module, seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return {f"foreign {name}": torch.randn(p.shape, generator=draw) for name, p in model.named_parameters()}


def _add(model: nn.Module, foreign: Batch, size: float) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(foreign[f"foreign {name}"] * size)


def summary(measured: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The extremes over all steps that were judged, and why others were not."""
    every = [each for one in measured for each in one["responses"]]
    judged = [each["numbers"] for each in every if each["outcome"] != "untested"]
    reasons = Counter(each["why"].split(";")[0][:60] for each in every if each["outcome"] == "untested")
    return {
        "steps": len(every),
        "outcomes": dict(Counter(each["outcome"] for each in every)),
        "untested": dict(reasons.most_common(8)),
        **{f"least_{name}": _extreme(min, judged, name) for name in ("carry", "joint")},
        **{f"most_{name}": _extreme(max, judged, name) for name in ("lost", "rigid")},
    }


def _extreme(pick: Any, judged: list[dict[str, Any]], name: str) -> float | None:
    known = [each[name] for each in judged if each[name] is not None]
    return round(pick(known), 4) if known else None


def imports(name: str, steps: int) -> dict[str, Any]:
    """By size of what is added: the outcomes, and the least that either number came to."""
    found = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            record(Path(scratch) / "run", name, steps, size=size)
            found[str(size)] = summary([measure(Path(scratch) / "run")])
        print(f"import of size {size}: {found[str(size)]}", flush=True)
    return found


def main() -> None:
    """Measures, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--no-zoo", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models: dict[str, Any] = {}
    for name in arguments.models:
        for precision, autocast in (("float32", None), ("autocast to bfloat16", torch.bfloat16)):
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch) / "run"
                record(path, name, arguments.steps, autocast)
                plain, tested = measure(path, 0)["seconds"], measure(path)
                cost = (tested["seconds"] - plain) / len(tested["responses"]) / (plain / (arguments.steps + 1))
                models[f"{name}, {precision}"] = summary([tested]) | {"cost_in_replayed_steps": round(cost, 2)}
            print(name, precision, models[f"{name}, {precision}"], flush=True)
    result = {
        "policy": {name: getattr(AS_DESIGNED, name) for name in ("least_carry", "least_joint", "insensitive_share")},
        "models": models,
        "imports": imports(arguments.models[0], arguments.steps),
    }
    if not arguments.no_zoo:
        each = zoo_recordings.measured(measure)
        result["zoo"] = summary(each.values()) | {"trainings": len(each)}
        result["zoo_by_training"] = {name: summary([found]) for name, found in each.items()}
    machine.save("sensitivity", machine.about() | result)


if __name__ == "__main__":
    main()
