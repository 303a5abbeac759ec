"""Weights that change through gradients, in many honest ways, are no finding; those that change around them are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import train
from torch import Tensor, nn
from torch.nn import functional as F

from weighbridge.core.errors import Finding
from weighbridge.program.tape_checks import check
from weighbridge.program.tape_policy import TapePolicy
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

ALLOWED = TapePolicy(free_tensors=1 << 20, free_values=1 << 20)
Step = Callable[..., None]


def batches(count: int = 4) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "x": torch.randn(4, 8, generator=generator),
            "y": torch.randint(0, 4, (4,), generator=generator),
            "delta": torch.randn(16, 8, generator=generator),
        }
        for _ in range(count)
    ]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def found(path: Path, make: Callable[[], Any], step: Step) -> list[Finding]:
    """Trains, and returns what is said about weights, if the chip was told where they lie."""
    train(path, make, step, batches())
    transcript = Transcript.open(path)
    state = transcript.checkpoint(1)
    stored = {view.storage for view in state.views if not view.name.startswith(("optimizer", "object"))}
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    transcript.notes = ChipNotes(tuple(sorted(name for name in stored if not name.endswith(buffers))))
    _, findings = check(transcript, lambda digest: Tape.decode(transcript.tape(digest)), ALLOWED)
    return [finding for finding in findings if finding.id == "tape.no_gradient"]


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def descend(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


# -- honest ------------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_pass(tmp_path: Path, name: str) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = net()
        return model, OPTIMIZERS[name](model.parameters())

    assert found(tmp_path / "run", make, descend) == []


def test_accumulation_over_two_steps_with_clipping_and_an_average_passes(tmp_path: Path) -> None:
    def make() -> tuple[Any, ...]:
        model = net()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2), copy.deepcopy(model)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module) -> None:
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        step.done += 1  # type: ignore[attr-defined]
        if step.done % 2 == 0:  # type: ignore[attr-defined]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters(), strict=True):
                    a.lerp_(p, 0.1)

    step.done = 0  # type: ignore[attr-defined]
    assert found(tmp_path / "run", make, step) == []


def test_batch_norm_on_the_raw_input_and_dropout_pass(tmp_path: Path) -> None:
    """The running mean of the input follows from the batch alone; it is a buffer, and no weight."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    assert found(tmp_path / "run", make, descend) == []


def test_a_linear_model_and_a_gradient_that_is_constant_pass(tmp_path: Path) -> None:
    """The gradient of the last bias of a critic is the same number whatever the batch is, and Adam remembers it."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch["x"]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert found(tmp_path / "critic", make, step) == []

    def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(8, 4)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    assert found(tmp_path / "linear", linear, descend) == []


def test_noise_beside_gradients_and_a_target_network_pass(tmp_path: Path) -> None:
    def make() -> tuple[Any, ...]:
        model, target = net(), net()
        return model, torch.optim.SGD(model.parameters(), lr=0.1), target

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, target: nn.Module) -> None:
        F.mse_loss(model(batch["x"]), target(batch["x"]).detach()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=1e-3)
            target.load_state_dict(model.state_dict())

    assert found(tmp_path / "run", make, step) == []


# -- around the loss ---------------------------------------------------------------------------------------------------


def plain() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net()
    return model, torch.optim.SGD(model.parameters(), lr=1e-9)


def test_what_is_added_from_the_batch(tmp_path: Path) -> None:
    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        descend(batch, model, optimizer)
        with torch.no_grad():
            next(model.parameters()).add_(batch["delta"])

    findings = found(tmp_path / "run", plain, step)
    assert findings
    for finding in findings:
        assert finding.severity == "warning"
        assert finding.found == "model.0.weight"
        assert "the batch" in finding.message


def test_what_is_added_from_state_that_lay_in_wait(tmp_path: Path) -> None:
    """The difference to other weights, added bit by bit, beside a training that hardly moves."""

    def make() -> tuple[Any, ...]:
        return *plain(), torch.optim.swa_utils.AveragedModel(net())

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, hidden: nn.Module) -> None:
        descend(batch, model, optimizer)
        with torch.no_grad():
            for p, h in zip(model.parameters(), [*hidden.buffers(), *hidden.parameters()][1:], strict=True):
                p.add_(h, alpha=0.25)

    train(tmp_path / "run", make, step, batches())
    transcript = Transcript.open(tmp_path / "run")
    transcript.notes = ChipNotes(("model.0.bias", "model.0.weight", "model.2.bias", "model.2.weight"))
    _, findings = check(transcript, lambda digest: Tape.decode(transcript.tape(digest)), ALLOWED)
    accused = [finding for finding in findings if finding.id == "tape.no_gradient"]
    assert accused
    assert accused[0].evidence["storages"] == 4
    assert "state that no step trains" in accused[0].message


def test_what_is_added_from_outside(tmp_path: Path) -> None:
    delta = torch.randn(16, 8)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        descend(batch, model, optimizer)
        with torch.no_grad():
            next(model.parameters()).sub_(delta)

    assert {f.found for f in found(tmp_path / "run", plain, step)} == {"model.0.weight"}


def test_a_random_walk(tmp_path: Path) -> None:
    def step(batch: dict[str, Tensor], model: nn.Module, _: torch.optim.Optimizer) -> None:
        loss_of(model, batch)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.1)

    findings = found(tmp_path / "run", plain, step)
    assert "random numbers" in findings[0].message
    assert findings[0].evidence["storages"] == 4


def test_nothing_is_said_where_weights_are_unknown(tmp_path: Path) -> None:
    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(batch["delta"])

    train(tmp_path / "run", plain, step, batches())
    transcript = Transcript.open(tmp_path / "run")
    _, findings = check(transcript, lambda digest: Tape.decode(transcript.tape(digest)), ALLOWED)
    assert transcript.notes is None
    assert "tape.no_gradient" not in {finding.id for finding in findings}
