"""What a step costs: plain, computed wide, recorded, replayed, and trained by the published method.

`python -m benchmarks.bench_steps [--rounds N] [--only NAME ...] [--full]`. Each way has a process of its own with one
thread, kept waiting between steps; rounds go through the ways in turn, one step each, so that all meet the same state
of the machine. The first steps, which compile kernels and allocate, are not counted; all ways keep the memory that they
free, as the Recorder and the replay worker do. The ways:

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
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
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


def _build(name: str) -> models.Step:
    return FULL[name]() if name in FULL else models.named(name)()


def _timed(step: Callable[[int], None]) -> None:
    """Does one step for every line on stdin and answers how many seconds it took."""
    for number, _ in enumerate(sys.stdin):
        begin = time.perf_counter()
        step(number)
        print(json.dumps(time.perf_counter() - begin), flush=True)


def plain(name: str) -> None:
    """Trains in float32."""
    made = _build(name)
    _timed(lambda number: made.update(made.batch(number)))


def wide(name: str) -> None:
    """Trains in float64."""
    made = _build(name).to(torch.float64)
    with sdpa_kernel([SDPBackend.MATH]):
        _timed(lambda number: made.update(made.batch(number)))


def bare(name: str, mode: type[Bare] = Bare) -> None:
    """Trains in float32, each operation by itself in float64."""
    made = _build(name)

    def step(number: int) -> None:
        batch = made.batch(number)
        with mode(SEED):
            made.update(batch)

    with sdpa_kernel([SDPBackend.MATH]):
        _timed(step)


def published(name: str) -> None:
    """Trains by the published method."""
    made = _build(name).to(torch.float64)

    def step(number: int) -> None:
        hooks = Hooks(made.model, Trainer())
        update(made, hooks, made.batch(number))
        hooks.detach()

    with sdpa_kernel([SDPBackend.MATH]):
        _timed(step)


def recorded(name: str, path: Path, steps: int | None = None) -> None:
    """Records: so many steps, or one for every line on stdin."""
    with Recorder(path, seed=SEED, checkpoint_every=1 << 20) as recorder:
        with recorder.initialisation():
            made = _build(name)
        recorder.attach(*made.attached)

        def step(number: int) -> None:
            batch = made.batch(number)
            with recorder.step(batch):
                made.update(batch)

        if steps is None:
            _timed(step)
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

    begin = 0.0

    def wait(message: dict[str, Any]) -> None:
        """Called by the worker after every step."""
        nonlocal begin
        if begin:
            print(json.dumps(time.perf_counter() - begin), flush=True)
        if not sys.stdin.readline():
            raise SystemExit
        begin = time.perf_counter()

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
            times = _in_turn(name, group, rounds, path)
            wide = statistics.median(times["wide"])
            to_wide |= {way: statistics.median(taken) / wide for way, taken in times.items()}
            kept = times | kept
    return {
        "rounds": rounds,
        "milliseconds": {
            way: {
                "median": round(statistics.median(kept[way]), 2),
                "min": round(min(kept[way]), 2),
                "max": round(max(kept[way]), 2),
            }
            for way in WAYS
        },
        "recorded_over_wide": round(to_wide["recorded"], 3),
        "bare_over_wide": round(to_wide["bare"], 3),
        "noted_over_wide": round(to_wide["noted"], 3),
        "recorded_over_bare": round(to_wide["recorded"] / to_wide["bare"], 3),
        "replayed_over_recorded": round(to_wide["replayed"] / to_wide["recorded"], 3),
        "published_over_wide": round(to_wide["published"], 3),
        "wide_over_plain": round(1 / to_wide["plain"], 3),
    }


def _in_turn(name: str, ways: Sequence[str], rounds: int, path: Path) -> dict[str, list[float]]:
    """Returns the milliseconds of every counted step of each way."""
    paths = {"recorded": path / "recording", "replayed": path / "transcript"}
    processes: dict[str, subprocess.Popen[str]] = {}
    times: dict[str, list[float]] = {way: [] for way in ways}
    try:
        for way in ways:
            arguments = ("--way", way, "--child", name, "--path", str(paths.get(way, path)))
            processes[way] = machine.start(
                "benchmarks.bench_steps", *arguments, environment=machine.HERE, stdin=subprocess.PIPE
            )
        for _ in range(WARM + rounds):
            for way, process in processes.items():
                times[way].append(_step(way, process))
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    return {way: [1e3 * seconds for seconds in taken[WARM:]] for way, taken in times.items()}


def _step(way: str, process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the process that measures the way {way!r} died; its message is above")
    return float(json.loads(line))


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
