"""A very small training on a chip, from a seed or from what another run left: `lineage_job.py SOCKET OUT [BASE]`.

With `--declare` the run names BASE as its parent.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from firmware_sim import Shim
from prover import Recorder
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.state import read_checkpoint

STEPS = 6
SNAPSHOT_IN = 3
ROWS = 8


def batch_of(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise, with labels by chance."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(ROWS, 16, generator=generator), torch.randint(0, 4, (ROWS,), generator=generator)


def main(socket: str, out: str, base: str | None = None, declare: str | None = None) -> None:
    warnings.simplefilter("ignore")
    last = None if base is None else read_checkpoint(max((Path(base) / "checkpoints").iterdir()))
    parent = Parent.of(base, last.step) if base is not None and last is not None and declare else None
    batches = [batch_of(step + 10 * (base is not None)) for step in range(1, STEPS + 1)]
    data = DataCommitment.over(({"x": x[i], "y": y[i]} for x, y in batches for i in range(ROWS)), range(ROWS * STEPS))
    with (
        Shim.connect(socket) as chip,
        Recorder(out, seed=3, chip=chip, data=data, checkpoint_every=4, parent=parent) as recorder,
    ):
        with recorder.initialisation() if base is None else nullcontext():
            model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        if last is not None:
            weights = {v.name: v.tensor(last.storages) for v in last.views}
            model.load_state_dict({name: weights[f"model.{name}"] for name in model.state_dict()})
            del weights, last  # or else the chip sees another model beside this one
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        model.register_forward_hook(lambda *_: chip.request_snapshot() if step == SNAPSHOT_IN else None)
        for step in range(1, STEPS + 1):  # noqa: B007 (the hook reads it)
            x, y = batches.pop(0)
            with recorder.step({"x": x, "y": y}):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:])
