"""What a step costs: plain, computed wide, recorded, replayed, and trained by the published method.

`python -m benchmarks.bench_steps [--rounds N] [--only NAME ...] [--full]`. Ways are measured in turn, with one thread
each (`benchmarks.stepping`). The first steps, which compile kernels and allocate, are not counted; all ways keep the
memory that they free, as the Recorder and the replay worker do. The ways:

- *plain*: float32, as PyTorch does it unasked.
- *wide*: the same training with weights, buffers, optimizer state and batches in float64, nothing rounded or recorded:
  what any method that computes wide must pay. Attention by its mathematical form, as in recording, because that is what
  it is compared with; dropout is PyTorch's own.
- *bare*: float32, each operation that would be rounded computed in float64 and cast back, in a dispatch mode that does
  nothing else: the floor under any eager recorder (`benchmarks.bare`). What recording adds to it is the Recorder's.
- *noted*: the same, and which operation ran on what memory, and a checksum of what it made, appended to lists: what no
  transcript can do without, and the floor under any recorder that is a dispatch mode in Python.
- *recorded*: an eager Recorder with its defaults: state hashed before and after the step, log and record written.
  `checkpoint_every` is beyond the run, since how often to write checkpoints is the user's choice.
- *replayed*: the replay worker executing such a transcript step by step, with every comparison it makes.
- *published*: the published method's trainer (`benchmarks.baselines`), float64, packing its log in memory.

Ratios are of medians. GPT-2 124 M, of which only some ways fit into memory at a time, is measured in groups that each
have *wide* among them, and ratios between groups go by way of it. Results go to benchmarks/results/steps.json after
each model, beside what it has of others on the same machine; with `--only`, not if it is of another machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import machine, models
from benchmarks.bare import Bare, Noted
from benchmarks.baselines.hooks import Hooks
from benchmarks.baselines.training import Trainer, update
from benchmarks.soak import gpt2_124m, resnet50
from benchmarks.stepping import Answering, in_turn, serve, summary
from prover import Recorder
from weighbridge.core.host_memory import keep_freed

NAMES = ("gpt2", "gpt2-11m", "resnet")
FULL: dict[str, Callable[[], models.Step]] = {
    "gpt2-124m": gpt2_124m,
    "gpt2-124m, 4 rows": partial(gpt2_124m, rows=4),
    "resnet50": resnet50,
}
WAYS = ("plain", "wide", "bare", "noted", "recorded", "replayed", "published")
_LARGE = (("wide", "recorded", "replayed"), ("wide", "plain", "bare", "noted"), ("wide", "published"))
GROUPS: dict[str, tuple[tuple[str, ...], ...]] = {"gpt2-124m": _LARGE, "gpt2-124m, 4 rows": _LARGE}
"""Ways that are measured at the same time, of models too large for all at once."""
WARM = 6
FULL_ROUNDS = 8
"""Steps of the large models, at most."""
SEED = 11


def build(name: str) -> models.Step:
    """Makes a model: `gpt2`, or `gpt2, bf16 autocast` in another of `models.PRECISIONS`."""
    kind, _, precision = name.rpartition(", ")
    if precision not in models.PRECISIONS:
        return FULL[name]() if name in FULL else models.named(name)()
    return models.in_precision(build(kind), precision)


def plain(name: str) -> None:
    """Trains in float32."""
    made = build(name)
    serve(lambda number: made.update(made.batch(number)))


def wide(name: str) -> None:
    """Trains in float64."""
    made = build(name).to(torch.float64)
    with sdpa_kernel([SDPBackend.MATH]):
        serve(lambda number: made.update(made.batch(number)))


def bare(name: str, mode: type[Bare] = Bare) -> None:
    """Trains in float32, each operation by itself in float64."""
    made = build(name)

    def step(number: int) -> None:
        batch = made.batch(number)
        with mode(SEED):
            made.update(batch)

    with sdpa_kernel([SDPBackend.MATH]):
        serve(step)


def published(name: str) -> None:
    """Trains by the published method."""
    made = build(name).to(torch.float64)

    def step(number: int) -> None:
        hooks = Hooks(made.model, Trainer())
        update(made, hooks, made.batch(number))
        hooks.detach()

    with sdpa_kernel([SDPBackend.MATH]):
        serve(step)


def recorded(name: str, path: Path, steps: int | None = None) -> None:
    """Records: so many steps, or one for every line on stdin."""
    with Recorder(path, seed=SEED, checkpoint_every=1 << 20) as recorder:
        with recorder.initialisation():
            made = build(name)
        recorder.attach(*made.attached)

        def step(number: int) -> None:
            batch = made.batch(number)
            with recorder.step(batch):
                made.update(batch)

        if steps is None:
            serve(step)
        else:
            for number in range(steps):
                step(number)


def request(path: Path) -> dict[str, Any]:
    """Returns what the replay worker is asked: the whole transcript."""
    return {
        "path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 32 << 30,
        "seconds": 36000,
    }  # fmt: skip


def replayed(path: Path) -> None:
    """Replays a transcript, one step for every line on stdin."""
    from weighbridge.execution.workers import replay_worker, serving

    answering: Answering | None = None

    def wait(message: dict[str, Any]) -> None:
        """Called by the worker after every step."""
        nonlocal answering
        if answering is not None:
            answering.answer()
        if not sys.stdin.readline():
            raise SystemExit
        answering = answering or Answering()

    serving.prepare("cpu")
    result = replay_worker.Replay(request(path), [], wait).run()
    if result["verdict"] != "match":
        raise SystemExit(f"the replay ended in {result['verdict']}: {result['first_difference']}")


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Measures one model in all ways; returns times in milliseconds and ratios of medians."""
    kept: dict[str, list[float]] = {}
    to_wide: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        path = Path(directory)
        # The replay needs one step more than it answers for: it waits after each.
        ready = ("--way", "transcript", "--rounds", str(WARM + rounds + 1), "--child", name)
        machine.ask("benchmarks.bench_steps", *ready, "--path", str(path / "transcript"), environment=machine.HERE)
        for group in GROUPS.get(name, (WAYS,)):
            paths = {"recorded": path / "recording", "replayed": path / "transcript"}
            arguments = {way: ("--way", way, "--child", name, "--path", str(paths.get(way, path))) for way in group}
            times = in_turn("benchmarks.bench_steps", arguments, rounds, WARM)
            wide = statistics.median(times["wide"])
            to_wide |= {way: statistics.median(taken) / wide for way, taken in times.items()}
            kept = times | kept
    return {
        "rounds": rounds,
        "milliseconds": {way: summary(kept[way]) for way in WAYS},
        "recorded_over_wide": round(to_wide["recorded"], 3),
        "bare_over_wide": round(to_wide["bare"], 3),
        "noted_over_wide": round(to_wide["noted"], 3),
        "recorded_over_bare": round(to_wide["recorded"] / to_wide["bare"], 3),
        "replayed_over_recorded": round(to_wide["replayed"] / to_wide["recorded"], 3),
        "published_over_wide": round(to_wide["published"], 3),
        "wide_over_plain": round(1 / to_wide["plain"], 3),
    }


