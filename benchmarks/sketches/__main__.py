"""Sketches of outputs in place of rounding logs: how small they can be, and whether they decode.

`python -m benchmarks.sketches [--steps N] [--only NAME ...]` records models of 11 M weights in bfloat16 with full logs,
replays them with other kernels, each time in a fresh process, and finds which elements the replayer calls contested and
which really differ. From their counts in all steps but the last two it fits how many differences a sketch must be able
to name (`benchmarks.sketches.capacity`), and what each scheme takes for that (`benchmarks.sketches.schemes`).

The smallest, two stages of power sums (`weighbridge.numerics.sketches.codec`), is put to work: a process with the
recording machine's kernels makes sketches of all steps, and one with others replays the run with these in place of the
log of 16-bit outputs, comparing every checksum and state. What a log says of 32-bit outputs stays, and is counted.

Results go to benchmarks/results/sketches.json after each model, beside what it has of others on the same machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import machine
from benchmarks.sketches import sizes, subjects, trial
from benchmarks.sketches.capacity import Model, fit
from benchmarks.sketches.schemes import floor_of_capacity
from benchmarks.sketches.truth import Output, observe
from weighbridge.numerics.sketches.codec import Capacity
from weighbridge.transcript.reader import Transcript

HELD_OUT = 2
PLACES = {
    "SSE2": {**machine.SSE2, "MKL_CBWR": "COMPATIBLE"},
    "AVX2": machine.AVX2,
}
"""MKL heeds `MKL_CBWR` on processors of every make, and `MKL_ENABLE_INSTRUCTIONS` on Intel's alone."""
MODULE = "benchmarks.sketches"


def measure(name: str, precision: str, steps: int) -> dict[str, Any]:
    """Records one model in one precision and replays it elsewhere with sketches."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        run = Path(directory) / "run"
        shared = ("--path", str(run), "--subject", name, "--precision", precision, "--steps", str(steps))
        weights = machine.ask(MODULE, "--way", "record", *shared, environment=machine.HERE)
        seen = {}
        for place, environment in PLACES.items():
            machine.ask(MODULE, "--way", "observe", *shared, environment=environment)
            seen[place] = _outputs(run)
        worst = max(seen, key=lambda place: sum(len(o.differing) for o in seen[place] if o.small))
        outputs = seen[worst]
        fitted = [o for o in outputs if o.step <= steps - HELD_OUT]
        model = fit(fitted)
        capacities = {place: model.capacity(place, 1.0) for place in model.means}
        (run.parent / "capacities").write_text(json.dumps({p: asdict(c) for p, c in capacities.items()}))
        made = machine.ask(MODULE, "--way", "make", *shared, environment=machine.HERE)
        followed = machine.ask(MODULE, "--way", "follow", *shared, environment=PLACES[worst])
        besides = sum(file.stat().st_size for file in (run.parent / "sketches").glob("*.wlog")) / steps
        transcript = Transcript.open(run)
        full = sum(len(transcript.rounding(step)) for step in range(1, steps + 1)) / steps
    last = [o for o in outputs if o.small and o.step == steps]
    return {
        "weights": weights,
        "steps": steps,
        "full_bytes": round(full),
        "bytes_of_fp32_outputs": round(besides),
        "places": {place: sizes.counts(found) for place, found in seen.items()},
        "fitted_to": worst,
        "spreads": [round(spread, 4) for spread in model.spreads],
        "bytes": {f"{margin:g}": sizes.of_step(last, model, margin) for margin in sizes.MARGINS},
        "largest_margin": round(sizes.largest_margin(last, model, besides, full), 2),
        "held_out": sizes.held_out([o for o in outputs if o.step > steps - HELD_OUT], model),
        "made": made,
        "followed": followed,
        "smaller_by": round(full / (made["bits"] / 8 + besides), 1),
        "freedom_bits": _freedom(last, model),
    }


def _freedom(outputs: Sequence[Output], model: Model) -> dict[str, int]:
    """Bits that a step's sketches could bring in, and a step's full log: roundings that they can overrule."""
    sketched = sum(floor_of_capacity(o.candidates, model.differences(o.index, 1.0)) for o in outputs)
    return {"sketches": round(sketched), "full": sum(o.candidates for o in outputs)}


def _outputs(run: Path) -> list[Output]:
    lines = (run.parent / "outputs").read_text().splitlines()
    return [
        Output(**{**raw, "differing": np.array(raw["differing"], dtype=np.int64)}) for raw in map(json.loads, lines)
    ]


def child(way: str, name: str, precision: str, steps: int, run: Path) -> Any:
    """Is one of the processes."""
    folder = run.parent / "sketches"
    if way == "record":
        return subjects.record(name, precision, steps, run)
    if way == "observe":
        lines = [json.dumps({**asdict(o), "differing": o.differing.tolist()}) for o in observe(run)]
        (run.parent / "outputs").write_text("\n".join(lines))
        return torch.backends.cpu.get_cpu_capability()
    if way == "make":
        folder.mkdir()
        raw = json.loads((run.parent / "capacities").read_text())
        return trial.make(run, {int(place): Capacity(**each) for place, each in raw.items()}, folder)
    return asdict(trial.follow(run, folder))


def main() -> None:
    """Measures every model in every precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(subjects.SUBJECTS), help="this model; may be repeated")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < HELD_OUT + 2:
        parser.error(f"--steps must be {HELD_OUT + 2} or more: the last {HELD_OUT} are held out")
    warnings.filterwarnings("ignore")
    if options.way:
        print(json.dumps(child(options.way, options.subject, options.precision, options.steps, options.path)))
        return
    torch.set_num_threads(1)
    for name in options.only or subjects.SUBJECTS:
        for precision in subjects.PRECISIONS:
            found = measure(name, precision, options.steps)
            print(f"{name}, {precision}: {json.dumps(found)}", flush=True)
            keep({f"{name}, {precision}": found})


def keep(found: dict[str, Any]) -> None:
    """Saves what was found, beside what is known of other models on the same machine: a table has one machine."""
    about = {**machine.about(), "seed": subjects.SEED}
    known = machine.load("sketches") or {}
    same = all(known.get(key) == value for key, value in about.items() if key != "date")
    machine.save("sketches", {**about, "models": {**(known["models"] if same else {}), **found}})


if __name__ == "__main__":
    main()
