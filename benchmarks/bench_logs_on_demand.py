"""What logs on demand save: steps recorded without logs beside steps with them, bytes kept, and what a log costs later.

`python -m benchmarks.bench_logs_on_demand [--rounds N] [--only NAME ...]`. Ways are measured in
turn, with one thread each (`benchmarks.stepping`):

- *plain*: as PyTorch does it unasked (under autocast in bfloat16).
- *wide*: each operation that would be rounded computed wide and cast back, and nothing else (`benchmarks.bare`); it has
  no form for bfloat16.
- *on-demand* and *full*: an eager Recorder with its defaults, in the two kinds of logs. `hashing` is the part of
  on-demand steps that the digest of the outputs takes, measured in a run of its own.
- *regenerated*: `weighbridge regenerate` of what was recorded on demand, step by step: repeat, compare, search, and
  write the supplement.

Ratios are of medians, and of minima, which the rest of the machine disturbs least. Bytes are of the files of one
transcript in each kind, over its steps. Results go to benchmarks/results/logs_on_demand.json after each model, beside
what it has of others on the same machine, and beside what another machine measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import machine, models
from benchmarks.bare import Bare
from benchmarks.stepping import Answering, in_turn, ratio, serve, summary
from prover import Recorder
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.regeneration import regenerate
from weighbridge.numerics.rounding.outputs_digest import OutputsDigest
from weighbridge.transcript.supplements import folder_of, key_path

NAMES = ("gpt2", "gpt2-11m")
PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16 autocast": torch.bfloat16}
WARM = 4
SEED = 11


def build(name: str, precision: str) -> models.Step:
    """Makes a model in a precision."""
    made = models.named(name)()
    made.autocast = PRECISIONS[precision]
    return made


def plain(name: str, precision: str) -> None:
    """Trains as PyTorch does."""
    made = build(name, precision)
    serve(lambda number: made.update(made.batch(number)))


def wide(name: str, precision: str) -> None:
    """Trains with each operation by itself in float64."""
    made = build(name, precision)

    def step(number: int) -> None:
        batch = made.batch(number)
        with Bare(SEED):
            made.update(batch)

    with sdpa_kernel([SDPBackend.MATH]):
        serve(step)


def recorded(name: str, precision: str, path: Path, logs: Any, steps: int | None = None) -> None:
    """Records: so many steps, or one for every line on stdin."""
    with Recorder(path, seed=SEED, checkpoint_every=1 << 20, logs=logs, device="cpu") as recorder:
        with recorder.initialisation():
            made = build(name, precision)
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


def regenerated(path: Path) -> None:
    """Regenerates a transcript, one step for every line on stdin."""
    answering: Answering | None = None

    def wait(*_: int) -> None:
        nonlocal answering
        if answering is not None:
            answering.answer()
        if not sys.stdin.readline():
            raise SystemExit
        answering = answering or Answering()

    regenerate(path, load_or_create_key(key_path(path)), out=path.with_name("again"), progress=wait)


def hashing(name: str, precision: str, path: Path, steps: int) -> float:
    """Returns the median of the seconds that the digest of the outputs takes in a step."""
    taken: list[float] = []
    add = OutputsDigest.add

    def counted(self: OutputsDigest, op: int, output: int, out: torch.Tensor) -> None:
        begin = time.process_time()
        add(self, op, output, out)
        taken[-1] += time.process_time() - begin

    OutputsDigest.add = counted  # type: ignore[method-assign]
    with Recorder(path, seed=SEED, checkpoint_every=1 << 20, logs="on-demand", device="cpu") as recorder:
        taken.append(0.0)
        with recorder.initialisation():
            made = build(name, precision)
        recorder.attach(*made.attached)
        for number in range(steps):
            taken.append(0.0)
            with recorder.step(made.batch(number)):
                made.update(made.batch(number))
    return statistics.median(taken[-max(1, steps - WARM) :])


def measure(name: str, precision: str, rounds: int) -> dict[str, Any]:
    """Measures one model in one precision."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        path, steps = Path(directory), WARM + rounds + 2  # a repeat answers for one step less than it makes
        hashed = _ask("hashing", name, precision, path / "hashing", min(steps, WARM + 6))
        for logs in ("full", "on-demand"):
            _ask(logs, name, precision, path / logs, steps)
        ways = ["plain", "wide", "on-demand", "full", "regenerated"]
        if PRECISIONS[precision] is not None:
            ways.remove("wide")
        places = {way: path / ("on-demand" if way == "regenerated" else f"timed-{way}") for way in ways}
        arguments = {
            way: ("--way", way, "--child", name, "--precision", precision, "--path", str(place))
            for way, place in places.items()
        }
        times = in_turn("benchmarks.bench_logs_on_demand", arguments, rounds, WARM)
        run = path / "on-demand"
        regenerate(run, load_or_create_key(key_path(run)), steps=(1, steps + 1))
        kept = {logs: _bytes(path / logs, steps) for logs in ("full", "on-demand")}
        kept["supplement"] = {"all": round(_size(folder_of(run)) / steps)}
    pairs = [("on-demand", "wide"), ("on-demand", "full"), ("on-demand", "plain"), ("full", "plain"),
             ("full", "wide"), ("regenerated", "full")]  # fmt: skip
    return {
        "rounds": rounds,
        "milliseconds": {way: summary(taken) for way, taken in times.items()},
        "hashing_milliseconds": round(1e3 * hashed, 2),
        "ratios": {f"{a} / {b}": ratio(times, a, b) for a, b in pairs if b in times},
        "bytes_a_step": kept,
    }


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _bytes(run: Path, steps: int) -> dict[str, int]:
    """Bytes of a transcript for each step, by folder; the initialisation and its checkpoint are left out."""
    return {name: round(_size(run / name) / steps) for name in ("rounding", "steps", "batches")}


