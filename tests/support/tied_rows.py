"""A training whose products lie half way between two float32: each kind of machine rounds some of them otherwise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 64


def ties(seed: int = 2) -> dict[str, Tensor]:
    """Rows that add up to half way between two float32, with terms so large that float64 loses some of it in any order.

    Each row is 1, 3*2^-24, and 31 numbers of about 2^30 with their negatives, shuffled.
    """
    generator = torch.Generator().manual_seed(seed)
    large = (torch.randint(0, 1 << 20, (5, 31), generator=generator) / 2**20 + 1) * 2.0**29
    rows = torch.cat([torch.ones(5, 1), torch.full((5, 1), 3 * 2.0**-24), large, -large], 1)
    return {"x": torch.stack([row[torch.randperm(64, generator=generator)] for row in rows])}


def ones() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(SIZE, 3, bias=False)
    nn.init.ones_(model.weight)
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def square(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(batch["x"]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
