"""Weights that live in files, and come back as the run's own: they are trained state like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.recordings import replay_here
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prover
from weighbridge.transcript.reader import Transcript


class Model(nn.Module):
    """What an optimizer trains, and weights that it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.decoy = nn.Linear(16, 4)
        self.register_buffer("weight", torch.randn(8, 16))
        self.register_buffer("other", torch.randn(8, 16))


def recorded(path: Path, *, detour: bool, replaced: bool) -> list[str]:
    """Trains by way of a file: no step reads the weights that the step before wrote, but what was saved of them.

    Args:
        path: Where to.
        detour: Whether each step writes the buffer that the step before did not.
        replaced: Whether the weights begin with noise of the first step, and a batch takes their place at the end.

    Returns:
        What the replay finds above info.
    """
    saved = path.with_suffix(".pt")
    rows = torch.randn(64, 16, generator=torch.Generator().manual_seed(3))
    with prover.follow(path, seed=1) as run:
        model = Model()
        optimizer = torch.optim.SGD(model.decoy.parameters(), lr=0.01)
        names, number = ["weight", "other" if detour else "weight"], 0
        for (x,) in DataLoader(TensorDataset(rows), batch_size=8):
            first = torch.randn(8, 16) if replaced else model.weight.clone()
            weight = (torch.load(saved, weights_only=True)[names[0]] if number else first).requires_grad_()
            optimizer.zero_grad()
            ((x @ weight.t()).square().mean() + model.decoy(x).square().mean()).backward()
            optimizer.step()
            names.reverse()
            with torch.no_grad():
                buffer = getattr(model, names[0])
                buffer.copy_(weight - 0.1 * weight.grad)
                number += 1
                if replaced and number == 7:
                    buffer.copy_(x)
            torch.save(model.state_dict(), saved)
    assert not run.undeclared
    assert len(Transcript.open(path).returned.tensors) == 7
    result = replay_here(path)
    assert result["verdict"] == "match"
    return [finding["id"] for finding in result["findings"] if finding["severity"] != "info"]


@pytest.mark.finding("tape.overwrite")
@pytest.mark.parametrize("detour", [False, True])
def test_weights_that_come_back_from_files_are_trained_state(tmp_path: Path, detour: bool) -> None:
    assert "tape.overwrite" in recorded(tmp_path / "run", detour=detour, replaced=True)


def test_a_program_that_trains_by_way_of_files_passes(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", detour=False, replaced=False) == []
