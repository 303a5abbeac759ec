"""What steps cost that run as programs while they are recorded, beside plain ones and those recorded one by one.

`python -m benchmarks.bench_compiled [--rounds N] [--only NAME ...]`. Ways are measured in turn, with one thread each
(`benchmarks.stepping`). The first steps, which compile kernels and teach compiled steps, are not counted, and a
compiled step that did not run as a program ends the benchmark. *Plain* is what PyTorch does unasked, in the model's
precision; *wide* the same training in float64 with nothing rounded or recorded. Ratios are of medians, and of minima.
Results go to benchmarks/results/compiled.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import machine
from benchmarks.bench_steps import FULL, FULL_ROUNDS, SEED, build
from benchmarks.stepping import in_turn, ratio, serve, summary
from prover import Recorder
from weighbridge.core.host_memory import keep_freed
from weighbridge.transcript.log_kinds import LogKind

NAMES = (
    "gpt2", "resnet", "lstm", "gpt2-11m", "resnet50", "gpt2-124m", "gpt2, bf16 autocast", "resnet, bf16 autocast",
    "gpt2-11m, bf16 autocast", "gpt2-11m, bf16",
)  # fmt: skip
RECORDED: dict[str, tuple[LogKind, bool]] = {
    "full": ("full", False),
    "full_compiled": ("full", True),
    "on_demand": ("on-demand", False),
    "on_demand_compiled": ("on-demand", True),
}
WAYS = ("plain", "wide", *RECORDED)
FEWER = dict.fromkeys(FULL, ("plain", "wide", "on_demand", "on_demand_compiled"))
"""Ways in which large models are measured, whose states would not all lie in memory at once."""
WARM = 7


def plain(name: str, *, wide: bool = False) -> None:
    """Trains and records nothing."""
    if not wide:
        made = build(name)
        serve(lambda number: made.update(made.batch(number)))
        return
    made = build(name).to(torch.float64)  # which autocast leaves as it is
    with sdpa_kernel([SDPBackend.MATH]):
        serve(lambda number: made.update(made.batch(number)))


def recorded(name: str, path: Path, logs: LogKind, *, compiled: bool, policy: str = "mixed") -> None:
    """Records a step for every line of standard input; ends the process where a compiled step is no program in time."""
    with Recorder(path, seed=SEED, checkpoint_every=1 << 20, logs=logs, device="cpu", policy=policy) as recorder:
        with recorder.initialisation():
            made = build(name)
        recorder.attach(*made.attached)
        call = recorder.compile(made.update)

        def step(number: int) -> None:
            batch = made.batch(number)
            if not compiled:
                with recorder.step(batch):
                    made.update(batch)
                return
            call(batch)
            if number >= WARM and call.reason:
                raise SystemExit(f"step {number} did not run as a program: {call.reason}")

        serve(step)


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Measures one model in all ways."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        ways = {
            way: ("--way", way, "--child", name, "--path", str(Path(directory) / way)) for way in FEWER.get(name, WAYS)
        }
        times = in_turn("benchmarks.bench_compiled", ways, rounds, WARM)
    pairs = [(way, base) for way in RECORDED for base in ("plain", "wide")]
    pairs += [("full_compiled", "full"), ("on_demand_compiled", "on_demand"), ("on_demand", "full"), ("wide", "plain")]
    return {
        "rounds": rounds,
        "cpu_ms": {way: summary(taken) for way, taken in times.items()},
        "ratios": {f"{way} / {base}": ratio(times, way, base) for way, base in pairs if way in times and base in times},
    }


def child(way: str, name: str, path: Path) -> None:
    """Is one of the processes."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    keep_freed()
    if way in RECORDED:
        logs, compiled = RECORDED[way]
        recorded(name, path, logs, compiled=compiled)
    else:
        plain(name, wide=way == "wide")


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if options.child:
        child(options.way, options.child, options.path)
        return
    about = {**machine.about(), "seed": SEED}
    known = machine.load("compiled") or {}
    same = all(known.get(key) == value for key, value in about.items() if key != "date")
    models: dict[str, Any] = known["models"] if known and same and options.only else {}
    for name in options.only or NAMES:
        models[name] = measured(name, min(options.rounds, FULL_ROUNDS) if name in FULL else options.rounds)
        print(f"{name}: {json.dumps(models[name])}", flush=True)
        machine.save("compiled", {**about, "models": models})


if __name__ == "__main__":
    main()
