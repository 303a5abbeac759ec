"""A model with batch norms may be tried on a batch before it trains; by no other way does that batch get anywhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import prover
from weighbridge.execution.replay import replay
from weighbridge.program.idle_inputs import idle_leftovers
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


class Net(nn.Module):
    """A net with a batch norm, and buffers that only an attacker uses."""

    running: Tensor
    spread: Tensor
    aside: Tensor
    around: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 6))
        self.register_buffer("running", torch.zeros(6))
        self.register_buffer("spread", torch.ones(6))
        self.register_buffer("aside", torch.zeros(32))
        self.register_buffer("around", torch.ones(32))

    @property
    def norm(self) -> nn.BatchNorm1d:
        found = self.body[1]
        assert isinstance(found, nn.BatchNorm1d)
        return found

    @property
    def mean(self) -> Tensor:
        assert self.norm.running_mean is not None
        return self.norm.running_mean

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x)
        return found


Way = Callable[[Net, Tensor], object]


def tries(model: Net, batch: Tensor) -> None:
    assert model(batch).shape == batch.shape


def tries_quietly(model: Net, batch: Tensor) -> None:
    model.eval()
    tries(model, batch)
    model.train()


def nothing(_: Net, __: Tensor) -> None:
    pass


def record(path: Path, begin: Way, later: Way = nothing) -> Path:
    """Trains a net whose initialisation was fed a batch; `later` is done in the third step."""
    rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(5))
    with prover.follow(path, seed=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what an attacker brings in is undeclared
        model = Net()
        (batch,) = next(iter(DataLoader(TensorDataset(rows), batch_size=16)))
        begin(model, batch)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step, (x,) in enumerate(DataLoader(TensorDataset(rows), batch_size=16), 1):
            model(x).square().mean().backward()
            if step == 3:
                with torch.no_grad():
                    later(model, x)
            optimizer.step()
            optimizer.zero_grad()
    return path


def severities(path: Path) -> list[str]:
    found = replay(path).findings
    return [each.severity for each in found if each.id == "transcript.chosen_bits"]


def validates(model: Net, x: Tensor) -> None:
    tries_quietly(model, x)


@pytest.mark.parametrize("later", [nothing, validates])
@pytest.mark.parametrize("begin", [tries, tries_quietly])
def test_a_model_that_was_tried_is_made_of_nothing(tmp_path: Path, begin: Way, later: Way) -> None:
    transcript = Transcript.open(record(tmp_path / "run", begin, later))
    assert severities(transcript.path) == []
    tapes = cache(lambda digest: Tape.decode(transcript.tape(digest)))
    left = any("running_mean" in name for name in idle_leftovers(transcript, tapes))
    assert left == (begin is tries), "a parent vouches for no weights that begin from them"


def by_copy(model: Net, batch: Tensor) -> None:
    with torch.no_grad():
        model.body[3].weight.view(-1)[: batch.numel()].copy_(batch.view(-1))  # type: ignore[operator]


def into_the_statistics(model: Net, batch: Tensor) -> None:
    tries(model, batch)
    model.mean.copy_(batch.view(-1)[:32])


def by_a_number(model: Net, batch: Tensor) -> None:
    model.mean[3].fill_(batch.sum().item())
    tries(model, batch)


def through_a_norm_that_no_step_has(model: Net, batch: Tensor) -> None:
    """Momentum 1: the buffer is the batch's mean, and stays it."""
    F.batch_norm(batch, model.running, model.spread, training=True, momentum=1.0)


def into_a_weight(model: Net, batch: Tensor) -> None:
    """A bias that a batch norm takes for its statistics."""
    F.batch_norm(batch, model.body[3].bias.detach(), model.spread, training=True, momentum=1.0)  # type: ignore[operator]


def through_the_statistics(model: Net, batch: Tensor) -> None:
    tries(model, batch)
    with torch.no_grad():
        model.body[0].bias.copy_(model.mean)  # type: ignore[operator]


def reads_the_statistics(model: Net, _: Tensor) -> None:
    model.body[0].bias.add_(model.mean)  # type: ignore[operator]


def reads_one_on_the_host(model: Net, _: Tensor) -> None:
    model.body[0].bias.add_(model.mean[0].item())  # type: ignore[operator]


def copies_the_statistics(model: Net, _: Tensor) -> None:
    model.running.copy_(model.mean[:6])


def takes_the_bias_for_statistics(model: Net, x: Tensor) -> None:
    into_a_weight(model, x)


@pytest.mark.parametrize(
    ("begin", "later"),
    [
        (by_copy, nothing), (into_the_statistics, nothing), (by_a_number, nothing),
        (through_a_norm_that_no_step_has, nothing), (into_a_weight, nothing), (through_the_statistics, nothing),
        (into_a_weight, takes_the_bias_for_statistics), (tries, reads_the_statistics), (tries, reads_one_on_the_host),
        (tries, copies_the_statistics),
    ],
)  # fmt: skip
def test_a_batch_that_goes_any_further_accuses(tmp_path: Path, begin: Way, later: Way) -> None:
    assert severities(record(tmp_path / "run", begin, later)) == ["violation"]


def feeds(model: Net, batch: Tensor) -> None:
    F.batch_norm(batch.view(-1)[:64].view(2, 32), model.aside, model.around, training=True, momentum=1.0)


def takes_in(model: Net, _: Tensor) -> None:
    """A norm of zeros, not in training mode, gives what it has for the mean."""
    model.body[0].bias.sub_(F.batch_norm(torch.zeros(2, 32), model.aside, model.around)[0])  # type: ignore[operator]


def takes_in_and_feeds(model: Net, x: Tensor) -> None:
    takes_in(model, x)
    feeds(model, x)


def feeds_and_takes_in(model: Net, x: Tensor) -> None:
    feeds(model, x)
    takes_in(model, x)


@pytest.mark.finding("tape.no_gradient")
@pytest.mark.parametrize(
    ("begin", "later", "said"),
    [
        (nothing, takes_in_and_feeds, []),
        (nothing, feeds_and_takes_in, ["warning"]),
        (feeds, takes_in_and_feeds, ["warning"]),
    ],
)
def test_what_was_fed_before_the_first_step_is_a_batch_like_any(
    tmp_path: Path, begin: Way, later: Way, said: list[str]
) -> None:
    """Weights are changed by statistics: those of the initialisation's batch count for what a step's would."""
    found = replay(record(tmp_path / "run", begin, later)).findings
    assert [each.severity for each in found if each.id == "tape.no_gradient"] == said


def brings_a_tensor(model: Net, _: Tensor) -> None:
    model.running.copy_(torch.tensor([1.0, 2, 3, 4, 5, 6]))


@pytest.mark.finding("tape.free_input")
@pytest.mark.parametrize(("begin", "said"), [(nothing, "single numbers"), (brings_a_tensor, "ask where")])
def test_counters_of_modules_are_called_what_they_are(tmp_path: Path, begin: Way, said: str) -> None:
    """A batch norm counts its batches in a tensor that Python makes of a number."""
    found = [each for each in replay(record(tmp_path / "run", begin)).findings if each.id == "tape.free_input"]
    assert [each.severity for each in found] == ["info"]
    assert said in found[0].message
