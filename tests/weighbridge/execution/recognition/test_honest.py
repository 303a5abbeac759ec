"""Honest trainings are recognised, whatever they do around a gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.recognised import reasons, recognised
from support.recordings import Build, Step
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from weighbridge.execution.recognition.acceptance import width
from weighbridge.execution.recognition.derivation import Pair

Tensor = torch.Tensor
Batch = dict[str, Tensor]


def rows(count: int = 2, size: int = 5) -> list[Batch]:
    """Batches of six numbers and one of three classes for each row."""
    generators = [torch.Generator().manual_seed(i) for i in range(count)]
    return [
        {"x": torch.randn(size, 6, generator=g), "y": torch.randint(0, 3, (size,), generator=g)} for g in generators
    ]


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def classify(batch: Batch, model: nn.Module, optimizer: optim.Optimizer, *_: Any) -> None:
    F.cross_entropy(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.01, foreach=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True, fused=True),
    "NAdam": lambda p: optim.NAdam(p),
    "RAdam": lambda p: optim.RAdam(p, lr=0.1),
    "Adamax": lambda p: optim.Adamax(p),
    "Adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1, weight_decay=0.1),
    "Adadelta": lambda p: optim.Adadelta(p),
    "RMSprop": lambda p: optim.RMSprop(p, centered=True, momentum=0.9),
    "Rprop": lambda p: optim.Rprop(p),
    "ASGD": lambda p: optim.ASGD(p),
    "Adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_an_optimizer(tmp_path: Path, name: str) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, OPTIMIZERS[name](model.parameters())

    found = recognised(tmp_path / "run", build, classify, rows(3))
    assert found.recognised, reasons(found)
    assert {update.optimizer for step in found.steps for update in step.updates} == {name}
    assert found.lines()[0].startswith(f"the update is {name} of the gradient of cross entropy")


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="a newer optimizer")
def test_muon(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = nn.Linear(6, 64, bias=False)
        return model, optim.Muon(model.parameters(), lr=1e-2)

    found = recognised(tmp_path / "run", build, classify, rows())
    assert found.recognised, reasons(found)


def _convolutions() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        model = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(64, 3))
        return model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    g = torch.Generator().manual_seed(0)
    batch = {"x": torch.randn(5, 1, 8, 8, generator=g), "y": torch.randint(0, 3, (5,), generator=g)}
    return build, classify, [batch]


class Reader(nn.Module):
    """Predicts the next of twenty words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cells, self.head = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.head(self.cells(self.words(x))[0])
        return h


def _recurrent() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = Reader()
        return model, optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        x = batch["x"]
        F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    return build, step, [{"x": torch.randint(0, 20, (3, 6), generator=torch.Generator().manual_seed(0))}]


class LowRank(nn.Module):
    """A frozen linear layer and a product of two thin matrices."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.base(x) + F.dropout(x, 0.1, self.training) @ self.a.T @ self.b.T * 8
        return h


def _adapters() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model: Any = perceptron()
        model[0], model[2] = LowRank(model[0]), LowRank(model[2])
        return model, optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    return build, classify, rows()


def _adversaries() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[nn.Module, nn.Module, optim.Optimizer, optim.Optimizer]:
        makes, judges = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 6)), nn.Linear(6, 1)
        return makes, judges, optim.Adam(makes.parameters(), 1e-3), optim.Adam(judges.parameters(), 1e-3)

    def step(batch: Batch, makes: nn.Module, judges: nn.Module, first: Any, second: Any) -> None:
        made, loss = makes(torch.randn(5, 4)), F.binary_cross_entropy_with_logits
        right, wrong = torch.ones(5, 1), torch.zeros(5, 1)
        (loss(judges(batch["x"]), right) + loss(judges(made.detach()), wrong)).backward()
        second.step()
        second.zero_grad()
        loss(judges(made), right).backward()
        first.step()
        first.zero_grad()
        second.zero_grad()

    return build, step, rows()


def _accumulation() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[Any, ...]:
        model = perceptron()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer, schedule: Any) -> None:
        for part in range(3):
            (F.cross_entropy(model(batch["x"][part::3]), batch["y"][part::3]) / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        schedule.step()

    return build, step, rows(3, 9)


def _clipped_by_value() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[Any, ...]:
        model = perceptron()
        return model, optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        F.cross_entropy(model(batch["x"]), batch["y"]).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.02)
        optimizer.step()
        optimizer.zero_grad()

    return build, step, rows()


class Cancelling(nn.Module):
    """Biases on which no loss depends, a decomposed norm, a parameter that is one number, and a remainder."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.attention = nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.MultiheadAttention(4, 2)
        self.batch, self.leave, self.temperature = nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.enter(x[:, None]))
        h = h.transpose(1, 2)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        logits: Tensor = self.leave(self.batch(h.mean(1) + torch.remainder(h[:, 0], 2.0) * 0.1)) * self.temperature
        return logits


def _cancelling() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = Cancelling()
        return model, optim.AdamW(model.parameters(), lr=1e-2)

    return build, classify, rows(3, 8)


