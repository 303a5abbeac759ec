"""Initialisation is recorded too: every function of torch.nn.init."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from zoo.machines import Zoo
from zoo.material import classify, perceptron, rows

from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint

init = nn.init
FILLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "constant": lambda w: init.constant_(w, 0.3),
    "eye": init.eye_,
    "kaiming-normal": lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
    "kaiming-uniform": lambda w: init.kaiming_uniform_(w, a=math.sqrt(5)),
    "normal": lambda w: init.normal_(w, 0.1, 0.02),
    "ones": init.ones_,
    "orthogonal": lambda w: init.orthogonal_(w, 1.4),
    "sparse": lambda w: init.sparse_(w, 0.5),
    "truncated-normal": lambda w: init.trunc_normal_(w, std=0.02, a=-0.04, b=0.04),
    "uniform": lambda w: init.uniform_(w, -0.2, 0.2),
    "xavier-normal": init.xavier_normal_,
    "xavier-uniform": init.xavier_uniform_,
    "zeros": init.zeros_,
}


def weights(checkpoint: Checkpoint) -> list[torch.Tensor]:
    """The matrices of a perceptron in its first checkpoint."""
    return [
        checkpoint.storages[name].view(torch.float32).view(shape)
        for name, shape in (("model.0.weight", (8, 6)), ("model.2.weight", (3, 8)))
    ]


@pytest.mark.parametrize("name", sorted(FILLS))
def test_a_way_to_initialise(zoo: Zoo, name: str) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = perceptron()
        for p in model.parameters():
            if p.dim() == 2:
                FILLS[name](p)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    zoo.holds(build, classify, rows(1))
    if name == "orthogonal":
        wide, flat = (w / 1.4 for w in weights(Transcript.open(zoo.path).checkpoint(1)))
        assert torch.allclose(wide.T @ wide, torch.eye(6), atol=1e-5)
        assert torch.allclose(flat @ flat.T, torch.eye(3), atol=1e-5)


def test_convolutions_that_pass_their_input_on(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(
            nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3)
        )
        init.dirac_(model[1].weight, groups=2)  # type: ignore[arg-type]
        init.orthogonal_(model[0].weight)  # type: ignore[arg-type]
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    zoo.holds(build, classify, [{"x": b["x"][:, None], "y": b["y"]} for b in rows(2)])
