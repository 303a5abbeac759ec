"""A small training that attacks on recognition start from, its batches, and optimizers that do something more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from prover.capture.claimed_training import ClaimedTraining
from weighbridge.transcript.training_claims import Claims

Tensor = torch.Tensor
Batch = dict[str, Tensor]


def rows(count: int = 2, size: int = 5) -> list[Batch]:
    """Batches of six numbers, one of three classes for each row, and what shall become weights."""
    g = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randn(size, 6, generator=g),
            "y": torch.randint(0, 3, (size,), generator=g),
            "w": torch.randn(8, 6, generator=g),
        }
        for _ in range(count)
    ]


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def built(kind: Callable[..., optim.Optimizer] = optim.AdamW, **options: Any) -> Callable[[], tuple[Any, ...]]:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, kind(model.parameters(), **({"lr": 1e-2} | options))

    return build


def loss_of(batch: Batch, model: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def classify(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
    loss_of(batch, model).backward()
    optimizer.step()
    optimizer.zero_grad()


def and_then(kind: type[optim.Optimizer], change: Callable[[Any], object]) -> type[Any]:
    """An optimizer by the name of another, which changes something more after its step."""

    def step(self: Any, closure: Any = None) -> Any:
        kind.step(self, closure)
        with torch.no_grad():
            change(self)

    return type(kind.__name__, (kind,), {"step": step})


def silent(count: int = 1) -> list[Batch]:
    """Batches whose data for weights are switched off."""
    return [{**each, "w": torch.zeros(8, 6)} for each in rows(count)]


def knowing(monkeypatch: pytest.MonkeyPatch, change: Callable[[Claims, int], Claims]) -> None:
    """From here on, claims are false; what falsifies them knows which reference shows the data."""
    true = ClaimedTraining.claims

    def false(self: Any) -> Claims | None:
        claims, tape = true(self), self._capture.tape
        shown = [tape.refs.index(ref) for _, ref in tape.batch_views if ref[2] == (8, 6) and ref in tape.refs]
        data = shown[0] if shown else -1
        return None if claims is None else change(claims, data)

    monkeypatch.setattr(ClaimedTraining, "claims", false)