def _closure() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[Any, ...]:
        model = perceptron()
        return model, optim.Adam(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return loss

        optimizer.step(closure)

    return build, step, rows()


def _slow_teacher() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[Any, ...]:
        model = perceptron()
        return model, optim.Adam(model.parameters(), lr=1e-2), copy.deepcopy(model).requires_grad_(False)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer, slow: nn.Module) -> None:
        with torch.no_grad():
            for s, p in zip(slow.parameters(), model.parameters(), strict=True):
                s.mul_(0.9).add_(p, alpha=0.1)
            taught = slow(batch["x"])
        F.mse_loss(model(batch["x"]), taught + F.one_hot(batch["y"], 3)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return build, step, rows(3)


def _scaled() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[Any, ...]:
        model = perceptron()
        return model, optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer, scaler: Any) -> None:
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return build, step, rows()


def _checkpoints(*, reentrant: bool) -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        x = batch["x"].clone().requires_grad_()
        F.cross_entropy(model[2](checkpoint(model[:2], x, use_reentrant=reentrant)), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return build, step, rows()


def _tiny_bfloat16() -> tuple[Build, Step, list[Batch]]:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
        return model, optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return build, step, rows()


TRAININGS: dict[str, Callable[[], tuple[Build, Step, list[Batch]]]] = {
    "convolutions with batch norm and dropout": _convolutions,
    "an LSTM with clipping": _recurrent,
    "adapters on frozen weights": _adapters,
    "two networks against each other": _adversaries,
    "accumulation, clipping and a schedule": _accumulation,
    "clipping by value": _clipped_by_value,
    "gradients that cancel": _cancelling,
    "a closure": _closure,
    "a slow teacher": _slow_teacher,
    "float16 with scaled losses": _scaled,
    "checkpoints": lambda: _checkpoints(reentrant=False),
    "reentrant checkpoints": lambda: _checkpoints(reentrant=True),
    "bfloat16": _tiny_bfloat16,
}


@pytest.mark.parametrize("name", sorted(TRAININGS))
def test_a_training(tmp_path: Path, name: str) -> None:
    found = recognised(tmp_path / "run", *TRAININGS[name]())
    assert found.recognised, reasons(found)
    for step in found.steps:
        assert all(loss.largest <= 0.75 and not loss.direct for loss in step.losses), "far from what is accepted"
        assert all(update.largest <= 0.9 for update in step.updates)


def test_a_bound_is_found(tmp_path: Path) -> None:
    found = recognised(tmp_path / "run", *_clipped_by_value())
    assert {(update.scale, round(update.bound or 0.0, 6)) for step in found.steps for update in step.updates} == {
        (1.0, 0.02)
    }


def test_frozen_weights_and_statistics_are_named(tmp_path: Path) -> None:
    adapters = recognised(tmp_path / "adapters", *_adapters())
    assert {"model.0.base.weight", "model.2.base.bias"} <= set(adapters.steps[0].carried)
    assert set(adapters.steps[0].updates[0].parameters) == {f"model.{n}.{m}" for n in (0, 2) for m in "ab"}
    convolutions = recognised(tmp_path / "convolutions", *_convolutions())
    assert {"model.1.running_mean", "model.1.running_var"} <= set(convolutions.steps[0].statistics)


def test_what_was_recovered_is_what_the_program_did(tmp_path: Path) -> None:
    """The clip's factor and the schedule's rates, which nobody claims, follow from the numbers."""
    found = recognised(tmp_path / "run", *_accumulation())
    model = perceptron()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    schedule, rates = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10), []
    for _ in found.steps:
        rates.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0]))
        optimizer.step()
        schedule.step()
    for step, (rate, beta) in zip(found.steps, rates, strict=True):
        (update,) = step.updates
        assert update.hyperparameters[0]["lr"] == pytest.approx(rate, rel=1e-4)
        assert update.hyperparameters[0]["betas[0]"] == pytest.approx(beta, rel=1e-4)
        assert update.formulas == {"lr of group 0": "lr"}
        assert 0 < update.scale < 1
        assert len(step.losses) == 3


def test_averages_are_named_with_their_factor(tmp_path: Path) -> None:
    def build() -> tuple[Any, ...]:
        model = perceptron()
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        return model, optim.SGD(model.parameters(), lr=0.1), average

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer, average: AveragedModel) -> None:
        classify(batch, model, optimizer)
        average.update_parameters(model)

    found = recognised(tmp_path / "run", build, step, rows(3))
    assert found.recognised, reasons(found)
    assert "model1.module.0.weight of model.0.weight by 0.1" in found.steps[-1].averages


def test_a_stop_on_the_way_is_listed(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        h = model[0](batch["x"])
        F.cross_entropy(model[2](h.relu() - h.detach().tanh()), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, rows())
    assert found.recognised, reasons(found)
    assert any("tanh" in stop for stop in found.steps[0].stops)


def test_double_backward_is_named_as_unrecognised(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        return model, optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Batch, model: nn.Module, optimizer: optim.Optimizer) -> None:
        x = batch["x"].clone().requires_grad_()
        h = model(x)
        (slope,) = torch.autograd.grad(h.sum(), x, create_graph=True)
        (F.cross_entropy(h, batch["y"]) + slope.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, rows(1))
    assert not found.recognised
    assert "double backward" in reasons(found)


def test_noise_is_pooled_past_dimensions_of_one() -> None:
    """A sample that is zero by chance takes the error of those around it, where a leading dimension has one row too."""
    noise = torch.full((1, 9, 16), 1e-6, dtype=torch.float64)
    noise[0, 4, 5] = 0
    exact = torch.ones(1, 9, 16, dtype=torch.float64)
    accepted = width(Pair(exact, (exact + noise).to(torch.float64)))
    assert float(accepted[0, 4, 5]) > 1e-5
