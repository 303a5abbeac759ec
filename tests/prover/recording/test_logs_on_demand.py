"""Recording with logs on demand: the same bits as with logs in full, and through crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import replay_here, verdict
from torch import nn

import prover
from benchmarks.resume_job import train
from prover import Recorder
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.core.errors import RefusedOperationError, UsageError
from weighbridge.execution.regeneration import regenerate
from weighbridge.transcript.reader import Transcript, recover
from weighbridge.transcript.supplements import folder_of, key_path


class CrashError(Exception):
    """Ends a training as a kill would."""


def finish(path: Path, **options: Any) -> Transcript:
    for _ in train(path, **options):
        pass
    return Transcript.open(path)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return finish(tmp_path_factory.mktemp("bare") / "run", logs="on-demand")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return finish(tmp_path_factory.mktemp("full") / "run")


def test_every_bit_is_that_of_a_recording_in_full(bare: Transcript, full: Transcript) -> None:
    for mine, theirs in zip(bare.records(), full.records(), strict=True):
        for name in ("tape", "values", "host", "rng", "state", "checksums", "batch", "rounded"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert (len(mine.outputs), theirs.outputs, mine.logged) == (32, b"", 0)
    assert sum(record.logged for record in full.records()) > 0


def test_a_crash_changes_nothing(tmp_path: Path, bare: Transcript) -> None:
    running = train(tmp_path / "run", logs="on-demand")
    for _ in range(9):
        next(running)
    with pytest.raises(CrashError):
        running.throw(CrashError)
    resumed = finish(tmp_path / "run", logs="on-demand")
    assert resumed.manifest.head == bare.manifest.head
    assert len(resumed.resumptions) == 1
    assert verdict(tmp_path / "run") == "match"
    regenerate(tmp_path / "run", load_or_create_key(key_path(tmp_path / "run")))
    supplemented = replay_here(tmp_path / "run", supplements=folder_of(tmp_path / "run"))
    assert supplemented["verdict"] == "match"
    assert supplemented["logged"] > 0


def test_the_kind_of_logs_stays_what_it_was(tmp_path: Path) -> None:
    running = train(tmp_path / "run", logs="on-demand")
    next(running)
    with pytest.raises(CrashError):
        running.throw(CrashError)
    with pytest.raises(UsageError, match="begun with another format and logs"):
        finish(tmp_path / "run")


def test_the_key_is_kept_for_its_owner_unless_one_is_given(tmp_path: Path, bare: Transcript) -> None:
    place = key_path(bare.path)
    assert place.stat().st_mode & 0o777 == 0o600
    assert load_or_create_key(place).public == bare.manifest.public
    key = SigningKey.generate()
    assert finish(tmp_path / "run", logs="on-demand", key=key, resume=False, steps=2).manifest.public == key.public
    assert not key_path(tmp_path / "run").exists()


def test_a_recovered_recording_can_be_regenerated(tmp_path: Path) -> None:
    running = train(tmp_path / "run", logs="on-demand")
    for _ in range(6):
        next(running)
    with pytest.raises(CrashError):
        running.throw(CrashError)
    key = load_or_create_key(key_path(tmp_path / "run"))
    recover(tmp_path / "run", key=key)
    assert regenerate(tmp_path / "run", key).written == Transcript.open(tmp_path / "run").steps


def test_a_followed_program_too(tmp_path: Path) -> None:
    with prover.follow(tmp_path / "run", logs="on-demand", device="cpu") as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in run.batches(torch.ones(3, 2, 4)):
            model(batch).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert Transcript.open(tmp_path / "run").on_demand
    assert verdict(tmp_path / "run") == "match"


@pytest.mark.parametrize("operation", [torch.lgamma, torch.digamma])
def test_operands_without_a_bound_are_refused_while_recording(tmp_path: Path, operation: Any) -> None:
    """Else the log could not be made later."""
    with Recorder(tmp_path / "run", seed=1, logs="on-demand", device="cpu") as recorder:
        model = nn.Linear(2, 2)
        recorder.attach(model)
        with pytest.raises(RefusedOperationError, match="has no bound"), recorder.step(torch.tensor([-0.5])):
            operation(torch.tensor([-0.5]))


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="full, on-demand or sketch"):
        Recorder(tmp_path / "run", seed=1, logs="later")  # type: ignore[arg-type]
