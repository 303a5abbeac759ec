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
from support.recognised_training import Batch, Tensor, built, classify, loss_of, rows
from torch import nn, optim

from weighbridge.transcript.training_claims import Claims


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
