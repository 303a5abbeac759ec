"""A small training of several segments that auditors share, and the parts that they play."""

from __future__ import annotations

from pathlib import Path

import torch
from support.recordings import train
from torch import nn

STEPS = 8


def record(path: Path) -> None:
    """Records a perceptron with dropout and momentum: eight steps, with a checkpoint every two."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(1)
    batches = [{"x": torch.randn(4, 6, generator=generator), "y": torch.tensor([0, 1, 2, 0])} for _ in range(STEPS)]
    train(path, build, step, batches, every=2)
