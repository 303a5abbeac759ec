"""Transcripts made under one release of PyTorch and replayed under another, both ways: whether every state is the same.

`python -m benchmarks.releases PYTHON` records small trainings with this interpreter and replays them with `PYTHON`, an
interpreter of an environment with another PyTorch, then the other way; it writes `results/releases.json` and ends with
exit code 1 if any replay does not match. `make test-oldest` runs it with the oldest release that is allowed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import machine, models
from prover import Recorder
from weighbridge.execution.replay import replay
from weighbridge.numerics.rule_table import table_digest

UPDATES = 4
SEED = 11


class Kernels(nn.Module):
    """What releases compute differently: ELU below zero, and solutions, whose factors the backward pass takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 36), nn.Linear(36, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a batch."""
        hidden = F.elu(self.first(x * 1e-3))
        system = torch.eye(6) + 0.1 * hidden.view(-1, 6, 6)
        solution = torch.linalg.solve(system, self.second(hidden))
        return F.mse_loss(solution, y) - 0.01 * torch.linalg.slogdet(system).logabsdet.mean()


def kernels() -> models.Step:
    """A small network of operations whose kernels differ between releases."""
    model = Kernels()

    def batch(index: int) -> models.Batch:
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(8, 16, generator=generator), "y": torch.randn(8, 6, generator=generator)}

    return models.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, lambda b: model(**b))


SUBJECTS: dict[str, Callable[[], models.Step]] = {
    "gpt2": models.gpt2, "resnet": models.resnet, "lstm": models.lstm, "kernels": kernels,
}  # fmt: skip


def record(name: str, path: Path) -> dict[str, Any]:
    """Records a subject from its initialisation on and returns what stands in its log."""
    with Recorder(path, seed=SEED) as recorder:
        with recorder.initialisation():
            made = SUBJECTS[name]()
        recorder.attach(*made.attached)
        for number in range(UPDATES):
            batch = made.batch(number)
            with recorder.step(batch):
                made.update(batch)
        rounded, logged = recorder.rounded, recorder.logged
    return {"torch": torch.__version__, "rules": table_digest(), "rounded": rounded, "logged": logged}


def check(path: Path) -> dict[str, Any]:
    """Replays a transcript and returns what came out; every step's state is compared by its digest."""
    result = replay(path)
    return {
        "torch": torch.__version__,
        "rules": table_digest(),
        "verdict": result.verdict,
        "steps": list(result.steps),
        "logged": result.logged,
        "followed": result.followed,
        "first_difference": result.first_difference,
        "findings": [finding.id for finding in result.findings],
    }


def ask(python: str, cache: Path, *arguments: str) -> dict[str, Any]:
    """Runs this module with an interpreter, whose Numba caches in a place of its own; returns its last line's JSON."""
    done = subprocess.run(
        [python, "-W", "ignore", "-m", "benchmarks.releases", python, *arguments],
        stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[1],
        env={**os.environ, **machine.HERE, "NUMBA_CACHE_DIR": str(cache)},
    )  # fmt: skip
    return dict(json.loads(done.stdout.splitlines()[-1]))


def agreed(runs: list[dict[str, Any]]) -> bool:
    """Whether every replay matched, under the same table of rules."""
    return all(
        run["replayed"]["verdict"] == "match" and run["recorded"]["rules"] == run["replayed"]["rules"] for run in runs
    )


def compare(other: str, names: list[str]) -> dict[str, Any]:
    """Records and replays every subject both ways; returns the result, `agreed` in it."""
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        caches = {sys.executable: Path(scratch, "numba-here"), other: Path(scratch, "numba-there")}
        for recorder, replayer in ((sys.executable, other), (other, sys.executable)):
            for name in names:
                path = str(Path(scratch, f"{name}-{len(runs)}"))
                made = ask(recorder, caches[recorder], "--record", name, "--path", path)
                found = ask(replayer, caches[replayer], "--replay", "--path", path)
                runs.append({"subject": name, "recorded": made, "replayed": found})
                print(f"{name:8} {made['torch']} -> {found['torch']}: {found['verdict']}, {found['logged']} entries, ",
                      f"{found['followed']} of them rounded otherwise here", sep="")  # fmt: skip
    return {**machine.about(), "updates": UPDATES, "agreed": agreed(runs), "runs": runs}


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="interpreter of the environment with the other PyTorch")
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="subjects; all by default")
    parser.add_argument("--record", choices=SUBJECTS, help="record in this process and print JSON")
    parser.add_argument("--replay", action="store_true", help="replay in this process and print JSON")
    parser.add_argument("--path", type=Path, help="the transcript of --record and --replay")
    options = parser.parse_args()
    if options.record or options.replay:
        print(json.dumps(record(options.record, options.path) if options.record else check(options.path)))
        return 0
    result = compare(options.python, options.only or list(SUBJECTS))
    machine.save("releases", result)
    return 0 if result["agreed"] else 1


if __name__ == "__main__":
    sys.exit(main())
