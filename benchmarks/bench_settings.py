"""One transcript under every setting of the libraries that compute: each must come to the same state.

`python -m benchmarks.bench_settings [--only NAME ...]` records each model here with one thread, and replays it in a
fresh process under each setting: instruction sets of ATen, code paths of MKL (`MKL_CBWR`; other variables do nothing on
processors that Intel did not make), oneDNN's, and 1 to 4 threads. Then each model is recorded under each of some
settings and replayed here. Counted are replays that do not match, and the roundings that would have gone the other way
without the log. Models named `-bf16` train under autocast to bfloat16, with calibrated bounds.

Results go to benchmarks/results/settings.json, unless only some models were measured. Exit code 1 if one did not match.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, models
from prover import Recorder
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.transcript.reader import Transcript

NAMES = ("gpt2", "llama", "resnet", "perceptron", "lstm", "gpt2-bf16", "resnet-bf16")
SEED = 11
UPDATES = 3
Environment = Mapping[str, str]


def _threads(count: int, **other: str) -> Environment:
    return {"OMP_NUM_THREADS": str(count), "OMP_WAIT_POLICY": "passive", **other}


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


SETTINGS: dict[str, Environment] = {
    **{f"{count} threads": _threads(count) for count in (2, 3, 4)},
    **{
        f"ATEN_CPU_CAPABILITY={name}, {_count(count)}": _threads(count, ATEN_CPU_CAPABILITY=name)
        for name in ("default", "avx2")
        for count in (1, 3)
    },
    **{
        f"MKL_CBWR={name}": _threads(1, MKL_CBWR=name)
        for name in ("COMPATIBLE", "SSE4_2", "AVX", "AVX2", "AVX512", "AUTO", "AVX2,STRICT", "AVX512,STRICT")
    },
    "MKL_CBWR=COMPATIBLE, 2 threads": _threads(2, MKL_CBWR="COMPATIBLE"),
    **{
        f"ONEDNN_MAX_CPU_ISA={name}": _threads(1, ONEDNN_MAX_CPU_ISA=name)
        for name in ("SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16")
    },
    "fewest instructions, 2 threads": _threads(
        2, ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE", ONEDNN_MAX_CPU_ISA="SSE41"
    ),
}
RECORDED_UNDER = ("ATEN_CPU_CAPABILITY=avx2, 3 threads", "MKL_CBWR=AVX2", "fewest instructions, 2 threads")
"""Settings that are recorded under too."""


def record(name: str, path: Path) -> dict[str, int]:
    """Records a model in this process; returns counts of roundings."""
    kind, half, _ = name.partition("-bf16")
    policy = "calibrated" if half else "strict"
    with Recorder(path, seed=SEED, policy=policy, checkpoint_every=UPDATES + 1) as recorder:
        with recorder.initialisation():
            made = models.named(kind)()
        made = replace(made, autocast=torch.bfloat16) if half else made
        recorder.attach(*made.attached)
        for number in range(UPDATES):
            batch = made.batch(number)
            with recorder.step(batch):
                made.update(batch)
        return {"rounded": recorder.rounded, "logged": recorder.logged}


def replayed(path: Path, environment: Environment) -> dict[str, Any]:
    """Replays a recording under a setting; what fails is a result too."""
    transcript = Transcript.open(path)
    state = transcript.step(transcript.steps - 1).state.hex()
    try:
        found = replay(path, env=environment)
    except WeighbridgeError as error:
        return {"matched": False, "followed": 0, "says": error.message}
    matched = found.verdict == "match" and found.state == state
    return {"matched": matched, "followed": found.followed, "says": "" if matched else str(found.first_difference)}


def measure(name: str) -> dict[str, Any]:
    """Records a model here and under other settings, and replays it everywhere."""
    replays = {}
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        here = Path(directory) / "here"
        counts = machine.ask("benchmarks.bench_settings", "--record", name, str(here), environment=machine.HERE)
        for setting, environment in SETTINGS.items():
            replays[setting] = replayed(here, environment)
            print(f"{name}, {setting}: {replays[setting]}", flush=True)
        for number, setting in enumerate(RECORDED_UNDER):
            there, title = Path(directory) / str(number), f"recorded under {setting}"
            machine.ask("benchmarks.bench_settings", "--record", name, str(there), environment=SETTINGS[setting])
            replays[title] = replayed(there, machine.HERE)
            print(f"{name}, {title}: {replays[title]}", flush=True)
    return {**counts, "replays": replays}


def main() -> int:
    """Measures what was asked for; returns 1 if a replay did not match."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="measure this model; may be repeated")
    parser.add_argument("--record", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.record:
        print(json.dumps(record(options.record[0], Path(options.record[1]))))
        return 0
    found = {name: measure(name) for name in options.only or NAMES}
    if not options.only:
        machine.save("settings", {**machine.about(), "updates": UPDATES, "models": found})
    return 0 if all(each["matched"] for made in found.values() for each in made["replays"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
