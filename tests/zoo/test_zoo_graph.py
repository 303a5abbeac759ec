"""Graph networks: sums, means and maxima over the edges that arrive at a node."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, real, whole

Tensor = torch.Tensor


class Graph(nn.Module):
    """One layer for each of the ways in which people gather over edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        wide = target[:, None].expand(-1, 8)
        h = F.relu(self.first(x))
        total = torch.zeros_like(h).index_add_(0, target, h[source])
        degree = torch.zeros(h.shape[0]).scatter_add_(0, target, torch.ones(len(target))).clamp_min(1)
        h = F.relu(self.second(total / degree[:, None]))
        parts = [
            torch.zeros_like(h).scatter_add(0, wide, h[source]),
            torch.zeros_like(h).index_put((target,), h[source], accumulate=True),
            *(
                torch.zeros_like(h).scatter_reduce(0, wide, h[source], reduce, include_self=False)
                for reduce in ("sum", "mean", "amax", "amin")
            ),
        ]
        return self.last(torch.stack(parts).sum(0))


def test_a_graph_network(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Graph()
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        F.cross_entropy(model(batch["x"], batch["edges"]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    batches = [
        {"x": real(10, 5, seed=i), "edges": whole(10, 2, 30, seed=i), "y": whole(2, 10, seed=i)} for i in range(3)
    ]
    zoo.holds(build, step, batches, every=1)
    zoo.trains_as_without(build, step, batches)


def test_two_halves_of_a_batch_write_to_the_same_places(zoo: Zoo) -> None:
    """Large enough for two threads to take a half each: without a rule for who wins, they race."""
    half = 20_000

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(2, 4)
        return model, torch.optim.SGD(model.parameters(), lr=1e-2)

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        h, to = model(batch["x"][0]), batch["to"][0]
        places = torch.zeros(half, 4)
        places[to] = h
        total = torch.zeros(half, 4).index_add(0, to, h)
        (places.square().mean() + total.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    to = torch.arange(half).repeat(2)[None]
    zoo.holds(build, step, [{"x": real(1, 2 * half, 2, seed=i), "to": to} for i in range(2)])
