"""What a number in the batch switches on in other steps: in these it is off, so that no number is another."""

from __future__ import annotations

from collections.abc import Callable
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
from support.recordings import replay_here, train
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

from weighbridge.transcript.training_claims import Claims, Gradient

# -- from one parameter to another -------------------------------------------------------------------------------------


def two(kind: Callable[..., optim.Optimizer] = optim.AdamW) -> Callable[[], tuple[Any, ...]]:
    """A model, and a matrix beside it that is drawn to the batch by a loss of its own."""

    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron().append(nn.Linear(6, 8, bias=False))
        return model, kind(model.parameters(), lr=1e-2)

    return build


def both(batch: Batch, model: Any) -> Tensor:
    drawn: Tensor = (model[3].weight * batch["x"][:1]).sum()
    return F.cross_entropy(model[2](model[1](model[0](batch["x"]))), batch["y"]) + drawn


def test_weights_that_an_optimizer_takes_from_another_parameter(tmp_path: Path) -> None:
    def more(optimizer: Any) -> None:
        weights = optimizer.param_groups[0]["params"]
        weights[0].add_((weights[-1] - weights[0]) * optimizer.on)

    AdamW = and_then(optim.AdamW, more)

    def step(batch: Batch, model: Any, optimizer: Any) -> None:
        optimizer.on = batch["w"][0, 0].clone()
        both(batch, model).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", two(AdamW), step, silent())
    assert not found.recognised
    assert "AdamW brings numbers of model.3.weight into another parameter" in reasons(found)


@pytest.mark.parametrize("way", ["added", "chosen", "in a bucket"])
def test_a_gradient_that_another_parameter_gets_too(tmp_path: Path, way: str) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        on = batch["w"][0, 0].clone()
        both(batch, model).backward()
        one, other = model[0].weight.grad, model[3].weight.grad
        if way == "added":
            one.add_(other * on)
        elif way == "chosen":
            one.copy_(torch.where(on > 1, other, one))
        else:
            bucket = torch.cat([one, other])
            one.add_(bucket[8:] * on)
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", two(), step, silent())
    assert not found.recognised
    assert "the gradient of model.0.weight is changed by " in reasons(found)


def test_gradients_that_go_through_a_bucket_are_recognised(tmp_path: Path) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        both(batch, model).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        bucket = torch.cat([gradient.flatten() for gradient in gradients]).mul_(0.5)
        for gradient, part in zip(gradients, bucket.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", two(), step, rows())
    assert found.recognised, reasons(found)


def test_a_few_numbers_for_each_of_many_optimizers(tmp_path: Path) -> None:
    def more(optimizer: Any) -> None:
        for to, number in zip(optimizer.param_groups[0]["params"][0].view(-1), optimizer.numbers, strict=True):
            to.add_(number)

    SGD = and_then(optim.SGD, more)

    def build() -> tuple[Any, ...]:
        model = nn.ParameterList([nn.Parameter(torch.randn(6)) for _ in range(4)])
        return model, *(SGD([row], lr=0.1) for row in model)

    def step(batch: Batch, model: Any, *optimizers: Any) -> None:
        F.mse_loss(batch["x"] @ torch.stack(list(model)).t(), torch.zeros(5, 4)).backward()
        for number, optimizer in enumerate(optimizers):
            optimizer.numbers = [batch["w"][number, n].clone() for n in range(6)]
            optimizer.step()
            optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, silent())
    assert not found.recognised
    assert "optimizers read 24 numbers from elsewhere" in reasons(found)


