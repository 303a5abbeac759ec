"""The problem and the cure: what differs between instruction sets, with and without the rounding log.

`python -m benchmarks.bench_differences [--steps N] [--only NAME ...]` trains each model on this machine's own
instruction set with one thread, and on SSE2 and AVX2 with other numbers of threads, each in a fresh process, from the
same weights, with the same batches and the same dropout:

- *plain*: float32, as PyTorch does it;
- *rounded*: by our rules, computed wide and rounded, but each machine by itself: no log is followed;
- *replayed*: the first machine's transcript, its log followed.

Counted are the elements of the final weights whose bits differ from the first machine's, and the roundings that would
have differed in the replay without the log (`ReplayResult.followed`).

Results go to benchmarks/results/differences.json, unless only some models were measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks import machine, models
from prover import Recorder
from weighbridge.execution.replay import replay
from weighbridge.transcript.reader import Transcript

NAMES = ("gpt2", "llama", "resnet", "perceptron", "lstm", "mlp-2m", "gpt2-2m")
SEED = 11


def train_plain(name: str, steps: int, start: Path, end: Path) -> None:
    """Trains as PyTorch does, from weights in a file, which is made if it is not there."""
    torch.manual_seed(SEED)
    made = models.named(name)()
    if start.exists():
        made.model.load_state_dict(load_file(start))
    else:
        save_file({key: t.clone() for key, t in made.model.state_dict().items()}, start)
    torch.manual_seed(SEED)
    for number in range(steps):
        made.update(made.batch(number))
    _save(made, end)


def train_rounded(name: str, steps: int, path: Path, end: Path) -> None:
    """Records; the initialisation has the same bits everywhere, so no file of weights is needed."""
    with Recorder(path, seed=SEED, checkpoint_every=steps + 1) as recorder:
        with recorder.initialisation():
            made = models.named(name)()
        recorder.attach(*made.attached)
        for number in range(steps):
            batch = made.batch(number)
            with recorder.step(batch):
                made.update(batch)
    _save(made, end)


def _save(made: models.Step, path: Path) -> None:
    save_file({name: p.detach().clone() for name, p in made.model.named_parameters()}, path)


def differing(one: Path, other: Path) -> int:
    """Returns how many elements of two files of tensors have different bits."""
    first, second = load_file(one), load_file(other)
    return sum(int((t.view(torch.int32) != second[name].view(torch.int32)).sum()) for name, t in first.items())


def measure(name: str, steps: int) -> dict[str, Any]:
    """Trains one model everywhere; returns what differed, by instruction set."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        path = Path(directory)
        places = {"here": machine.HERE, **machine.ELSEWHERE}
        for place, environment in places.items():
            for way in ("plain", "rounded"):
                _child(way, name, steps, path, place, environment)
        transcript = Transcript.open(path / "here")
        final = transcript.step(transcript.steps - 1)
        result: dict[str, Any] = {
            "steps": steps,
            "weights": sum(t.numel() for t in load_file(path / "plain-here").values()),
            "rounded_per_step": final.rounded,
            "logged_per_step": final.logged,
            "elsewhere": {},
        }
        for place, environment in machine.ELSEWHERE.items():
            replayed = replay(path / "here", env=environment)
            result["elsewhere"][place] = {
                "plain_weights_differing": differing(path / "plain-here", path / f"plain-{place}"),
                "rounded_weights_differing": differing(path / "rounded-here", path / f"rounded-{place}"),
                "first_step_differing_without_log": _first_difference(transcript, Transcript.open(path / place)),
                "roundings_changed_by_log": replayed.followed,
                "verdict": replayed.verdict,
                "same_state": replayed.state == final.state.hex(),
                "device": replayed.device,
            }
    return result


def _child(way: str, name: str, steps: int, path: Path, place: str, environment: machine.Environment) -> None:
    start = path / ("start" if way == "plain" else place)
    arguments = ("--way", way, "--child", name, "--steps", str(steps), "--start", str(start))
    end = str(path / f"{way}-{place}")
    machine.ask("benchmarks.bench_differences", *arguments, "--end", end, environment=environment)


def _first_difference(one: Transcript, other: Transcript) -> int | None:
    """Returns the first step after which the states of two recordings differ, or None."""
    return next((n for n in range(one.steps) if one.step(n).state != other.step(n).state), None)


def main() -> int:
    """Measures every model; returns 1 if a replay did not match."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--way", choices=["plain", "rounded"], help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.child:
        {"plain": train_plain, "rounded": train_rounded}[options.way](
            options.child, options.steps, options.start, options.end
        )
        print(json.dumps(torch.backends.cpu.get_cpu_capability()))
        return 0
    torch.set_num_threads(1)
    result: dict[str, Any] = {**machine.about(), "seed": SEED, "models": {}}
    failed = 0
    for name in options.only or NAMES:
        found = result["models"][name] = measure(name, options.steps)
        failed += any(e["verdict"] != "match" or not e["same_state"] for e in found["elsewhere"].values())
        print(f"{name}: {json.dumps(found)}", flush=True)
    if not options.only:
        machine.save("differences", result)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
