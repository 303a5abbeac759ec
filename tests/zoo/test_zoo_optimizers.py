"""Optimizers, schedulers and what surrounds an update."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from zoo.machines import Zoo
from zoo.material import Batch, classify, perceptron, rows

FORMS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "single": {"foreach": False}}

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "adamax": lambda p: optim.Adamax(p, foreach=True),
    "adadelta": lambda p: optim.Adadelta(p, foreach=True),
    "adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
    "adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1, weight_decay=0.1),
    "adagrad-fused": lambda p: optim.Adagrad(p, lr_decay=0.1, fused=True),
    "adam-tensor-rate": lambda p: optim.AdamW(p, lr=torch.tensor(1e-2)),
    "asgd": lambda p: optim.ASGD(p, foreach=True),
    "nadam": lambda p: optim.NAdam(p, foreach=True),
    "radam": lambda p: optim.RAdam(p, lr=0.1, foreach=True),
    "rmsprop": lambda p: optim.RMSprop(p, centered=True, momentum=0.9, foreach=True),
    "rprop": lambda p: optim.Rprop(p),
    **{f"adamw-{n}": lambda p, f=f: optim.AdamW(p, lr=0.01, amsgrad=True, **f) for n, f in FORMS.items()},
    **{f"adam-{n}": lambda p, f=f: optim.Adam(p, lr=0.01, weight_decay=0.01, **f) for n, f in FORMS.items()},
    **{
        f"sgd-{n}": lambda p, f=f: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **f)
        for n, f in FORMS.items()
    },
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_an_optimizer(zoo: Zoo, name: str) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, OPTIMIZERS[name](model.parameters())

    zoo.holds(build, classify, rows(3), every=1)
    zoo.trains_as_without(build, classify, rows(3))


def test_lbfgs_calls_back(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            return float(loss.detach())

        optimizer.step(closure)  # type: ignore[arg-type]

    zoo.holds(build, step, rows(2))


class Muon(optim.Optimizer):
    """Momentum, orthogonalised by five steps of Newton and Schulz in float32."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p)).mul_(0.95).add_(p.grad)
                x = p.grad.add(momentum, alpha=0.95)
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
                p.add_(x, alpha=-group["lr"])


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.dim() == 2]


def test_newton_schulz(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, Muon(matrices(model), lr=0.02)

    zoo.holds(build, classify, rows(), every=1)
    zoo.trains_as_without(build, classify, rows())


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="this PyTorch has no such optimizer")
def test_muon_of_pytorch_works_in_bfloat16(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, optim.Muon(matrices(model), lr=0.02)

    zoo.holds(build, classify, rows(), policy="calibrated")


SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
}


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_a_scheduler(zoo: Zoo, name: str) -> None:
    def build() -> tuple[Any, ...]:
        warnings.simplefilter("ignore")
        model = perceptron()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, SCHEDULERS[name](optimizer)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer, scheduler: Any) -> None:
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(*([loss.item()] if name == "plateau" else []))

    zoo.holds(build, step, rows(4))


def test_averages_of_a_model_with_batch_norm(zoo: Zoo) -> None:
    def build() -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        moving = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
        return model, optimizer, moving, AveragedModel(model), SWALR(optimizer, 0.05)

    def step(batch: Batch, model: nn.Module, optimizer: Any, moving: Any, plain: Any, scheduler: Any) -> None:
        classify(batch, model, optimizer, scheduler)
        moving.update_parameters(model)
        plain.update_parameters(model)

    zoo.holds(build, step, rows())


def test_groups_frozen_parameters_accumulation_and_both_clippings(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        model[0].weight.requires_grad_(False)  # type: ignore[index]
        groups = [{"params": [model[0].bias], "lr": 0.1}, {"params": model[2].parameters(), "weight_decay": 0.1}]  # type: ignore[index]
        return model, optim.AdamW(groups, lr=0.01)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        for part in range(2):
            (F.cross_entropy(model(batch["x"][part::2]), batch["y"][part::2]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    zoo.holds(build, step, rows())


def test_gradients_that_grow_over_steps(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, optim.SGD(model.parameters(), lr=0.1)

    calls = []

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        calls.append(batch)
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        if len(calls) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    zoo.holds(build, step, rows(5))