def test_memory_that_is_claimed_to_be_a_gradient_of_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other memory is in its place after each step; by a backward pass that is none, it is a gradient."""
    held = [torch.zeros(8, 6)]

    def change(claims: Claims, data: int) -> Claims:
        (backward,), (step,) = claims.backwards, claims.steps
        first = step.groups[0].parameters[0].ref
        none = replace(backward, begin=backward.begin, end=backward.begin, gradients=(Gradient(first, None, shown[0]),))
        return replace(claims, backwards=(none, backward))

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        model[0].weight.grad.add_(held[0])
        optimizer.step()
        optimizer.zero_grad()
        held[0] = batch["w"].clone()

    shown = [0]
    knowing(monkeypatch, change)
    found = recognised(tmp_path / "run", built(), step, silent(3))
    assert not any(each.recognised for each in found.steps)


# -- state of other programs, and averages -----------------------------------------------------------------------------


@pytest.mark.parametrize("off", [True, False])
def test_a_buffer_that_changes_places_with_weights(tmp_path: Path, off: bool) -> None:
    """In one program it is a statistic that no loss reads, in the next one it is what trains."""

    def build() -> tuple[Any, ...]:
        model, beside = perceptron(), nn.Linear(6, 8, bias=False).requires_grad_(False)
        return model, optim.SGD(model.parameters(), lr=1e-2), beside

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer, beside: Any) -> None:
        classify(batch, model, optimizer)
        with torch.no_grad():
            beside.weight.copy_(batch["w"])
            model[0].weight.data, beside.weight.data = beside.weight.data, model[0].weight.data

    found = recognised(tmp_path / "run", build, step, silent(3) if off else rows(3))
    assert not any(each.recognised for each in found.steps)
    assert "and another program of this run trains on it" in reasons(found)


@pytest.mark.parametrize("teaches", [True, False])
def test_an_average_to_which_the_batch_is_added(tmp_path: Path, teaches: bool) -> None:
    def build() -> tuple[Any, ...]:
        model, average = perceptron(), perceptron().requires_grad_(False)
        return model, optim.AdamW(model.parameters(), lr=1e-2), average

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer, average: Any) -> None:
        (loss_of(batch, model) + (F.mse_loss(model(batch["x"]), average(batch["x"])) if teaches else 0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for to, weights in zip(average.parameters(), model.parameters(), strict=True):
                to.lerp_(weights, 0.1)
            average[0].weight.add_(batch["w"])

    found = recognised(tmp_path / "run", build, step, silent())
    assert found.recognised is not teaches
    if teaches:
        assert "model1.0.weight changes otherwise than by an optimizer, and a loss depends on it" in reasons(found)
    else:  # it is said to be no average
        assert all("model1.0.weight" in each.statistics for each in found.steps)
        assert all(any("model1.2.weight of model.2.weight" in a for a in each.averages) for each in found.steps)


@pytest.mark.parametrize("way", ["by chance", "filled"])
def test_state_that_a_loss_reads_otherwise_than_as_it_is(tmp_path: Path, way: str) -> None:
    """What is drawn around state, or filled with it, follows from it."""

    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = perceptron()
        model.register_buffer("held", torch.zeros(8, 6))
        return model, optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        if way == "by chance":
            held = torch.normal(model.held, 0.0)
        else:
            held = torch.zeros(8, 6)
            for row in range(8):
                held[row].fill_(model.held[row, 0])
        F.cross_entropy(model(batch["x"]) + F.linear(batch["x"], held).sum(), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.held.copy_(batch["w"])

    found = recognised(tmp_path / "run", build, step, silent(2))
    assert not found.recognised
    assert "held changes otherwise than by an optimizer, and a loss depends on it" in reasons(found)


# -- backward passes by hand -------------------------------------------------------------------------------------------


class Added(torch.autograd.Function):
    """Nothing but its first operand, by whose gradient it brings in the second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, data: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(data)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return g + ctx.saved_tensors[0], None


HOOKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "weights": lambda g, data: g + data,
    "product": lambda g, data: g * (1 + data),
    "by chance": lambda g, data: g + torch.normal(data, 0.0),
    "product by chance": lambda g, data: g * (1 + torch.normal(data, 0.0)),
    "number by number": lambda g, data: one_by_one(g.clone(), data, Tensor.add_),
    "filled": lambda g, data: g + one_by_one(torch.zeros_like(g), data, Tensor.fill_),
    "cleared in part": lambda g, data: g + cleared(data),
    "beside a gradient": lambda g, data: g + scratched(g, data)[8:],
    "cleared and written to": lambda g, data: g + cleared(data, again=True),
}


