"""Tensors that enter undeclared are named with their cause and line, and the advice, followed, makes that vanish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import DataLoader

import prover
from prover import Recorder
from prover.following.notes import UndeclaredInputWarning
from tests.prover.following.test_loops import data, graver, net
from weighbridge import replay
from weighbridge.transcript.reader import Transcript

MASK = np.linspace(0, 1, 16, dtype=np.float32)


def from_array(folder: Path) -> torch.Tensor:
    return torch.from_numpy(MASK)


def from_numbers(folder: Path) -> torch.Tensor:
    return torch.tensor(MASK.tolist())


def from_file(folder: Path) -> torch.Tensor:
    torch.save(torch.from_numpy(MASK), folder / "mask.pt")
    loaded: torch.Tensor = torch.load(folder / "mask.pt", weights_only=True)
    return loaded


def from_safetensors(folder: Path) -> torch.Tensor:
    safetensors.torch.save_file({"mask": torch.from_numpy(MASK)}, folder / "mask.safetensors")
    return safetensors.torch.load_file(folder / "mask.safetensors")["mask"]


MAKES: dict[str, tuple[Callable[[Path], torch.Tensor], str]] = {
    "array": (from_array, "array"),
    "numbers": (from_numbers, "number"),
    "file": (from_file, "file"),
    "safetensors": (from_safetensors, "file"),
}


def train(folder: Path, make: Callable[[Path], torch.Tensor], early: bool) -> prover.Following:
    """Trains with a mask that is made in every step, or is part of the model from the beginning."""
    with prover.follow(folder / "run", seed=1) as run:
        model: Any = net()
        if early:
            model.register_buffer("mask", make(folder))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data(), batch_size=8):
            mask = model.mask if early else make(folder)
            nn.functional.cross_entropy(model(x * mask), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


@pytest.mark.finding("tape.free_input")
@pytest.mark.parametrize("kind", MAKES)
def test_the_cause_is_named_and_the_advice_is_true(tmp_path: Path, kind: str) -> None:
    make, cause = MAKES[kind]
    (tmp_path / "late").mkdir()
    (tmp_path / "early").mkdir()
    with pytest.warns(UndeclaredInputWarning, match=r"entered step 1 undeclared at .*test_entering\.py"):
        run = train(tmp_path / "late", make, early=False)
    notes = [note for note in Transcript.open(run.path).entered if note.step]
    assert {note.cause for note in notes} == {cause}
    assert all(note.line.startswith("test_entering.py:") and "x * mask" in note.line for note in notes)
    assert "test_entering.py:" in notes[0].made
    found = [each for each in replay(run.path).findings if each.severity == "violation"]
    assert {each.id for each in found} == {"tape.free_input"}
    assert "f32 [16], used first by operation" in found[0].found
    assert "the Prover says" in found[0].found
    assert "x * mask" in found[0].found
    assert not [each for each in train(tmp_path / "early", make, early=True).undeclared if each.step]
    assert graver(tmp_path / "early" / "run") == []


def blocks(path: Path, declare: bool) -> None:
    """Trains with a loader's labels that are not passed to the step, or are."""
    with Recorder(path, seed=1) as recorder:
        with recorder.initialisation():
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for x, y in DataLoader(data(), batch_size=8):
            with recorder.step((x, y) if declare else x):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.finding("tape.free_input")
@pytest.mark.filterwarnings("error::prover.capture.sources.UndeclaredInputWarning")
def test_a_loaders_labels_that_are_not_passed_on_are_named(tmp_path: Path) -> None:
    with pytest.warns(UndeclaredInputWarning, match=r"a DataLoader gave it.*step\(\.\.\.\)"):
        blocks(tmp_path / "run", declare=False)
    assert "tape.free_input" in graver(tmp_path / "run")
    assert Transcript.open(tmp_path / "run").entered[0].cause == "loader"
    blocks(tmp_path / "mended", declare=True)
    assert graver(tmp_path / "mended") == []
