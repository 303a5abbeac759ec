"""What honest rounding logs bring in under other instruction sets: the maxima that budgets are made from.

`python -m benchmarks.bench_roundings [--steps N] [--only NAME ...] [--no-zoo]` records the models of
`benchmarks.bench_logs` in each precision and replays each run here and with other instruction sets; and it runs the
tests of the zoo, which do the same with trainings of many kinds.

*Charged* bits are those of `weighbridge.execution.rounding_surprise`. A *rate* is what would have to be allowed for
each rounded element beside the constants of `TapePolicy`, so that no replay has a finding; it is 0 if the constants
alone suffice. *One-sided* is the share of the contested elements, in the outputs that a replay drew, that only the log
or only the replayer has.

Results go to benchmarks/results/roundings.json, unless only some models were measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.bench_logs import NAMES, PRECISIONS, SEED, recorded
from weighbridge.execution.replay import replay
from weighbridge.program.tape_policy import AS_DESIGNED

ROOT = Path(__file__).parents[1]
PLACES = {"here": machine.HERE, **machine.ELSEWHERE}
ENOUGH = 64
"""Contested elements from which on a share of them is counted."""


def one_sided(evidence: Mapping[str, Any]) -> float | None:
    """Returns the share of one-sided elements, or None if too few were compared."""
    one = evidence["only_here"] + evidence["only_logged"]
    return one / (one + evidence["both"]) if one + evidence["both"] >= ENOUGH else None


def measure(name: str, precision: str, steps: int) -> dict[str, Any]:
    """Records one model in one precision and replays it everywhere."""
    with recorded(name, precision, steps) as transcript:
        replays = {}
        for place, environment in PLACES.items():
            result = replay(transcript.path, env=environment)
            evidence = result.evidence
            kept = ("rounded", "narrow", "entries", "overruled", "both", "only_here", "only_logged")
            replays[place] = {
                "verdict": result.verdict,
                "findings": sorted({f.id for f in result.findings if f.id.startswith("replay.")}),
                **{each: evidence[each] for each in kept},
                "charged_bits": round(evidence["charged_bits"], 1),
                "charged_step_bits": round(evidence["charged_step_bits"], 1),
            }
        return {"steps": steps, "replays": replays}


def zoo() -> list[dict[str, Any]]:
    """Runs the tests of the zoo; returns what they noted of each training."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        notes = Path(directory) / "notes"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "tests/zoo"]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"WEIGHBRIDGE_ZOO_ROUNDINGS": str(notes)}, check=True)
        return [json.loads(line) for line in notes.read_text().splitlines()]


def summary(replays: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the maxima over replays."""
    every = list(replays)
    shares = [share for each in every if (share := one_sided(each)) is not None]
    spare = {"wide": 0.0, "narrow": 0.0}
    for each in every:
        kind = "narrow" if each["narrow"] * 2 > each["rounded"] else "wide"
        over = each["charged_bits"] - AS_DESIGNED.log_bits
        spare[kind] = max(spare[kind], over / max(1, each["rounded"]))
    return {
        "replays": len(every),
        "inconclusive": sum(each["verdict"] == "inconclusive" for each in every),
        "with_overruled": sum(each["overruled"] > 0 for each in every),
        "most_charged_bits": round(max(each["charged_bits"] for each in every), 1),
        "most_charged_step_bits": round(max(each["charged_step_bits"] for each in every), 1),
        "most_per_rounded": {
            kind: max((each["charged_bits"] / each["rounded"] for each in every
                       if (each["narrow"] * 2 > each["rounded"]) == (kind == "narrow") and each["rounded"] > 1 << 20),
                      default=0.0)
            for kind in spare
        },
        "rate": spare,
        "compared": len(shares),
        "most_one_sided": round(max(shares, default=0.0), 4),
    }  # fmt: skip


def main() -> None:
    """Measures every model, and the zoo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="this model; may be repeated")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--no-zoo", action="store_true", help="leave the zoo out")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    result: dict[str, Any] = {**machine.about(), "seed": SEED, "models": {}}
    for name in options.only or NAMES:
        result["models"][name] = {}
        for precision in PRECISIONS:
            found = result["models"][name][precision] = measure(name, precision, options.steps)
            for place, r in found["replays"].items():
                print(name, precision, place, r, flush=True)
    models = [r for model in result["models"].values() for m in model.values() for r in m["replays"].values()]
    result["over_models"] = {**summary(models), "trainings": len(models) // len(PLACES)}
    print(result["over_models"], flush=True)
    if not options.no_zoo:
        trainings = zoo()
        result["over_zoo"] = summary(each for training in trainings for each in training["replays"])
        result["over_zoo"]["trainings"] = len(trainings)
        print(result["over_zoo"], flush=True)
    if not options.only and not options.no_zoo:
        machine.save("roundings", result)


if __name__ == "__main__":
    main()
