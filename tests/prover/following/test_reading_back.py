"""Weights that a program saves and reads again are the run's own, which a Verifier sees from the transcript alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import prover
from prover.following.earlier_states import EarlierStates
from tests.prover.following.test_loops import OTHER_MACHINE, ROWS, data, graver, loss_of, net
from tests.prover.recording.test_habits import replayed
from weighbridge import replay
from weighbridge.core.errors import TranscriptError
from weighbridge.program.own_tensors import returned
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.returned_state import Held, Returned


def trained(path: Path, after: Callable[[nn.Module, torch.optim.Optimizer, int], None]) -> prover.Following:
    """Trains two epochs of four steps and does something after each of them."""
    with prover.follow(path, seed=1) as run:
        model = net()
        model.register_buffer("stash", torch.zeros(8, 16))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        updates = 0
        for _ in range(2):
            for x, y in DataLoader(data(), batch_size=8):
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
                model.stash.copy_(x)  # type: ignore[operator, union-attr]
                updates += 1
                after(model, optimizer, updates)
    return run


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize("whole", [False, True])
def test_what_was_saved_comes_back_without_a_warning(tmp_path: Path, whole: bool) -> None:
    """A model, or with its optimizer as a script that goes back to its best state does; training goes on after it."""

    def after(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
        if updates in (2, 3):
            torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / f"{updates}.pt")
        if updates == 6:
            weights, moments = torch.load(tmp_path / "2.pt", weights_only=True)
            model.load_state_dict(weights)
            if whole:
                optimizer.load_state_dict(moments)

    run = trained(tmp_path / "run", after)
    assert run.updates == 8
    assert not run.undeclared
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [finding.id for finding in result.findings if finding.severity != "info"] == []
    assert {before for before, _ in Transcript.open(tmp_path / "run").returned.tensors.values()} == {3}
    bits = result.chosen["edits"]["bits"]
    assert 2 < bits < 40 if not whole else bits < 200


def foreign(step: int) -> Callable[..., None]:
    """Puts weights from elsewhere in the place of the model's, after so many updates."""

    def after(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
        model.state_dict()
        if updates == step:
            with torch.no_grad():
                model[0].weight.copy_(torch.from_numpy(ROWS[:8] + 1))  # type: ignore[operator, index]

    return after


@pytest.mark.finding("transcript.returned.differs")
@pytest.mark.filterwarnings("ignore::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize("lie", ["another tensor", "another table", "another step", "another name"])
def test_a_false_origin_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    """Weights from elsewhere are said to be those before an earlier step, with whatever table."""
    weight = "model.0.weight"

    def cut(self: EarlierStates, tape: Any, undeclared: Any, step: int) -> bool:
        told = [name for name, content in undeclared.items() if content.digest()[0] == 512]
        self.read()
        held = dict(self._held)
        self.settle()
        if told:
            (name,), before = told, step
            if lie == "another step":
                held[2] = held[3]
                before = 2
            if lie == "another table":
                content = undeclared[name].digest()
                held[before] = Held({**held[before].storages, weight: content}, held[before].rng)
            storage = "model.0.bias" if lie == "another name" else weight
            self._tensors[step, name] = before, storage
            self._states[before] = held[before]
        return bool(told)

    monkeypatch.setattr(EarlierStates, "cut", cut)
    trained(tmp_path / "run", foreign(4))
    assert "transcript.returned.differs" in graver(tmp_path / "run")
    with pytest.raises(TranscriptError, match="ask the Prover"):
        returned(Transcript.open(tmp_path / "run"))


@pytest.mark.finding("tape.overwrite", "tape.free_input")
@pytest.mark.filterwarnings("ignore::prover.following.notes.UndeclaredInputWarning")
def test_weights_from_elsewhere_are_no_state_of_the_run(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", foreign(4))
    assert [each.shape for each in run.undeclared] == [(8, 16)]
    assert Transcript.open(tmp_path / "run").returned == Returned()
    assert set(graver(tmp_path / "run")) == {"tape.overwrite", "tape.free_input"}


@pytest.mark.finding("tape.overwrite")
@pytest.mark.filterwarnings("ignore::prover.following.notes.UndeclaredInputWarning")
def test_a_detour_through_the_state_does_not_make_content_trained(tmp_path: Path) -> None:
    """A batch is left in a buffer, saved, and read again as weights: it is state, and it is still a batch."""

    def after(model: Any, optimizer: torch.optim.Optimizer, updates: int) -> None:
        if updates == 2:
            torch.save(model.state_dict(), tmp_path / "saved.pt")
        if updates == 6:
            saved = torch.load(tmp_path / "saved.pt", weights_only=True)
            with torch.no_grad():
                model[0].weight.copy_(saved["stash"])

    run = trained(tmp_path / "run", after)
    assert not run.undeclared
    assert set(Transcript.open(tmp_path / "run").returned.tensors.values()) == {(3, "model.stash")}
    assert set(graver(tmp_path / "run")) == {"tape.overwrite"}


def test_what_comes_back_elsewhere_costs_bits(tmp_path: Path) -> None:
    """Which of the earlier states it is, is a choice, and so is to put a layer where another was."""

    def swaps(source: str) -> Callable[..., None]:
        def after(model: Any, optimizer: torch.optim.Optimizer, updates: int) -> None:
            if updates == 2:
                torch.save({"a": model.state_dict(), "b": optimizer.state_dict()}, tmp_path / "saved.pt")
            if updates == 6:
                saved = torch.load(tmp_path / "saved.pt", weights_only=True)
                with torch.no_grad():
                    model[0].bias.copy_(saved["a"]["0.bias"] if source == "own" else saved["b"]["state"][1]["exp_avg"])

        return after

    bits = {}
    for source in ("own", "other"):
        trained(tmp_path / source, swaps(source))
        bits[source] = replayed(tmp_path / source)["chosen"]["edits"]["bits"]
    assert 3 < bits["other"] - bits["own"] < 6


def test_states_that_are_remembered_are_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prover.following.earlier_states._MOST", 2)

    def after(model: Any, optimizer: torch.optim.Optimizer, updates: int) -> None:
        if updates < 5:
            torch.save(model.state_dict(), tmp_path / f"{updates}.pt")
        if updates == 6:
            model.load_state_dict(torch.load(tmp_path / "4.pt", weights_only=True))
        if updates == 7:
            model[2].load_state_dict(torch.load(tmp_path / "3.pt", weights_only=True), strict=False)

    assert not trained(tmp_path / "run", after).undeclared
    assert graver(tmp_path / "run") == []
