"""The way in which step times are measured: the replay worker, held up after every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks import bench_steps
from weighbridge.execution.workers.replay_worker import Replay


def test_the_replay_worker_reports_after_every_step(honest_run: Path) -> None:
    seen: list[Any] = []
    with torch.no_grad():
        result = Replay(bench_steps.request(honest_run), [], seen.append).run()
    assert result["verdict"] == "match"
    steps = result["steps"][1]
    assert seen == [{"progress": [done, steps]} for done in range(1, steps + 1)]
