"""What it costs and saves to multiply 16-bit matrices as a unit does: the policy `unit-vdpbf16ps` beside `mixed`.

`python -m benchmarks.bench_unit_products [--rounds N] [--only NAME ...]` measures three things:

- *products*: processor time of one multiplication and addition, of the unit's product and of PyTorch's in float32 and
  in float64, operands in bfloat16 and conversions included; least of the rounds.
- *steps*: processor time of steps under autocast in bfloat16, plain and recorded under both policies, with logs in full
  and with compiled steps without logs. Ways are measured in turn, with one thread each (`benchmarks.stepping`).
- *logs*: what three steps log under both policies, and how many of their roundings rest on measured bounds.

Results go to benchmarks/results/unit_products.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.bench_compiled import WARM, plain, recorded
from benchmarks.bench_steps import SEED, build
from benchmarks.stepping import in_turn, ratio, summary
from prover import Recorder
from weighbridge import replay
from weighbridge.core.host_memory import keep_freed
from weighbridge.numerics.units import fused_products
from weighbridge.transcript.log_kinds import LogKind
from weighbridge.transcript.reader import Transcript

NAMES = ("gpt2, bf16 autocast", "gpt2-11m, bf16 autocast")
SHAPES = ((512, 384, 1536), (512, 1536, 384), (1024, 1024, 1024), (64, 4096, 64))
"""(M, K, N): of GPT-2 11 M, square, and a long sum."""
POLICIES = ("mixed", "unit-vdpbf16ps")
KINDS: dict[str, tuple[LogKind, bool]] = {"full": ("full", False), "on-demand compiled": ("on-demand", True)}
WAYS = {f"{kind}, {policy}": (kind, policy) for kind in KINDS for policy in POLICIES}
LOGGED = 3


def product_times(rounds: int) -> list[dict[str, Any]]:
    """Measures products alone."""
    ways: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "unit": fused_products.product,
        "float32": lambda a, b: a.float() @ b.float(),
        "float64": lambda a, b: a.double() @ b.double(),
    }
    found = []
    for m, k, n in SHAPES:
        a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
        taken = {name: [_seconds(way, a, b) for _ in range(rounds)] for name, way in ways.items()}
        found.append({"shape": [m, k, n], **{name: 1e9 * min(each) / (m * k * n) for name, each in taken.items()}})
        print(json.dumps(found[-1]), flush=True)
    return found


def _seconds(way: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> float:
    started = time.process_time()
    way(a, b)
    return time.process_time() - started


def logged(name: str, policy: str) -> dict[str, int]:
    """Records some steps and replays them."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        path = Path(directory) / "run"
        with Recorder(path, seed=SEED, checkpoint_every=1 << 20, policy=policy) as recorder:
            with recorder.initialisation():
                made = build(name)
            recorder.attach(*made.attached)
            for number in range(LOGGED):
                batch = made.batch(number)
                with recorder.step(batch):
                    made.update(batch)
        transcript = Transcript.open(path)
        result = replay(path, env=machine.HERE)
        if result.verdict != "match":
            raise SystemExit(f"{name} under {policy}: the replay says {result.verdict}")
        kept = sum(len(transcript.rounding(step) or b"") for step in range(1, LOGGED + 1))
        return {
            "rounded": result.rounded, "calibrated": result.calibrated,
            "logged": sum(transcript.step(step).logged for step in range(1, LOGGED + 1)), "bytes": kept,
        }  # fmt: skip


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Measures one model."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        ways = {
            way: ("--way", way, "--child", name, "--path", str(Path(directory) / str(at)))
            for at, way in enumerate(("plain", *WAYS))
        }
        times = in_turn("benchmarks.bench_unit_products", ways, rounds, WARM)
    unit, mixed = POLICIES[1], POLICIES[0]
    pairs = [(f"{kind}, {unit}", f"{kind}, {mixed}") for kind in KINDS] + [(way, "plain") for way in WAYS]
    return {
        "rounds": rounds,
        "cpu_ms": {way: summary(taken) for way, taken in times.items()},
        "ratios": {f"{way} / {base}": ratio(times, way, base) for way, base in pairs},
        "logs": {policy: logged(name, policy) for policy in POLICIES},
    }


def main() -> None:
    """Measures products and every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    if options.child:
        keep_freed()
        if options.way == "plain":
            plain(options.child)
        else:
            kind, policy = WAYS[options.way]
            logs, compiled = KINDS[kind]
            recorded(options.child, options.path, logs, compiled=compiled, policy=policy)
        return
    found: dict[str, Any] = {**machine.about(), "seed": SEED, "products": product_times(options.rounds), "models": {}}
    for name in options.only or NAMES:
        found["models"][name] = measured(name, options.rounds)
        print(f"{name}: {json.dumps(found['models'][name])}", flush=True)
        machine.save("unit_products", found)


if __name__ == "__main__":
    main()
