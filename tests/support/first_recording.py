"""Records one step that uses most compiled loops: `python -m support.first_recording RUN`, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from support.recordings import train
from torch import nn

from prover import Recorder


def record(path: Path) -> Recorder:
    """Records a small network with convolution, norms, pooling, softmax and dropout."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(), nn.LayerNorm(36),
            nn.Softmax(-1), nn.Dropout(0.1), nn.Linear(36, 5),
        )  # fmt: skip
        return model, torch.optim.AdamW(model.parameters())

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(1)
    batch = {"x": torch.randn(4, 1, 9, 9, generator=generator), "y": torch.tensor([0, 1, 2, 3])}
    return train(path, build, step, [batch])


if __name__ == "__main__":
    record(Path(sys.argv[1]))