def child(way: str, name: str, path: Path, rounds: int) -> None:
    """Is one of the processes."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    keep_freed()
    if way == "transcript":
        recorded(name, path, rounds)
        print(json.dumps("recorded"))
    elif way == "recorded":
        recorded(name, path)
    elif way == "replayed":
        replayed(path)
    else:
        alone = {"plain": plain, "wide": wide, "bare": bare, "noted": partial(bare, mode=Noted), "published": published}
        alone[way](name)


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*NAMES, *FULL], help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="measure GPT-2 124 M and ResNet-50 too")
    parser.add_argument("--way", choices=[*WAYS, "transcript"], help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.child:
        child(options.way, options.child, options.path, options.rounds)
        return
    torch.set_num_threads(1)
    about = {**machine.about(), "seed": SEED}
    for name in options.only or [*NAMES, *(FULL if options.full else ())]:
        found = measure(name, min(options.rounds, FULL_ROUNDS) if name in FULL else options.rounds)
        print(f"{name}: {json.dumps(found)}", flush=True)
        keep(about, {name: found}, replace=not options.only)


def keep(about: dict[str, Any], found: dict[str, Any], *, replace: bool) -> None:
    """Saves what was found, beside what is known of other models on the same machine: a table has one machine.

    Args:
        about: The machine and the seed.
        found: Results by model.
        replace: Whether to save it in place of the results of another machine.
    """
    known = machine.load("steps") or {}
    same = all(known.get(key) == value for key, value in about.items() if key != "date")
    if same or replace:
        machine.save("steps", {**about, "models": {**(known["models"] if same else {}), **found}})


if __name__ == "__main__":
    main()
