"""Sixteen bits: native, by autocast, with a gradient scaler, and with what people do between its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, classify, perceptron, real, rows, whole

Scaler = torch.amp.GradScaler
Optimizer = torch.optim.Optimizer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_native(zoo: Zoo, dtype: torch.dtype) -> None:
    def build() -> tuple[nn.Module, Optimizer]:
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 3)).to(dtype)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    batches = [{"x": batch["x"].to(dtype), "y": batch["y"]} for batch in rows()]
    zoo.holds(build, classify, batches, policy="calibrated")


class Small(nn.Module):
    """Words through a block of attention, as autocast sees it: products in 16 bits, softmax and norms in 32."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(11, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.out = nn.Linear(8, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.mix(self.embed(x))).flatten(0, 1)


def test_autocast_over_a_transformer(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, Optimizer]:
        model = Small()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(batch["x"]), batch["y"].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    batches = [{"x": whole(11, 2, 5, seed=i), "y": whole(11, 2, 5, seed=i + 9)} for i in range(2)]
    zoo.holds(build, step, batches, policy="calibrated")


def test_autocast_over_convolutions(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, Optimizer]:
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    batches = [{"x": real(4, 1, 8, 8, seed=i), "y": whole(3, 4, seed=i)} for i in range(2)]
    zoo.holds(build, step, batches, policy="calibrated")


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_gradient_scaler_that_overflows_first(zoo: Zoo, name: str) -> None:
    """The first scale is too large for float16, so the first update is left out and the scale halved."""

    def build() -> tuple[nn.Module, Optimizer, Scaler]:
        model = perceptron()
        return model, OPTIMIZERS[name](model.parameters()), Scaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-116)

    scales: list[float] = []

    def step(batch: Batch, model: nn.Module, optimizer: Optimizer, scaler: Scaler) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
        scaler.scale(loss).backward()
        if "fused" not in name:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())

    zoo.holds(build, step, rows(), policy="calibrated")
    assert scales == [2.0**10] * 3
