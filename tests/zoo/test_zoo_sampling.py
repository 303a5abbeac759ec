"""Randomness inside steps: dropout of all kinds, distributions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from support.recordings import train
from zoo.machines import Zoo
from zoo.material import Batch, descend, rows, with_sgd

from weighbridge.core.errors import RefusedOperationError

Tensor = torch.Tensor

DROPOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda h: F.dropout(h, 0.3),
    lambda h: F.dropout(h, 1.0),
    lambda h: F.dropout(h, 0.3, training=False),
    lambda h: F.dropout(h + 1, 0.3, inplace=True),
    lambda h: F.dropout1d(h[:, :, None].repeat(1, 1, 2), 0.3),
    lambda h: F.dropout2d(h[:, :, None, None].repeat(1, 1, 2, 2), 0.3),
    lambda h: F.alpha_dropout(h, 0.3, training=True),
    lambda h: F.feature_alpha_dropout(h[:, :, None], 0.3, training=True),
    lambda h: F.rrelu(h, training=True),
    lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None], dropout_p=0.2),
]

DRAWS: list[Callable[[Tensor], Tensor]] = [
    lambda h: D.Normal(h, 1.0).rsample(),
    lambda h: D.LogNormal(h, 1.0).rsample(),
    lambda h: D.Uniform(h, h + 1).rsample(),
    lambda h: D.Laplace(h, 1.0).rsample(),
    lambda h: D.Gumbel(h, 1.0).rsample(),
    lambda h: D.Cauchy(h, 1.0).rsample().clamp(-9, 9),
    lambda h: D.Exponential(h.exp()).rsample(),
    lambda h: D.MultivariateNormal(h, torch.eye(3) + 0.1).rsample(),
    lambda h: D.TransformedDistribution(D.Normal(h, 1.0), [D.TanhTransform()]).rsample(),
    lambda h: D.RelaxedOneHotCategorical(torch.tensor(0.5), logits=h).rsample(),
    lambda h: D.OneHotCategoricalStraightThrough(logits=h).rsample(),
    lambda h: F.gumbel_softmax(h, hard=True),
    lambda h: D.Bernoulli(logits=h).sample(),
    lambda h: D.Geometric(logits=h).sample(),
    lambda h: D.Categorical(logits=h).sample((2,)).float(),
    lambda h: torch.multinomial(h.detach().exp(), 2).float(),
    lambda h: torch.multinomial(h.detach().exp()[0], 7, replacement=True).float(),
    lambda h: torch.empty_like(h).log_normal_(0, 0.1) + torch.empty_like(h).geometric_(0.5),
    lambda h: D.Normal(h, h.exp()).sample() * h,
    lambda h: torch.normal(h.detach(), 1.0) * torch.normal(0.5, h.detach().abs()) * torch.normal(0.0, 1.0, h.shape),
    lambda h: torch.rand(5, 3, out=torch.empty(5, 3)) * torch.normal(h.detach(), 0.1, out=torch.empty(5, 3)) * h,
    lambda h: h[torch.randperm(5, out=torch.empty(5, dtype=torch.int64))] * torch.randint_like(h, -2, 3),
    lambda h: h * torch.empty_like(h).uniform_(-1, 1) * torch.empty_like(h).random_(0, 5) * torch.rand_like(h),
    lambda h: h * torch.bernoulli(h.detach().sigmoid()) + h * torch.empty_like(h).bernoulli_(h.detach().sigmoid()),
]


@pytest.mark.parametrize("draws", [DROPOUTS, DRAWS], ids=["dropouts", "distributions"])
def test_draws(zoo: Zoo, draws: list[Callable[[Tensor], Tensor]]) -> None:
    def loss(h: Tensor, batch: Batch) -> Tensor:
        return torch.stack([draw(h).square().mean() for draw in draws]).sum() + F.cross_entropy(h, batch["y"])

    zoo.holds(with_sgd, descend(loss), rows(2))


def test_generators_seeded_anew_within_a_step(zoo: Zoo) -> None:
    """By any seeds, as Reformer does for each of its layers: counters go forth and back by as much as they like."""

    def loss(h: Tensor, batch: Batch) -> Tensor:
        parts = []
        for seed in (1, (1 << 62) + 5, (1 << 64) - 1, 1 << 63, 2):
            torch.manual_seed(seed)
            parts.append(F.dropout(h, 0.3).square().mean())
        return torch.stack(parts).sum() + F.cross_entropy(h, batch["y"])

    zoo.holds(with_sgd, descend(loss), rows(2))


@pytest.mark.parametrize(
    ("draw", "advice"),
    [
        (lambda h: D.Gamma(h.exp(), 1.0).rsample(), "sample outside the step"),
        (lambda h: D.Dirichlet(h.exp()).rsample(), "sample outside the step"),
        (lambda h: D.Poisson(h.exp()).sample(), "sample outside the step"),
        (lambda h: torch.binomial(torch.full_like(h, 3.0), h.sigmoid()), r"torch.rand\(n, ...\)"),
    ],
    ids=["gamma", "dirichlet", "poisson", "binomial"],
)
def test_samplers_that_reject_are_refused(tmp_path: Path, draw: Callable[[Tensor], Tensor], advice: str) -> None:
    step = descend(lambda h, batch: draw(h).sum())
    with pytest.raises(RefusedOperationError, match=advice):
        train(tmp_path / "run", with_sgd, step, rows(1))
