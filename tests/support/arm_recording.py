"""The training whose recording on ARM lies in `tests/golden/arm`: what compilers order differently, in small.

`PYTHONPATH=tests:. python -m support.arm_recording OUT` records it, on whatever machine that runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from prover import Recorder

Batch = dict[str, torch.Tensor]


class Network(nn.Module):
    """Two layers of an LSTM, whose last states are stacked, and a norm, whose derivative has operands to order."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.wide, self.head = nn.Linear(24, 96), nn.Linear(96, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns scores of shape (rows, 5) for sequences of shape (rows, steps, 16)."""
        out, (hidden, cell) = self.core(x)
        mixed = self.wide(out[:, -1] + hidden[0] * cell[1])
        mixed = mixed * torch.rsqrt(mixed.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.head(F.gelu(mixed))


def batches(count: int) -> list[Batch]:
    """Eight sequences of six vectors, and a class for each."""
    made = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(8, 6, 16, generator=generator)
        made.append({"x": x, "y": torch.randint(0, 5, (8,), generator=generator)})
    return made


def record(path: Path, updates: int = 3) -> None:
    """Records the training into a directory that does not exist yet."""
    with Recorder(path, seed=23, policy="strict", checkpoint_every=50) as recorder:
        with recorder.initialisation():
            model = Network()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for batch in batches(updates):
            with recorder.step(batch):
                F.cross_entropy(model(batch["x"]), batch["y"]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    record(Path(sys.argv[1]))
