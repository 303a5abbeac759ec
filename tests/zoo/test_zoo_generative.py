"""Models that generate: variational autoencoders and a small adversarial pair."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, real

Tensor = torch.Tensor


class Autoencoder(nn.Module):
    """Encodes to a mean and a logarithm of variance, draws, decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 6), nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encode(x).chunk(2, -1)
        return self.decode(mean + torch.randn_like(mean) * torch.exp(0.5 * spread)), mean, spread


def test_a_variational_autoencoder(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Autoencoder()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        out, mean, spread = model(batch["x"])
        missed = F.binary_cross_entropy_with_logits(out, batch["x"].sigmoid(), reduction="sum")
        (missed - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())).backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, [{"x": real(8, 16, seed=i)} for i in range(3)])


def test_the_same_with_distributions(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(4, 6)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        mean, spread = model(batch["x"]).chunk(2, -1)
        posterior = D.Independent(D.Normal(mean, F.softplus(spread) + 1e-3), 1)
        drawn = posterior.rsample()
        prior = D.Normal(torch.zeros(3), torch.ones(3))
        loss = (
            D.kl_divergence(posterior.base_dist, prior).sum() - posterior.log_prob(drawn).sum() + drawn.square().sum()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, [{"x": real(8, 4, seed=i)} for i in range(3)])


def test_two_networks_with_an_optimizer_each(zoo: Zoo) -> None:
    def build() -> tuple[Any, ...]:
        maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
        critic = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 16)), nn.LeakyReLU(0.2))
        critic.append(nn.Linear(16, 1))
        rates = {"lr": 1e-3, "betas": (0.5, 0.999)}
        first, second = (torch.optim.Adam(m.parameters(), **rates) for m in (maker, critic))
        return maker, critic, first, second

    def step(
        batch: Batch, maker: nn.Module, critic: nn.Module, making: torch.optim.Optimizer, judging: torch.optim.Optimizer
    ) -> None:
        made, real_one = maker(torch.randn(8, 4)), torch.ones(8, 1)
        judging.zero_grad()
        F.binary_cross_entropy_with_logits(critic(batch["x"]), real_one).backward()
        F.binary_cross_entropy_with_logits(critic(made.detach()), 0 * real_one).backward()
        judging.step()
        making.zero_grad()
        F.binary_cross_entropy_with_logits(critic(made), real_one).backward()
        making.step()

    zoo.holds(build, step, [{"x": real(8, 2, seed=i)} for i in range(3)])
