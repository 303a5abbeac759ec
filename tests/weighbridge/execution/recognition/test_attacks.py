"""What is no training, or another one than claimed, is not recognised; the reason names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.recognised import claiming, reasons, recognised
from torch import nn, optim

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


def test_weights_that_are_written_without_an_optimizer(tmp_path: Path) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        classify(batch, model, optimizer)
        with torch.no_grad():
            model[0].weight.mul_(0).add_(batch["w"])

    found = recognised(tmp_path / "run", built(), step, rows())
    assert not found.recognised
    assert "model.0.weight is changed beside its optimizer's step" in reasons(found)


def test_nothing_but_an_addition(tmp_path: Path) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        with torch.no_grad():
            model[0].weight.add_(batch["w"])

    found = recognised(tmp_path / "run", built(), step, rows())
    assert not found.recognised
    assert "nothing is claimed" in reasons(found)


@pytest.mark.finding("recognition.underivable")
def test_a_gradient_made_by_hand(tmp_path: Path) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        model[0].weight.grad = model[0].weight.detach() - batch["w"]
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(optim.SGD, lr=1.0), step, rows())
    assert not found.recognised
    assert "a gradient that no backward pass of the step gave it" in reasons(found)


def test_memory_that_takes_the_place_of_weights(tmp_path: Path) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        classify(batch, model, optimizer)
        model[0].weight.data = batch["w"] * 2

    found = recognised(tmp_path / "run", built(optim.SGD), step, rows())
    assert not found.recognised
    assert "takes the place of model.0.weight" in reasons(found)


def test_a_loss_that_draws_weights_to_data_is_recognised_and_exposed(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, optim.Optimizer]:
        model = nn.Linear(6, 8, bias=False)
        return model, optim.SGD(model.parameters(), lr=24.0)

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        F.mse_loss(model.weight, batch["w"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", build, step, rows())
    assert found.recognised
    assert all(loss.direct == ("model.weight",) for s in found.steps for loss in s.losses)
    assert all(s.float_bits >= s.weight_bits for s in found.steps)
    said = "\n".join(found.lines())
    assert "weights that meet the batch element by element: model.weight" in said
    assert "its data are not judged" in said


@pytest.mark.parametrize("form", ["difference", "product", "inner product"])
def test_other_ways_of_drawing_weights_to_data_are_exposed(tmp_path: Path, form: str) -> None:
    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        w, b = model[0].weight, batch["w"]
        if form == "difference":
            loss = (w - 3 * b).square().sum()
        elif form == "product":
            loss = -(w * b).sum()
        else:
            loss = -(w.reshape(1, -1) @ b.reshape(-1, 1)).sum()
        (loss + loss_of(batch, model)).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recognised(tmp_path / "run", built(optim.SGD), step, rows())
    assert all(loss.direct == ("model.0.weight",) for s in found.steps for loss in s.losses)


# -- false claims ------------------------------------------------------------------------------------------------------


def test_another_loss_than_the_claimed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program trains on a distance to data, and claims that it was the cross entropy, which it computes too."""
    refs: list[int] = []

    def change(claims: Claims) -> Claims:
        first, second = claims.backwards
        refs.append(first.losses[0])
        false = replace(second, losses=first.losses, seeds=first.seeds)
        return replace(claims, backwards=(first, false))

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        loss_of(batch, model).backward()
        optimizer.zero_grad()
        (loss_of(batch, model) + (model[0].weight - batch["w"]).square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    claiming(monkeypatch, change)
    found = recognised(tmp_path / "run", built(), step, rows(1))
    assert refs
    assert not found.recognised
    assert "the gradient of model.0.weight is not that of cross entropy" in reasons(found)


def detaching(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
    h = model[0](batch["x"])
    F.cross_entropy(model[2](h.relu() - h.detach().tanh()), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_stop_that_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claiming(monkeypatch, lambda claims: replace(claims, stops=()))
    found = recognised(tmp_path / "run", built(), detaching, rows(1))
    assert not found.recognised
    assert "the gradient of model.0.weight is not that of" in reasons(found)


def test_a_stop_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claiming(monkeypatch, lambda claims: replace(claims, stops=tuple((op, 0) for op in range(6))))
    found = recognised(tmp_path / "run", built(), classify, rows(1))
    assert not found.recognised
    assert "is not that of" in reasons(found)


def test_a_list_of_parameters_that_omits_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(claims: Claims) -> Claims:
        (backward,), (step,) = claims.backwards, claims.steps
        (group,) = step.groups
        fewer = replace(group, parameters=group.parameters[1:])
        gradients = tuple(g for g in backward.gradients if g.leaf != group.parameters[0].ref)
        return replace(
            claims,
            backwards=(replace(backward, gradients=gradients),),
            steps=(replace(step, groups=(fewer,)),),
        )

    claiming(monkeypatch, change)
    found = recognised(tmp_path / "run", built(), classify, rows(1))
    assert not found.recognised
    assert "an optimizer's step changes model.0.weight, which is none of its parameters" in reasons(found)


@pytest.mark.finding("recognition.none")
def test_claims_of_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claiming(monkeypatch, lambda claims: replace(claims, backwards=(replace(claims.backwards[0], losses=(99999,)),)))
    found = recognised(tmp_path / "run", built(), classify, rows(1))
    assert "names operations or tensors that it does not have" in reasons(found)


def test_claims_that_fit_nothing_end_no_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reference that is claimed is replaced by every other one in turn."""

    def shuffled(by: int) -> Callable[[Claims], Claims]:
        def change(claims: Claims) -> Claims:
            (backward,), (step,) = claims.backwards, claims.steps
            moved = tuple(replace(g, leaf=(g.leaf + by) % 20, after=(g.after + by) % 20) for g in backward.gradients)
            groups = tuple(
                replace(g, parameters=tuple(replace(p, ref=(p.ref + by) % 20) for p in g.parameters))
                for g in step.groups
            )
            return replace(
                claims, backwards=(replace(backward, gradients=moved),), steps=(replace(step, groups=groups),)
            )

        return change

    for by in range(1, 6):
        with monkeypatch.context() as patched:
            claiming(patched, shuffled(by))
            found = recognised(tmp_path / str(by), built(), classify, rows(1))
        assert not found.recognised


# -- below the noise ---------------------------------------------------------------------------------------------------


class Speaker(nn.Module):
    """Attention over embedded words; the gradient of its keys' bias is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.q, self.k = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.v, self.head = nn.Linear(8, 8), nn.Linear(8, 30)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        mixed: Tensor = self.head(F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h)))
        return mixed


def speak(change: Callable[[Speaker], None] | None) -> Callable[..., None]:
    def step(batch: Batch, model: Speaker, optimizer: optim.Optimizer) -> None:
        if change is not None:
            change(model)
        F.cross_entropy(model(batch["x"][:, :-1]).flatten(0, 1), batch["x"][:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def speaking() -> tuple[nn.Module, optim.Optimizer]:
    model = Speaker()
    return model, optim.AdamW(model.parameters(), lr=1e-2)


WORDS = [{"x": torch.randint(0, 20, (4, 9), generator=torch.Generator().manual_seed(0))}]


def test_an_attention_is_recognised(tmp_path: Path) -> None:
    found = recognised(tmp_path / "run", speaking, speak(None), WORDS)
    assert found.recognised, reasons(found)


def once(tensor: Callable[[Speaker], Tensor], change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Speaker], None]:
    """Hooks a change of one gradient, made from the weights themselves, which the backward pass may read."""

    def hook(model: Speaker) -> None:
        weights = tensor(model)
        handle = weights.register_hook(lambda g: (handle.remove(), change(g, weights.detach()))[1])

    return hook


def test_an_update_in_the_unused_rows_of_an_embedding(tmp_path: Path) -> None:
    """The words 20 to 29 never occur, so their rows have no gradient; Adam would make steps of anything."""

    def add(g: Tensor, w: Tensor) -> Tensor:
        return torch.cat([g[:20], 1e-30 * w[20:]])

    found = recognised(tmp_path / "run", speaking, speak(once(lambda m: m.words.weight, add)), WORDS)
    assert not found.recognised
    assert "the gradient of model.words.weight is not that of cross entropy: 80 of 240 elements" in reasons(found)


def test_an_update_where_the_gradient_is_next_to_nothing(tmp_path: Path) -> None:
    """What Adam makes a whole step of is a hundred-thousandth of other gradients here."""
    found = recognised(tmp_path / "run", speaking, speak(once(lambda m: m.k.bias, lambda g, w: g + 1e-5 * w)), WORDS)
    assert not found.recognised
    assert "the gradient of model.k.bias is not that of cross entropy" in reasons(found)


def test_the_batch_in_the_backward_pass(tmp_path: Path) -> None:
    """So small a part of a tensor that the forward pass does not read is below the noise; that it is read is not."""

    def step(batch: Batch, model: Any, optimizer: optim.Optimizer) -> None:
        handle = model[0].weight.register_hook(lambda g: g + 1e-12 * batch["w"])
        classify(batch, model, optimizer)
        handle.remove()

    found = recognised(tmp_path / "run", built(), step, rows(1))
    assert not found.recognised
    assert "the backward pass reads w, which the forward pass did not" in reasons(found)


# -- optimizers --------------------------------------------------------------------------------------------------------


def almost(extra: Callable[[Tensor], Tensor]) -> type[optim.Optimizer]:
    """AdamW by its name, with a term beside it."""

    class AdamW(optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p.add_(extra(p))

    return AdamW


@pytest.mark.parametrize("size", [1e-3, 1e-5])
def test_an_optimizer_that_is_almost_one(tmp_path: Path, size: float) -> None:
    """A thousandth of the rate beside the update is enough to be noticed."""
    found = recognised(tmp_path / "run", built(almost(lambda p: size * p.sign())), classify, rows(1))
    assert not found.recognised
    assert "is not what AdamW makes of its gradient" in reasons(found)


def test_an_optimizer_that_writes_to_other_state(tmp_path: Path) -> None:
    class SGD(optim.SGD):
        other: Tensor

        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            with torch.no_grad():
                self.other.add_(1)

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

    class SGD(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            with torch.no_grad():
                whole.add_(1)

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
