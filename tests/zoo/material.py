"""Batches and small networks that several families share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor
Batch = dict[str, Tensor]


def whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    """Integers below `high`."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def real(*shape: int, seed: int = 0) -> Tensor:
    """Normal variates."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(count: int = 3, size: int = 5) -> list[Batch]:
    """Batches of six numbers and one of three classes for each row."""
    return [{"x": real(size, 6, seed=i), "y": whole(3, size, seed=i)} for i in range(count)]


def perceptron() -> nn.Module:
    """Six numbers to three classes."""
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def with_sgd() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A perceptron and plain gradient descent."""
    model = perceptron()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def classify(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer, *others: Any) -> None:
    """One update on the cross entropy; whatever else was built is stepped after it."""
    F.cross_entropy(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()
    for other in others:
        other.step()


def descend(loss: Callable[[Tensor, Batch], Tensor]) -> Callable[..., None]:
    """One update on a loss of the model's output and the batch."""

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss(model(batch["x"]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
