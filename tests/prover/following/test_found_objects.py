"""A process in which cells are run again and again: what earlier ones left is the program's only if it is used."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import prover
from prover.following.notes import UndeclaredInputWarning
from tests.prover.following.test_loops import data, graver, net, train
from weighbridge.core.errors import UsageError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


def trained_before() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model with running statistics that was trained plainly."""
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, DataLoader(data(), batch_size=8), optimizer)
    return model, optimizer


def survivors(path: Path) -> set[str]:
    transcript = Transcript.open(path)
    return {name for _, name in Tape.decode(transcript.tape(next(iter(transcript.records())).tape)).survivors}


@pytest.mark.parametrize("frozen", [False, True])
def test_what_was_trained_plainly_before_is_not_the_programs(tmp_path: Path, frozen: bool) -> None:
    """Also where the program freezes objects itself, so that the recording does not."""
    gc.unfreeze()  # what the suite froze
    if frozen:
        gc.freeze()
    try:
        before = trained_before()
        with prover.follow(tmp_path / "run", seed=1):
            model = net()
            train(model, DataLoader(data(), batch_size=8), torch.optim.SGD(model.parameters(), lr=0.1))
    finally:
        gc.freeze()
    assert before
    assert survivors(tmp_path / "run") == {f"model.{name}" for name in model.state_dict()}


def test_an_older_model_with_a_new_optimizer_is_found(tmp_path: Path) -> None:
    """Its statistics are state too, and its evaluations are no part of the training."""
    model, _ = trained_before()
    with prover.follow(tmp_path / "run", seed=1) as run:
        train(model, DataLoader(data(), batch_size=8), torch.optim.SGD(model.parameters(), lr=0.1))
    assert not run.undeclared
    assert graver(tmp_path / "run") == []
    assert survivors(tmp_path / "run") == {f"model.{name}" for name in model.state_dict()}


def averaged(path: Path, copies: bool, change: float = 0.0) -> tuple[prover.Following, list[str]]:
    """Trains an older model beside its average, which is made under `follow` or was before."""
    model, _ = trained_before()
    before = copy.deepcopy(model)
    with prover.follow(path, seed=1) as run:
        average = copy.deepcopy(model) if copies else before
        with torch.no_grad():
            average[0].weight.data[0, 0] += change  # type: ignore[operator]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data(), batch_size=8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, each in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(each, 0.1)
    return run, graver(path)


@pytest.mark.parametrize("copies", [False, True])
def test_an_average_of_an_older_model_is_state(tmp_path: Path, copies: bool) -> None:
    run, found = averaged(tmp_path / "run", copies)
    assert not run.undeclared
    assert found == []


@pytest.mark.finding("tape.free_input")
def test_other_weights_than_the_older_models_enter_as_what_was_there_before(tmp_path: Path) -> None:
    with pytest.warns(
        UndeclaredInputWarning, match="it was there before the recording began.*call follow\\(\\) before"
    ):
        run, found = averaged(tmp_path / "run", True, 1e-3)
    assert "tape.free_input" in found
    assert {(each.step, each.source) for each in run.undeclared} == {(1, "before")}


def test_an_older_optimizer_is_refused_by_its_name(tmp_path: Path) -> None:
    model, optimizer = trained_before()
    run = prover.follow(tmp_path / "run", seed=1)
    with pytest.raises(UsageError, match="made before follow"):
        train(model, DataLoader(data(), batch_size=8), optimizer)
    run.close(UsageError("refused"))


def test_an_evaluation_of_a_model_that_was_trained_first_is_on_no_tape(tmp_path: Path) -> None:
    """While a second one is trained: by then the first one's objects are frozen."""
    lengths = []
    for evaluations in (0, 1):
        path = tmp_path / f"run{evaluations}"
        with prover.follow(path, seed=1):
            first = net()
            train(first, DataLoader(data(), batch_size=8), torch.optim.SGD(first.parameters(), lr=0.1))
            second = net()
            optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
            for _ in range(2):
                train(second, DataLoader(data(), batch_size=8), optimizer)
                first.eval()
                for _ in range(evaluations):
                    with torch.no_grad():
                        assert all(first(x).shape[1] == 4 for x, _ in DataLoader(data(16), batch_size=8))
                first.train()
        transcript = Transcript.open(path)
        lengths.append([len(transcript.tape(record.tape)) for record in transcript.records()])
    assert lengths[0] == lengths[1]
