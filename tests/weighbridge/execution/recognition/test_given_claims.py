"""A run that was recorded without claims is recognised by those of another recording of its program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.recognised import claiming
from support.recognised_training import Batch, built, classify, rows
from support.recordings import train
from torch import optim

from prover.capture.claimed_training import ClaimedTraining
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.transcript.training_claims import CLAIMS, Claims


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without claims, as an earlier version recorded it."""
    path = tmp_path_factory.mktemp("old") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClaimedTraining, "claims", lambda self: None)
        train(path, built(), classify, rows())
    assert not (path / CLAIMS).exists()
    return path


def test_claims_of_the_same_program_on_other_data(old: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    train(tmp_path / "new", built(), classify, rows(5)[2:4])
    without = replay(old, recognise=9)
    assert [each.reasons[0][:18] for each in without.recognised] == ["nothing is claimed"] * 2
    for claims in (tmp_path / "new", tmp_path / "new" / CLAIMS):
        found = replay(old, recognise=9, claims=claims).recognised
        assert len(found) == 2
        assert all(each.recognised for each in found), [each.reasons for each in found]


def test_claims_of_another_program_say_nothing(old: Path, tmp_path: Path) -> None:
    def twice(batch: Batch, model: torch.nn.Module, optimizer: optim.Optimizer) -> None:
        classify({**batch, "x": batch["x"] * 2}, model, optimizer)

    train(tmp_path / "new", built(), twice, rows())
    found = replay(old, recognise=9, claims=tmp_path / "new").recognised
    assert all(each.reasons[0].startswith("nothing is claimed") for each in found)


def test_false_claims_are_no_better_from_elsewhere(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claiming(monkeypatch, lambda claims: Claims(claims.backwards, (), claims.stops))
    train(tmp_path / "new", built(), classify, rows())
    assert not any(each.recognised for each in replay(old, recognise=9, claims=tmp_path / "new").recognised)


def test_what_is_no_file_of_claims(old: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("none")
    with pytest.raises(WeighbridgeError):
        replay(old, recognise=1, claims=tmp_path / "text")
    with pytest.raises(UsageError, match="record a few steps of the same program"):
        replay(old, recognise=1, claims=tmp_path)
