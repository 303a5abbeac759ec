"""Reinforcement learning: PPO on a toy world that lives inside the step."""

from __future__ import annotations

import math

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, real

Tensor = torch.Tensor
HORIZON = 6


class Agent(nn.Module):
    """Policy over three actions, and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = nn.Linear(4, 16), nn.Linear(16, 3), nn.Linear(16, 1)
        for layer, gain in ((self.body, math.sqrt(2)), (self.policy, 0.01), (self.value, 1.0)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> tuple[D.Categorical, Tensor]:
        h = torch.tanh(self.body(x))
        return D.Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


@torch.no_grad()
def play(agent: Agent, x: Tensor) -> tuple[Tensor, ...]:
    """Plays in a world that punishes distance from the origin; returns what an update needs."""
    seen, actions, odds, rewards, values = [], [], [], [], []
    for _ in range(HORIZON):
        policy, value = agent(x)
        action = policy.sample()
        for kept, new in zip((seen, actions, odds, values), (x, action, policy.log_prob(action), value), strict=True):
            kept.append(new)
        x = torch.tanh(x + (action.float() - 1)[:, None] * 0.3)
        rewards.append(-x.abs().mean(-1))
    following, running, advantages = agent(x)[1], torch.zeros(x.shape[0]), []
    for t in reversed(range(HORIZON)):
        running = rewards[t] + 0.99 * following - values[t] + 0.99 * 0.95 * running
        following = values[t]
        advantages.insert(0, running)
    gained = torch.cat(advantages)
    return torch.cat(seen), torch.cat(actions), torch.cat(odds), gained, gained + torch.cat(values)


def test_ppo(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        agent = Agent()
        return agent, torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)

    def step(batch: Batch, agent: Agent, optimizer: torch.optim.Optimizer) -> None:
        seen, actions, odds, gained, returns = play(agent, batch["x"])
        for chosen in torch.randperm(len(seen)).split(12):
            policy, value = agent(seen[chosen])
            ratio = (policy.log_prob(actions[chosen]) - odds[chosen]).exp()
            gain = gained[chosen]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            surrogate = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
            optimizer.zero_grad()
            (surrogate + 0.5 * F.mse_loss(value, returns[chosen]) - 0.01 * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()

    zoo.holds(build, step, [{"x": real(4, 4, seed=i)} for i in range(3)])
