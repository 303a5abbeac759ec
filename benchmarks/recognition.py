"""Which honest trainings are recognised, what that costs, and what an attack within the acceptance could do.

`python -m benchmarks.recognition [--only EXPRESSION] [--examples]` records every training of the zoo (`tests/zoo`),
recognises eight steps of each, and does the same with three steps of models of ordinary size, with small jobs on
several ranks, and with `--examples`, with the programs in `examples/`. Written down are, for each:

- whether all steps are recognised, else the reasons;
- cost: seconds of recognition over seconds of the replay of the same steps;
- noise: the largest difference of a gradient from the Verifier's own, in units of what is accepted;
- attack: `freedom`, how far apart the updates at both ends of what is accepted are, over the update.

Results go to benchmarks/results/recognition.json. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import machine
from benchmarks.bench_integrations import MODULE, SUBJECTS, plain
from benchmarks.models import named
from prover import Recorder
from weighbridge.execution.job_replay import replay_job
from weighbridge.execution.recognition.outcome import Summary, parse
from weighbridge.execution.replay import replay

ROOT = Path(__file__).parents[1]


def zoo(only: str) -> Iterable[tuple[str, Summary]]:
    """Runs the tests of the zoo, which note what they recognise."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "recognised"
        environment = {**os.environ, "WEIGHBRIDGE_ZOO_RECOGNISED": str(notes), "OMP_NUM_THREADS": "1"}
        chosen = ["-k", only] if only else []
        command = [sys.executable, "-m", "pytest", "-q", "tests/zoo", *chosen]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        for line in notes.read_text().splitlines() if notes.exists() else []:
            found = json.loads(line)
            name = found["test"].partition(" ")[0].removeprefix("tests/zoo/")
            yield name, Summary([parse(each) for each in found["steps"]])


def examples() -> Iterable[tuple[str, Summary]]:
    """Records the examples with no changed line, where one process trains."""
    for subject in (each for each in SUBJECTS if each.ranks == 1):
        with tempfile.TemporaryDirectory() as folder:
            run, script = Path(folder) / "run", Path(folder) / f"{subject.name}.py"
            script.write_text(plain((ROOT / "examples" / script.name).read_text())[0])
            command = subject.command(MODULE, "record", "--out", str(run), "--seed", "7", str(script))
            environment = {**os.environ, **subject.environment()}
            done = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, check=False
            )  # fmt: skip
            if not (run / "manifest.json").exists():
                print(f"{script.name} recorded nothing: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                continue
            yield f"examples/{script.name}", Summary(replay(run, recognise=8).recognised)


SIZED = ("gpt2-11m", "gpt2-2m", "mlp-2m", "resnet")
"""Models of `benchmarks.models` whose operations are large enough for arithmetic to take most of the time."""


def sized() -> Iterable[tuple[str, Summary]]:
    """Records three steps of models of ordinary size, in float32 and in bfloat16 by autocast."""
    for name in SIZED:
        for autocast in (None, torch.bfloat16):
            torch.manual_seed(7)
            step = replace(named(name)(), autocast=autocast)
            with tempfile.TemporaryDirectory() as folder:
                with Recorder(folder, seed=7) as recorder:
                    recorder.attach(*step.attached)
                    for index in range(3):
                        with recorder.step(batch := step.batch(index)):
                            step.update(batch)
                found = Summary(replay(folder, recognise=3, env=machine.HERE).recognised)
            yield f"models/{name}{'' if autocast is None else ', bf16 autocast'}", found


JOBS = {
    2: ("ddp", "unused", "static", "accumulate", "by-hand", "tensor", "fsdp", "meta", "pipeline"),
    4: ("fsdp-tensor",),
}
"""Kinds of job of `tests/support/sharded_job.py`, by number of ranks."""


def jobs() -> Iterable[tuple[str, Summary]]:
    """Records small jobs on several ranks; the outcome of a job is that of all of its ranks."""
    for ranks, kinds in JOBS.items():
        with tempfile.TemporaryDirectory() as folder:
            program = ROOT / "tests" / "support" / "sharded_job.py"
            arguments = [[",".join(kinds), str(rank), str(ranks), folder] for rank in range(ranks)]
            started = [
                subprocess.Popen([sys.executable, str(program), *each], env={**os.environ, **machine.HERE})
                for each in arguments
            ]
            if any([process.wait() for process in started]):
                raise RuntimeError(f"the jobs on {ranks} ranks could not be recorded")
            for kind in kinds:
                whole = replay_job(Path(folder) / kind, recognise=3, env=machine.HERE)
                steps = [each for rank in whole.ranks if rank is not None for each in rank.recognised]
                yield f"jobs/{kind}", Summary(steps)


def figures(name: str, found: Summary) -> dict[str, Any]:
    """What is written down of one training."""
    replayed = sum(each.replayed for each in found.steps)
    updates = [update for each in found.steps for update in each.updates]
    losses = [loss for each in found.steps for loss in each.losses]
    return {
        "name": name,
        "steps": len(found.steps),
        "recognised": found.recognised,
        "reasons": sorted({reason for each in found.steps for reason in each.reasons})[:5],
        "losses": sorted({loss.kind for loss in losses}),
        "optimizers": sorted({update.optimizer for update in updates}),
        "cost": sum(each.seconds for each in found.steps) / replayed if replayed else None,
        "noise": max((loss.largest for loss in losses), default=None),
        "freedom": max((update.freedom for update in updates), default=None),
        "freedom_bits": max((update.freedom_bits for update in updates), default=None),
        "direct": sorted({weights for loss in losses for weights in loss.direct}),
    }


def summary(rows: list[dict[str, Any]]) -> Mapping[str, Any]:
    """The share that is recognised, and medians and extremes of the rest."""

    def of(key: str) -> dict[str, float]:
        values = [row[key] for row in rows if row[key] is not None]
        return {"median": median(values), "largest": max(values)} if values else {}

    return {
        "trainings": len(rows),
        "recognised": sum(row["recognised"] for row in rows),
        **{key: of(key) for key in ("cost", "noise", "freedom")},
    }


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="tests of the zoo, as pytest's -k takes them")
    parser.add_argument("--examples", action="store_true", help="the examples too, which need what they integrate")
    options = parser.parse_args()
    rows = [figures(name, found) for name, found in zoo(options.only) if found.steps]
    rows += [figures(name, found) for name, found in (*sized(), *jobs()) if found.steps and not options.only]
    rows += [figures(name, found) for name, found in (examples() if options.examples else ()) if found.steps]
    for row in rows:
        print("recognised" if row["recognised"] else "NOT", row["name"], *row["reasons"][:1])
    machine.save("recognition", {**machine.about(), "summary": summary(rows), "trainings": rows})


if __name__ == "__main__":
    main()
