"""Copies that leave out what a replay recomputes: what may be absent, and what may not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.forging import at_step, forge
from support.recordings import replay_here
from torch import nn

from prover import Recorder
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.transcript.export import export
from weighbridge.transcript.reader import Transcript


def record(path: Path, *, fresh: bool) -> Path:
    """Five steps with checkpoints before 1, 3 and 5."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    torch.manual_seed(1)
    built = None if fresh else build()
    with Recorder(path, seed=5, checkpoint_every=2) as recorder:
        if built is None:
            with recorder.initialisation():
                built = build()
        model, optimizer = built
        recorder.attach(model, optimizer)
        for number in range(5):
            x = torch.full((4, 8), float(number))
            with recorder.step({"x": x}):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return path


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("fresh") / "run", fresh=True)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("tuned") / "run", fresh=False)


def test_a_recorded_initialisation_travels_without_any_state(fresh: Path, tmp_path: Path) -> None:
    done = export(fresh, tmp_path / "out", minimal=True)
    assert done.left_out == [f"checkpoints/{step:08d}.safetensors" for step in (1, 3, 5)]
    assert sum(done.after.values()) == sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (fresh / "manifest.json").read_bytes()
    copy = Transcript.open(tmp_path / "out")
    assert (copy.digest, copy.checkpoint_steps, list(copy.manifest.checkpoints)) == (done.id, [], [1, 3, 5])
    whole, again = replay_here(fresh), replay_here(tmp_path / "out")
    assert (again["verdict"], again["state"]) == ("match", whole["state"])


def test_weights_that_existed_before_travel_along(tuned: Path, tmp_path: Path) -> None:
    done = export(tuned, tmp_path / "out", minimal=True)
    assert done.left_out == [f"checkpoints/{step:08d}.safetensors" for step in (3, 5)]
    assert replay_here(tmp_path / "out")["verdict"] == "match"


def test_a_segment_is_replayed_from_the_nearest_checkpoint_that_is_here(fresh: Path, tmp_path: Path) -> None:
    assert replay_here(fresh, steps=(3, 5))["steps"] == [3, 5]
    export(fresh, tmp_path / "out", minimal=True)
    shutil.copytree(fresh / "checkpoints", tmp_path / "checkpoints")
    assert replay_here(tmp_path / "out", steps=(3, 5))["steps"] == [0, 5]
    (tmp_path / "out" / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "00000003.safetensors").rename(tmp_path / "out/checkpoints/00000003.safetensors")
    result = replay_here(tmp_path / "out", steps=(4, 6))
    assert (result["verdict"], result["steps"]) == ("match", [3, 6])


def test_a_whole_copy_and_a_copy_of_a_copy(fresh: Path, tmp_path: Path) -> None:
    whole = export(fresh, tmp_path / "whole")
    assert (whole.left_out, whole.before) == ([], whole.after)
    export(tmp_path / "whole", tmp_path / "minimal", minimal=True)
    again = export(tmp_path / "minimal", tmp_path / "again", minimal=True)
    assert again.left_out == []
    assert Transcript.open(tmp_path / "again").digest == whole.id


def test_what_no_replay_makes_may_not_be_absent(fresh: Path, tuned: Path, tmp_path: Path) -> None:
    """A Prover who leaves out more than the rule allows hides something."""
    for number, file in enumerate(sorted(p.relative_to(tuned) for p in tuned.rglob("*.*") if p.is_file())):
        copy = tmp_path / str(number)
        shutil.copytree(tuned, copy)
        (copy / file).unlink()
        if str(file) in ("checkpoints/00000003.safetensors", "checkpoints/00000005.safetensors"):
            Transcript.open(copy)
            continue
        with pytest.raises(TranscriptError) as error:
            Transcript.open(copy)
        assert error.value.reason == "transcript.file.missing"
        if "00000001" in file.name and file.parts[0] == "checkpoints":
            assert "no tape makes it" in error.value.message


def test_a_file_that_is_there_must_be_the_listed_one(fresh: Path, tmp_path: Path) -> None:
    export(fresh, tmp_path / "out", minimal=True)
    (tmp_path / "out" / "checkpoints").mkdir()
    data = (fresh / "checkpoints/00000003.safetensors").read_bytes()
    (tmp_path / "out/checkpoints/00000003.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(TranscriptError) as error:
        Transcript.open(tmp_path / "out")
    assert error.value.reason == "transcript.file.altered"


def test_a_state_that_comes_out_otherwise_is_a_mismatch(tmp_path: Path) -> None:
    """The records fix the state that an absent checkpoint held: another one cannot hide behind its absence."""

    def lie(tape: object, fields: dict[str, object]) -> None:
        fields["state"] = bytes(32)

    source = tmp_path / "one"
    with Recorder(source, seed=5, checkpoint_every=50) as recorder:
        with recorder.initialisation():
            model = nn.Linear(4, 2)
        recorder.attach(model)
        for number in range(3):
            with recorder.step({"x": torch.full((2, 4), float(number))}):
                model(torch.ones(2, 4)).sum().backward()
                model.zero_grad()
    target = forge(source, tmp_path / "lie", at_step(2, lie))
    result = replay_here(target)
    assert (result["verdict"], result["first_difference"]["step"]) == ("mismatch", 2)
    export(target, tmp_path / "out", minimal=True)
    again = replay_here(tmp_path / "out")
    assert (again["verdict"], again["first_difference"]) == ("mismatch", result["first_difference"])


def test_the_target_must_be_new(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        export(fresh, tmp_path)
    with pytest.raises(TranscriptError) as error:
        export(fresh, tmp_path / "mine.txt")
    assert error.value.reason == "transcript.write"
