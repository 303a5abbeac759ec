"""What would enter beside a gradient, by claims that stretch what is a gradient, by single numbers, and by memory."""

from __future__ import annotations

from dataclasses import replace
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
    knowing,
    loss_of,
    perceptron,
    rows,
    silent,
)
from torch import nn, optim

from weighbridge.execution.recognition.acceptance import excess, width
from weighbridge.execution.recognition.derivation import Pair
from weighbridge.transcript.training_claims import Claims, Gradient


def test_a_parameter_that_an_optimizer_changes_without_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the claims it has no gradient, and data are its optimizer's state."""

    def more(optimizer: Any) -> None:
        optimizer.param_groups[0]["params"][0].copy_(optimizer.data)

    SGD = and_then(optim.SGD, more)

    def change(claims: Claims, data: int) -> Claims:
        (step,) = claims.steps
        (group,) = step.groups
        first = group.parameters[0]
        false = replace(first, gradient=None, state={"data": data, "gradient": first.gradient or 0})
        groups = (replace(group, parameters=(false, *group.parameters[1:])),)
        return replace(claims, steps=(replace(step, groups=groups),))

    def step(batch: Batch, model: Any, optimizer: Any) -> None:
        optimizer.data = batch["w"]
        classify(batch, model, optimizer)

    knowing(monkeypatch, change)
    found = recognised(tmp_path / "run", built(SGD, lr=0.1), step, rows(1))
    assert not found.recognised
    assert "model.0.weight is changed beside its optimizer's step" in reasons(found)


def test_data_that_are_claimed_to_be_a_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are zero in these steps, as is the gradient of what no loss reads."""

    def change(claims: Claims, data: int) -> Claims:
        (backward,) = claims.backwards
        gradients = (*backward.gradients, Gradient(data, None, data))
        return replace(claims, backwards=(replace(backward, gradients=gradients),))

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        model[0].weight.grad.add_(batch["w"])
        optimizer.step()
        optimizer.zero_grad()

    knowing(monkeypatch, change)
    found = recognised(tmp_path / "run", built(), step, silent())
    assert not found.recognised
    assert "the gradient of model.0.weight is changed by w before the step" in reasons(found)


@pytest.mark.parametrize("together", [False, True])
def test_data_that_enter_a_gradient_number_by_number(tmp_path: Path, together: bool) -> None:
    """Each is one number, as a rate is; or all are put together first."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        gradient, numbers = model[0].weight.grad, [number.clone() for number in batch["w"][:4].flatten()]
        if together:
            gradient[:4].add_(torch.stack(numbers).view(4, 6))
        else:
            for to, number in zip(gradient[:4].flatten(), numbers, strict=True):
                to.add_(number)
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(), step, silent())
    assert not found.recognised
    assert "the gradient of model.0.weight is changed by" in reasons(found)


def test_weights_that_are_many_single_numbers(tmp_path: Path) -> None:
    class Scattered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron()
            for n in range(20):
                self.register_buffer(f"b{n}", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            first: Any = self.net[0]
            shift = torch.stack([getattr(self, f"b{n}") for n in range(20)]).view(20, 1)[:8]
            out: Tensor = self.net[2](F.linear(x, first.weight + shift, first.bias).relu())
            return out

    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = Scattered()
        return model, optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        classify(batch, model, optimizer)
        with torch.no_grad():
            for n, number in enumerate(batch["w"].view(-1)[:20]):
                getattr(model, f"b{n}").copy_(number)

    found = recognised(tmp_path / "run", build, step, rows(1))
    assert not found.recognised
    assert "20 numbers change otherwise than by an optimizer, and a loss depends on them" in reasons(found)


@pytest.mark.parametrize("passes", [1, 12])
def test_data_that_backward_passes_begin_with(tmp_path: Path, passes: int) -> None:
    """Each begins with one number, which is the gradient of one weight."""

    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = nn.Linear(4, 3, bias=False)
        return model, optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        each, seeds = list(model.weight.view(-1)), list(batch["w"].view(-1)[:12])
        if passes == 1:
            torch.autograd.backward(each, seeds)
        else:
            for w, seed in zip(each, seeds, strict=True):
                w.backward(seed, retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, rows(1))
    assert not found.recognised
    assert ("begins with more than one number" if passes == 1 else "numbers for 12 elements") in reasons(found)


def test_memory_without_a_name_that_is_replaced(tmp_path: Path) -> None:
    hold = [torch.zeros(8, 6)]

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        first = model[0]
        F.cross_entropy(
            model[2](F.linear(batch["x"], first.weight + hold[0], first.bias).relu()), batch["y"]
        ).backward()
        optimizer.step()
        optimizer.zero_grad()
        hold[0] = batch["w"].clone()

    found = recognised(tmp_path / "run", built(), step, rows(3))
    assert not found.recognised
    assert "which is left from step to step" in reasons(found)


def test_a_gradient_beside_which_something_else_lies(tmp_path: Path) -> None:
    def more(optimizer: Any) -> None:
        optimizer.param_groups[0]["params"][0].add_(optimizer.other * (optimizer.number > 1e6))

    SGD = and_then(optim.SGD, more)

    def build() -> tuple[Any, ...]:
        model = perceptron()
        memory = torch.randn(2, 8, 6)
        model[0].weight.grad = memory[0].zero_()
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.other = memory[1]
        return model, optimizer

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        optimizer.number = batch["x"][0, 0].clone()
        loss_of(batch, model).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    found = recognised(tmp_path / "run", build, step, rows(2))
    assert not found.recognised
    assert "the gradient of model.0.weight is changed by model.0.weight.grad" in reasons(found)


def test_a_width_without_bounds_accepts_nothing() -> None:
    """One coordinate whose error overflows when it is squared says nothing of the others in its vector."""
    pair = Pair(torch.tensor([1e200, 1.0], dtype=torch.float64), torch.tensor([0.0, 1.0]))
    assert excess(torch.tensor([0.0, 5.0], dtype=torch.float64), width(pair)) == float("inf")


@pytest.mark.finding("recognition.none")
def test_parameters_that_are_claimed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of claims could ask for more work than there is time, in one step of an optimizer."""

    def change(claims: Claims, data: int) -> Claims:
        (step,) = claims.steps
        return replace(claims, steps=(replace(step, groups=step.groups * 2),))

    knowing(monkeypatch, change)
    found = recognised(tmp_path / "run", built(), classify, rows(1))
    assert "is claimed to have a parameter twice" in reasons(found)
