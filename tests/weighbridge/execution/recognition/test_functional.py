"""Gradients that `torch.func` makes are recorded, and not recognised: the reason says whose gradient no pass gave."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from support.recognised import reasons, recognised
from torch import nn, optim
from torch.func import functional_call, grad, vmap

Tensor = torch.Tensor
Batch = dict[str, Tensor]


def build() -> tuple[nn.Module, optim.Optimizer]:
    model = nn.Linear(6, 3)
    return model, optim.SGD(model.parameters(), lr=0.1)


def rows() -> list[Batch]:
    g = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(5, 6, generator=g), "y": torch.randint(0, 3, (5,), generator=g)} for _ in range(2)]


def of_each(batch: Batch, model: nn.Module) -> dict[str, Tensor]:
    """Gradients of the loss, by parameter, for each row."""

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    named = {name: p.detach() for name, p in model.named_parameters()}
    found: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(named, batch["x"], batch["y"])
    return found


def test_gradients_of_each_row(tmp_path: Path) -> None:
    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        each = of_each(batch, model)
        for name, p in model.named_parameters():
            p.grad = each[name].mean(dim=0)
        optimizer.step()

    found = recognised(tmp_path / "run", build, step, rows())
    assert not found.recognised
    assert "a gradient that no backward pass of the step gave it" in reasons(found)


def test_an_honest_loss_beside_gradients_of_each_row_excuses_nothing(tmp_path: Path) -> None:
    """The attack: what the backward pass gave is replaced by what a functional gradient was turned into."""

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        each = of_each(batch, model)
        for name, p in model.named_parameters():
            p.grad = each[name].sum(dim=0) * 0 + 1
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, rows())
    assert not found.recognised
    assert "weight" in reasons(found)


def test_the_same_loss_by_a_backward_pass_is_recognised(tmp_path: Path) -> None:
    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, rows())
    assert found.recognised, reasons(found)