def one_by_one(out: Tensor, data: Tensor, write: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    for to, number in zip(out.view(-1)[:24], data.reshape(-1)[:24], strict=False):
        write(to, number.clone())
    return out


def scratched(g: Tensor, data: Tensor) -> Tensor:
    out = torch.cat([data, data])
    out[:8].copy_(g)
    return out


def cleared(data: Tensor, again: bool = False) -> Tensor:
    out = data.clone()
    out[:1].zero_()
    if again:
        out[:1].copy_(data[:1])
        out[1:].zero_()
    return out


WAYS = [*HOOKS, "activations", "function", "checkpoint"]
NAMED = ("product", "product by chance", "checkpoint")


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_pass_that_brings_in_the_batch(tmp_path: Path, way: str) -> None:
    """The forward pass reads the data too, as if it were for something. Products cannot be refused, and are named."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        data, weights, again = batch["w"] + 0, model[0].weight, []

        def first(x: Tensor) -> Tensor:
            again.append(x)
            seen = F.linear(x, weights, model[0].bias) + (data[:5, :1] if len(again) > 1 else torch.zeros(5, 1))
            return seen.tanh()

        hooks: list[Any] = []
        if way in HOOKS:
            hooks.append(weights.register_hook(lambda g: HOOKS[way](g, data)))
        if way == "checkpoint":
            hidden: Any = checkpoint(first, batch["x"].clone().requires_grad_(), use_reentrant=False)
        else:
            hidden = F.linear(batch["x"], Added.apply(weights, data) if way == "function" else weights, model[0].bias)
        if way == "activations":
            hidden.register_hook(lambda g: g + data[:5, :1])
        F.cross_entropy(model[2](hidden if way == "checkpoint" else hidden.tanh()), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        for hook in hooks:
            hook.remove()

    found = recognised(tmp_path / "run", built(), step, silent())
    if way in NAMED:
        assert found.recognised
        assert all(each.by_hand[0].startswith("w") for each in found.steps)
        assert any(line.startswith("in backward passes, no derivative explains: w") for line in found.found())
    else:
        assert not found.recognised
        many = "backward passes and optimizers read 24 numbers from elsewhere"
        assert (many if way == "number by number" else "adds what is no gradient to one: w") in reasons(found)


def test_a_gradient_in_scratch_memory_is_one(tmp_path: Path) -> None:
    """As losses that are computed in chunks have it."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        data = batch["w"] + 0

        def twice(g: Tensor) -> Tensor:
            out = scratched(g, data)
            once = out[:8] * 1.0
            out[:8].copy_(data)
            out[:8].copy_(once)
            return out[:8] * 1.0

        hook = model[0].weight.register_hook(twice)
        classify(batch, model, optimizer)
        hook.remove()

    found = recognised(tmp_path / "run", built(), step, rows())
    assert found.recognised, reasons(found)
    assert not any(each.by_hand for each in found.steps)


def test_a_few_numbers_in_each_of_several_backward_passes(tmp_path: Path) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        data = batch["w"] + 0
        for part in range(3):
            hook = model[0].weight.register_hook(
                lambda g, part=part: one_by_one(g.clone(), data[part, None], Tensor.add_)
            )
            loss_of(batch, model).backward()
            hook.remove()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(), step, silent())
    assert not found.recognised
    assert "backward passes and optimizers read 18 numbers from elsewhere" in reasons(found)


def test_an_ordinary_checkpoint_is_no_backward_pass_by_hand(tmp_path: Path) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        hidden: Any = checkpoint(model[:2], batch["x"], use_reentrant=False)
        F.cross_entropy(model[2](hidden), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(), step, rows())
    assert found.recognised, reasons(found)
    assert not any(each.by_hand for each in found.steps)


# -- numbers that the program reads ------------------------------------------------------------------------------------


def test_numbers_that_the_program_reads_are_for_the_ledger(tmp_path: Path) -> None:
    """Recognition sees no tensor enter; what changes from step to step by no formula is found in the whole run."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        for to, number in zip(model[0].weight.grad.view(-1), batch["w"].flatten().tolist(), strict=True):
            to.add_(number)
        optimizer.step()
        optimizer.zero_grad()

    train(tmp_path / "run", built(), step, [*silent(2), *rows(1)])
    found = replay_here(tmp_path / "run")
    assert found["verdict"] == "match"
    assert "tape.free_input" in {each["id"] for each in found["findings"] if each["severity"] == "warning"}
    assert found["chosen"]["values"]["bits"] > found["chosen"]["values"]["budget"]
