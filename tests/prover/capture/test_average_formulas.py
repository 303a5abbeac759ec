"""Averages of weights whose decay grows are explained by a formula, unless they are not what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import prover
from prover.capture.average_formulas import readings
from tests.prover.following.test_loops import graver


def averaged(parameters: Any, **options: Any) -> Any:
    """Diffusers' average of weights. It is imported here, as that takes seconds."""
    training = pytest.importorskip("diffusers.training_utils", reason="of the extra `integrations`")
    return training.EMAModel(parameters, **options)


KINDS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "with a warm-up": {"use_ema_warmup": True, "inv_gamma": 2.0, "power": 0.75, "min_decay": 0.1},
    "later on": {"update_after_step": 2, "decay": 0.2},
}


def train(run: Path, change: Callable[[Any, int], None] = lambda _average, _step: None, **options: Any) -> None:
    """Trains for 24 steps, and lets something happen to the average before each update."""
    with prover.follow(run, seed=1):
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average = averaged(model.parameters(), **options)
        rows = torch.from_numpy(np.random.default_rng(0).standard_normal((96, 8), dtype=np.float32))
        for step, x in enumerate(DataLoader(rows, batch_size=4)):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            change(average, step)
            average.step(model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_an_average_leaves_no_value_undeclared(kind: str, tmp_path: Path) -> None:
    train(tmp_path / "run", **KINDS[kind])
    assert graver(tmp_path / "run") == []


def test_a_decay_that_is_changed_on_the_way_is_reported(tmp_path: Path) -> None:
    """Else whoever trains could write a number of 53 bits into the average at every step."""

    def choose(average: Any, step: int) -> None:
        average.decay = 0.3 + step / 97

    train(tmp_path / "run", choose)
    assert graver(tmp_path / "run") == ["tape.free_input"]


def test_an_average_that_counts_as_it_likes_is_reported(tmp_path: Path) -> None:
    counts = [(7 + 389 * step) % 1000 for step in range(24)]

    def choose(average: Any, step: int) -> None:
        average.optimization_step = counts[step]

    train(tmp_path / "run", choose)
    assert graver(tmp_path / "run") == ["tape.free_input"]


def test_an_average_with_other_arithmetic_is_not_read() -> None:
    """A class of one's own under the library's name, and an average of something else."""
    model = nn.Linear(7, 3)  # no other test's size: what is garbage there may still be found
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = averaged(model.parameters())
    assert [reading.text("count") for reading in readings([optimizer])]
    average.get_decay = lambda step: 0.5 + step / 1000
    assert not list(readings([optimizer]))
    del average.get_decay
    assert not list(readings([torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)]))