def _ask(way: str, name: str, precision: str, path: Path, steps: int) -> float:
    arguments = ("--way", way, "--child", name, "--precision", precision, "--path", str(path), "--rounds", str(steps))
    found: float = machine.ask("benchmarks.bench_logs_on_demand", *arguments, environment=machine.HERE)
    return found


def child(way: str, name: str, precision: str, path: Path, steps: int) -> None:
    """Is one of the processes."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    keep_freed()
    if way == "hashing":
        print(json.dumps(hashing(name, precision, path, steps)))
    elif way in ("full", "on-demand"):
        recorded(name, precision, path, way, steps or None)
        if steps:
            print(json.dumps(0.0))
    elif way == "regenerated":
        regenerated(path)
    else:
        {"plain": plain, "wide": wide}[way](name, precision)


def main() -> None:
    """Measures every model in every precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.child:
        child(options.way, options.child, options.precision, options.path, options.rounds)
        return
    torch.set_num_threads(1)
    for name in options.only or NAMES:
        for precision in PRECISIONS:
            found = measure(name, precision, options.rounds or 20)
            print(f"{name}, {precision}: {json.dumps(found)}", flush=True)
            keep({**machine.about(), "seed": SEED}, {f"{name}, {precision}": found})


def keep(about: dict[str, Any], found: dict[str, Any]) -> None:
    """Saves what was found, beside what is known of other models on the same machine: a table has one machine.

    What another machine measured first stays, and this one's is kept beside it by its instruction set.
    """

    def same(known: dict[str, Any]) -> bool:
        return all(known.get(key) == value for key, value in about.items() if key != "date")

    first = machine.load("logs_on_demand")
    beside = "" if first is None or same(first) else str(about["capability"])
    known = machine.load("logs_on_demand", beside) or {}
    result = {**about, "models": {**(known["models"] if same(known) else {}), **found}}
    if not beside and first is not None and machine.BESIDE in first:
        result[machine.BESIDE] = first[machine.BESIDE]
    machine.save("logs_on_demand", result, beside)


if __name__ == "__main__":
    main()
