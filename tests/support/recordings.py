"""Recorded runs for tests: real training of tiny models, and replays of them in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from prover import Recorder
from weighbridge.execution.workers.comparison_worker import Comparison
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.execution.workers.replay_worker import Replay

Build = Callable[[], tuple[Any, ...]]
Step = Callable[..., None]


def replay_here(
    path: Path, *, steps: tuple[int, int] | None = None, stop: tuple[int, int] | None = None, salt: bytes = bytes(32),
    recognise: int = 0, supplements: Path | None = None, tapes: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Replays in this process, without confinement: the same code that the worker runs, without its start-up time."""
    request = {
        "path": str(path), "steps": steps, "device": "cpu", "stop": stop, "salt": salt.hex(),
        "memory": 1 << 30, "seconds": 60, "recognise": [recognise, 0] if recognise else None,
        "supplements": None if supplements is None else str(supplements), "tapes": tapes or {},
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return Replay(request, [], lambda message: None).run()


def replay_rank_here(run: Path, *, stop: tuple[int, int], salt: bytes = bytes(32)) -> dict[str, Any]:
    """Replays all ranks of the job that a rank's transcript lies in to a position of that rank; its own result."""
    rank = int(run.name.removeprefix("rank-"))
    request = {
        "path": str(run.parent), "steps": None, "device": "cpu", "stop": (rank, *stop), "salt": salt.hex(),
        "memory": 1 << 30,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        found: dict[str, Any] = JobReplay(request, [], lambda message: None).run()["ranks"][rank]
    return found


def compare_here(
    a: Path, b: Path, *, step: int | None = None, op: int | None = None, elements: int = 16
) -> dict[str, Any]:
    """Compares in this process, without confinement: the same code that the worker runs."""
    request = {
        "paths": [str(a), str(b)], "step": step, "op": op, "elements": elements, "device": "cpu", "memory": 1 << 30,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return Comparison(request, [], lambda message: None).run()


def train(
    path: Path, build: Build, step: Step, batches: Iterable[Any], *, seed: int = 7, every: int = 50, **options: Any
) -> Recorder:
    """Records `build` as the initialisation and `step(batch, *built)` once for each batch."""
    with Recorder(path, seed=seed, checkpoint_every=every, **options) as recorder:
        with recorder.initialisation():
            built = build()
        recorder.attach(*built)
        for batch in batches:
            with recorder.step(batch):
                step(batch, *built)
    return recorder


def violations(result: dict[str, Any]) -> list[str]:
    """The identifiers of a replay's violations, in order."""
    return [f["id"] for f in result["findings"] if f["severity"] == "violation"]


def verdict(path: Path) -> str:
    """One line on a replay: `match`, or what the first difference or finding was."""
    result = replay_here(path)
    if result["verdict"] == "match":
        return "match"
    return f"{result['verdict']}: {result['first_difference']} {[f['message'] for f in result['findings']]}"
