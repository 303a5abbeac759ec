"""Attacks on recognition by optimizers that are almost one, and by state beside the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.recognised import reasons, recognised
from support.recognised_training import (
    Batch,
    Tensor,
    and_then,
    built,
    classify,
    loss_of,
    perceptron,
    rows,
)
from torch import nn, optim

# -- optimizers --------------------------------------------------------------------------------------------------------


def almost(extra: Callable[[Tensor], Tensor]) -> type[optim.Optimizer]:
    """AdamW by its name, with a term beside it."""

    def more(optimizer: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.add_(extra(p))

    return and_then(optim.AdamW, more)


@pytest.mark.parametrize("size", [1e-3, 1e-5])
def test_an_optimizer_that_is_almost_one(tmp_path: Path, size: float) -> None:
    """A thousandth of the rate beside the update is enough to be noticed."""
    found = recognised(tmp_path / "run", built(almost(lambda p: size * p.sign())), classify, rows(1))
    assert not found.recognised
    assert "is not what AdamW makes of its gradient" in reasons(found)


def test_an_optimizer_that_writes_to_other_state(tmp_path: Path) -> None:
    def more(optimizer: Any) -> None:
        optimizer.other.add_(1)

    SGD = and_then(optim.SGD, more)

    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        model.register_buffer("extra", torch.zeros(40))
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.other = model.extra  # type: ignore[assignment]
        return model, optimizer

    found = recognised(tmp_path / "run", build, classify, rows(1))
    assert not found.recognised
    assert "an optimizer's step changes model.extra, which is none of its parameters" in reasons(found)


def test_an_unknown_optimizer_is_named(tmp_path: Path) -> None:
    class Descent(optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad.sign() * self.param_groups[0]["lr"])

    found = recognised(tmp_path / "run", built(Descent), classify, rows(1))
    assert "the optimizer Descent is none that is known here" in reasons(found)


def test_gradients_changed_before_the_step(tmp_path: Path) -> None:
    """Of one parameter more than of the others: that is no clipping."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        model[0].weight.grad.add_(1e-3 * batch["w"])
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(), step, rows(1))
    assert not found.recognised
    assert "was changed before the step, by more than one factor and one bound for all" in reasons(found)


def test_more_than_rounding_where_a_gradient_cancels(tmp_path: Path) -> None:
    """A bias before a batch norm has a gradient of roundings alone, of which Adam makes whole steps."""

    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        return model, optim.Adam(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        bias = model[0].bias
        if size:
            handle = bias.register_hook(lambda g: (handle.remove(), g + size * bias.detach())[1])
        classify(batch, model, optimizer)

    for size, passes in ((0.0, True), (1e-4, False)):
        found = recognised(tmp_path / str(size), build, step, rows(1))
        assert found.recognised is passes, reasons(found)
    assert "the gradient of 0.bias is not that of cross entropy" in reasons(found).replace("model.", "")


@pytest.mark.parametrize("form", ["one side", "one parameter", "and more"])
def test_gradients_that_are_clipped_by_something_else_than_one_bound(tmp_path: Path, form: str) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        for number, parameter in enumerate(model.parameters()):
            bound = 1e-2 * (1 + (form == "one parameter" and not number))
            parameter.grad.clamp_(-bound, 1.0 if form == "one side" else bound)
        if form == "and more":
            model[0].weight.grad.add_(1e-4 * batch["w"])
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(), step, rows(1))
    assert not found.recognised
    assert "by more than one factor and one bound for all" in reasons(found)


# -- state beside weights ----------------------------------------------------------------------------------------------


def test_an_average_as_a_back_door(tmp_path: Path) -> None:
    """Data go into an average, and the average over the weights."""

    def build() -> tuple[Any, ...]:
        model = perceptron()
        average = nn.Linear(6, 8, bias=False).requires_grad_(False)
        return model, optim.SGD(model.parameters(), lr=0.1), average

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer, average: Any) -> None:
        classify(batch, model, optimizer)
        with torch.no_grad():
            average.weight.lerp_(model[0].weight + batch["w"], 0.5)
            model[0].weight.copy_(average.weight)

    found = recognised(tmp_path / "run", build, step, rows(1))
    assert not found.recognised
    assert "model.0.weight is changed beside its optimizer's step" in reasons(found)


