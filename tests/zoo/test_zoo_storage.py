"""How weights lie in memory, how batches change, and what is computed twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from zoo.machines import Zoo
from zoo.material import Batch, classify, perceptron, real, rows, whole, with_sgd

from weighbridge.transcript.reader import Transcript

Tensor = torch.Tensor


class Tied(nn.Module):
    """The embedding is the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(16, 8, padding_idx=0), nn.Linear(8, 16, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x))


def test_tied_weights(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Tied()
        return model, torch.optim.AdamW(model.parameters())

    zoo.holds(build, classify, [{"x": whole(16, 7, seed=i), "y": whole(16, 7, seed=i)} for i in range(3)])
    storages = Transcript.open(zoo.path).checkpoint(1).storages
    assert sum(name in storages for name in ("model.embed.weight", "model.out.weight")) == 1


def test_parameters_that_are_windows_of_one_storage(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = perceptron()
        whole_storage = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        start = 0
        for p in model.parameters():
            p.data = whole_storage[start : start + p.numel()].view_as(p)
            start += p.numel()
        return model, torch.optim.Adam(model.parameters())

    zoo.holds(build, classify, rows())
    views = Transcript.open(zoo.path).checkpoint(1).views
    assert len({view.storage for view in views if view.name.startswith("model.")}) == 1


class Flat(nn.Module):
    """One parameter that is cut into matrix and bias in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(3 * 6 + 3) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.flat[:18].view(3, 6), self.flat[18:])


def test_one_flat_parameter(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Flat()
        return model, torch.optim.AdamW(model.parameters())

    zoo.holds(build, classify, rows())


def test_rows_of_relu_that_are_all_zero(zoo: Zoo) -> None:
    """Sums of nothing but zeros: of either sign in the operands, of one sign in the results."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = perceptron()
        nn.init.constant_(model[0].bias, -100.0)  # type: ignore[index, arg-type]
        nn.init.constant_(model[2].bias, -0.0)  # type: ignore[index, arg-type]
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        h = model(batch["x"] * -0.0)
        (F.cross_entropy(h, batch["y"]) + torch.relu(-h * 0).max() + torch.maximum(h * 0, -h * 0).amax()).backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, rows())


def test_batches_of_changing_shape(zoo: Zoo) -> None:
    zoo.holds(with_sgd, classify, [{"x": real(n, 6, seed=n), "y": whole(3, n, seed=n)} for n in (5, 2, 5, 1)])
    transcript = Transcript.open(zoo.path)
    assert len({transcript.step(step).tape for step in range(1, 5)}) == 3, "one tape for each shape"


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_draws_the_same_mask_again(zoo: Zoo, reentrant: bool) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    masks: list[Tensor] = []

    def step(batch: Batch, model: Any, optimizer: torch.optim.Optimizer) -> None:
        hook = model[1].register_forward_hook(lambda module, args, out: masks.append(out.detach() == 0))
        h = checkpoint(model[:3], batch["x"].clone().requires_grad_(reentrant), use_reentrant=reentrant)
        F.cross_entropy(model[3](h), batch["y"]).backward()
        hook.remove()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, rows(2))
    assert len(masks) == 4
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
