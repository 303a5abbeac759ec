"""One training recorded with each kind of log ends in one state, and each replays to it with every instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support.on_demand import ELSEWHERE, regenerated
from support.recordings import train
from torch import nn

from weighbridge import replay
from weighbridge.transcript.reader import Transcript

MACHINES = {
    "default": ELSEWHERE,
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "1"},
    "native": {"OMP_NUM_THREADS": "1"},
}
FORMATS = {"full": 1, "on-demand": 2, "sketch": 3}


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two layers whose sums are long enough to come out otherwise elsewhere."""
    model = nn.Sequential(nn.Linear(300, 128), nn.GELU(), nn.Linear(128, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(batch: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step under autocast in bfloat16: what sketches are for."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def batches() -> Iterator[torch.Tensor]:
    for seed in range(2):
        yield torch.randn(128, 300, generator=torch.Generator().manual_seed(seed))


@pytest.mark.essential
def test_each_kind_of_log_replays_to_one_state_with_every_instruction_set(tmp_path: Path) -> None:
    """In processes of their own. Results did come out otherwise, or there would have been nothing to set right."""
    states, runs = set(), {logs: tmp_path / logs / "run" for logs in FORMATS}
    for logs, run in runs.items():
        train(run, build, step, batches(), logs=logs, device="cpu")
        transcript = Transcript.open(run)
        assert transcript.draft["format"] == FORMATS[logs]
        states.add(transcript.step(transcript.steps - 1).state.hex())
    (state,) = states
    regenerated(runs["on-demand"])  # with sketches no log is needed
    ways = [(logs, machine) for logs in FORMATS for machine in MACHINES]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda way: replay(runs[way[0]], env=MACHINES[way[1]]), ways))
    for way, result in zip(ways, results, strict=True):
        assert (result.verdict, result.state) == ("match", state), (way, result.findings)
    followed = dict(zip(ways, (result.followed for result in results), strict=True))
    for machine in MACHINES:
        assert len({followed[logs, machine] for logs in FORMATS}) == 1, followed
    if torch.backends.mkl.is_available():
        assert followed["full", "default"] > 0 == followed["full", "native"], followed