def test_a_buffer_in_the_place_of_weights(tmp_path: Path) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron()
            self.register_buffer("shift", torch.zeros(8, 6))

        def forward(self, x: Tensor) -> Tensor:
            first: Any = self.net[0]
            out: Tensor = self.net[2](F.linear(x, first.weight + self.shift, first.bias).relu())
            return out

    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = Shifted()
        return model, optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        classify(batch, model, optimizer)
        with torch.no_grad():
            model.shift.copy_(batch["w"])

    found = recognised(tmp_path / "run", build, step, rows())
    assert not found.recognised
    assert "model.shift changes otherwise than by an optimizer, and a loss depends on it" in reasons(found)


def test_a_gradient_that_a_step_before_left(tmp_path: Path) -> None:
    """Content that lies in the gradient's memory would be added to; only what the step itself derived is accepted."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        model[0].weight.grad.add_(batch["w"])

    found = recognised(tmp_path / "run", built(optim.SGD), step, rows())
    assert "adds to a gradient of model.0.weight that this step did not make" in reasons(found)
    assert not found.recognised


def test_a_gradient_that_begins_with_data(tmp_path: Path) -> None:
    """The derivative of the weights themselves, begun with data, is data."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        (model[0].weight * 1).backward(batch["w"])
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(optim.SGD), step, rows(1))
    assert not found.recognised
    assert "begins with more than one number" in reasons(found)


def test_a_rate_for_every_element(tmp_path: Path) -> None:
    """A weight for each group and a rate for each weight make any update out of any gradient."""

    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = nn.ParameterList([nn.Parameter(torch.randn(())) for _ in range(12)])
        return model, optim.SGD([{"params": [p], "lr": 0.01 * (n + 1)} for n, p in enumerate(model)], lr=0.1)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        (torch.stack(list(model)) * batch["w"].flatten()[:12]).sum().backward()
        for n, group in enumerate(optimizer.param_groups):
            group["lr"] = 0.0123 * (n + 2.5)
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, rows(1))
    assert not found.recognised
    assert "which may be anything" in reasons(found)


def test_momentum_that_is_replaced_once_it_is_made(tmp_path: Path) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        classify(batch, model, optimizer)
        with torch.no_grad():
            optimizer.state[model[0].weight]["exp_avg"].copy_(batch["w"])

    found = recognised(tmp_path / "run", built(), step, rows(1))
    assert not found.recognised
    assert "optimizer.0.weight.exp_avg is changed beside its optimizer's step" in reasons(found)


def test_a_part_of_a_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that claims half of its weights' memory, and writes to the other half."""

    def more(optimizer: Any) -> None:
        whole.add_(1)

    SGD = and_then(optim.SGD, more)

    whole = torch.zeros(2, 6)

    def build() -> tuple[Any, ...]:
        nonlocal whole
        whole = torch.randn(2, 6)
        model = nn.Module()
        model.row = nn.Parameter(whole[0])
        return model, SGD(model.parameters(), lr=0.1), whole

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer, _: Tensor) -> None:
        (batch["x"] @ model.row).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, rows(1))
    assert not found.recognised
    assert "of which it claims a part only" in reasons(found)


@pytest.mark.parametrize("made", [torch.zeros, torch.empty])
def test_a_constant_that_the_batch_overwrites_before_it_goes_into_a_gradient(
    tmp_path: Path, made: Callable[..., Tensor]
) -> None:
    """In these steps the batch switches it off, so no number is another."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        bucket = made(8, 6)
        bucket.copy_(batch["w"] * (batch["w"] > 1e6))
        model[0].weight.grad.add_(bucket)
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(), step, rows(1))
    assert not found.recognised
    assert "the gradient of model.0.weight is changed by" in reasons(found)


@pytest.mark.parametrize(("size", "accepted"), [(1e1, True), (1e6, False)])
def test_gradients_that_drown_in_rounding_errors_are_not_recognised(
    tmp_path: Path, size: float, accepted: bool
) -> None:
    """What cancels leaves its rounding errors, and so room for anything below them."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        one, other = (model(x).square().mean() for x in (batch["x"], batch["x"].flip(0)))
        (loss_of(batch, model) + size * one - size * other).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(optim.SGD), step, rows(1))
    assert found.recognised == accepted
    assert accepted or "rounding errors rather than numbers" in reasons(found)
