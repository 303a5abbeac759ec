"""Ordinary training loops, followed: what they record replays on another kind of machine, without a warning."""

from __future__ import annotations

import copy
import gc
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import prover
from prover.following.notes import UndeclaredInputWarning
from tests.prover.recording.test_habits import replayed
from weighbridge import replay
from weighbridge.core.errors import UsageError
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

OTHER_MACHINE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}

ROWS = np.random.default_rng(0).standard_normal((32, 16), dtype=np.float32)


def data(count: int = 32) -> TensorDataset:
    """A data set whose tensors no recorded operation made."""
    return TensorDataset(torch.from_numpy(ROWS[:count].copy()), torch.from_numpy(ROWS[:count, :4].argmax(1)))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def graver(path: Path) -> list[str]:
    """Replays a recording and returns its findings above info."""
    result = replayed(path)
    assert result["verdict"] == "match"
    return [finding["id"] for finding in result["findings"] if finding["severity"] != "info"]


def test_a_whole_loop_replays_elsewhere_without_a_warning(tmp_path: Path) -> None:
    """Accumulation, clipping, a schedule, dropout, batch norm, an evaluation, a kept and a saved checkpoint."""
    with prover.follow(tmp_path / "run", seed=7) as run:
        torch.manual_seed(42)
        model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
        training, validation = DataLoader(data(), batch_size=4, shuffle=True), DataLoader(data(16), batch_size=8)
        best, kept = 0.0, {}
        for _ in range(2):
            model.train()
            total = 0.0
            for number, (x, y) in enumerate(training):
                loss = loss_of(model, x, y) / 2
                loss.backward()
                total += loss.item()
                if number % 2:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            model.eval()
            correct, seen = torch.zeros(()), 0
            with torch.no_grad():
                for x, y in validation:
                    correct += (model(x).argmax(dim=1) == y).sum()
                    seen += len(y)
            if float(correct) / seen >= best:
                best, kept = float(correct) / seen, copy.deepcopy(model.state_dict())
            torch.save(model.state_dict(), tmp_path / "saved.pt")
        weights = {name: t.clone() for name, t in model.state_dict().items()}
    assert run.updates == 8
    assert not run.undeclared
    assert kept
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert {finding.severity for finding in result.findings} <= {"info"}
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert all(torch.equal(saved[name], t) for name, t in weights.items())
    names = {
        path for tape in {r.tape for r in Transcript.open(run.path).records()} for path in batch_paths(run.path, tape)
    }
    assert names == {"0.0", "0.1", "1.0", "1.1"}


def batch_paths(path: Path, tape: bytes) -> list[str]:
    return [name for name, _ in Tape.decode(Transcript.open(path).tape(tape)).batch_views]


def test_an_evaluation_is_not_on_any_tape(tmp_path: Path) -> None:
    """Also one without no_grad, on a loader of its own, and one of the averaged weights is."""
    lengths = []
    for evaluations in (0, 1, 3):
        with prover.follow(tmp_path / f"run{evaluations}", seed=1):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            training, validation = DataLoader(data(), batch_size=8), DataLoader(data(16), batch_size=8)
            for _ in range(2):
                model.train()
                for x, y in training:
                    optimizer.zero_grad()
                    loss_of(model, x, y).backward()
                    optimizer.step()
                model.eval()
                for _ in range(evaluations):
                    scores = torch.cat([model(x).softmax(dim=1) for x, _ in validation])
                    scores.detach().numpy()[:] = 0  # what no tape has may be changed
        assert graver(tmp_path / f"run{evaluations}") == []
        transcript = Transcript.open(tmp_path / f"run{evaluations}")
        lengths.append([len(transcript.tape(record.tape)) for record in transcript.records()])
    assert lengths[0] == lengths[1] == lengths[2]


def test_what_an_earlier_recording_trained_is_not_the_programs(tmp_path: Path) -> None:
    """Its model is garbage by then, in cycles that nothing has collected; only the closed recording is held."""
    runs = []

    def recorded(path: Path) -> int:
        with prover.follow(path, seed=1) as run:
            runs.append(run)
            for _ in range(2):  # the first of the two is replaced before anything trains it
                model = net()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                optimizer.cycle = (optimizer, model)  # type: ignore[attr-defined]
            train(model, DataLoader(data(), batch_size=8), optimizer)
        transcript = Transcript.open(path)
        return len(Tape.decode(transcript.tape(next(iter(transcript.records())).tape)).survivors)

    gc.collect()
    gc.disable()
    try:
        first, second = recorded(tmp_path / "first"), recorded(tmp_path / "second")
    finally:
        gc.enable()
    assert first == second == 4


def train(model: nn.Module, batches: Any, optimizer: torch.optim.Optimizer) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def prefetched(loader: DataLoader[Any]) -> Any:
    """As Accelerate does: the next batch is fetched before this one is handed out."""
    iterator = iter(loader)
    batch = next(iterator)
    for following in iterator:
        yield batch
        batch = following
    yield batch


@pytest.mark.parametrize("kind", ["ahead", "iterable", "evaluation mode", "given back"])
def test_batches_are_known_when_they_are_used(tmp_path: Path, kind: str) -> None:
    commitment = DataCommitment.over(({"0": x, "1": y} for x, y in data()), range(32))
    with prover.follow(tmp_path / "run", seed=1, data=commitment) as run:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data(), batch_size=8)
        if kind == "evaluation mode":  # fine-tuning with frozen statistics is training all the same
            model.eval()
        given = {"ahead": prefetched(loader), "iterable": run.batches(list(loader))}.get(kind, loader)
        train(model, given, optimizer)
    assert run.updates == 4
    assert graver(tmp_path / "run") == []
    records = list(Transcript.open(tmp_path / "run").records())
    assert [record.records for record in records[1:]] == [list(range(n, n + 8)) for n in (0, 8, 16, 24)]


def test_micro_batches_are_held_to_the_commitment(tmp_path: Path) -> None:
    """Whether they are followed or given as a list, and of whatever sizes they are."""
    commitment = DataCommitment.over(({"0": x, "1": y} for x, y in data(28)), range(28))

    def accumulate(run: Path, rows: TensorDataset) -> None:
        with prover.follow(run, seed=1, data=commitment):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for number, (x, y) in enumerate(DataLoader(rows, batch_size=8)):
                loss_of(model, x, y).backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()

    accumulate(tmp_path / "run", data(28))
    assert graver(tmp_path / "run") == []
    assert [len(record.records) for record in Transcript.open(tmp_path / "run").records()] == [0, 16, 12]
    assert not [f.id for f in Transcript.open(tmp_path / "run").check_data() if f.severity != "info"]
    other = data(28)
    other.tensors[0][9, 0] += 1
    with pytest.raises(UsageError, match="record 9 in step 1"):
        accumulate(tmp_path / "other", other)
    with prover.Recorder(tmp_path / "blocks", seed=1, data=commitment) as recorder:
        model = net()
        recorder.attach(model)
        batches = list(DataLoader(data(16), batch_size=8))
        with recorder.step(batches):
            sum(loss_of(model, x, y) for x, y in batches).backward()
    assert [len(record.records) for record in Transcript.open(tmp_path / "blocks").records()] == [0, 16]


@pytest.mark.parametrize("order", [(0, 8, 16, 24), (24, 16, 8, 0), (16, 0, 12, 4)])
def test_micro_batches_may_lie_on_one_memory(tmp_path: Path, order: tuple[int, ...]) -> None:
    rows = data().tensors[0]
    with prover.follow(tmp_path / "run", seed=1) as run:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, x in enumerate(run.batches([rows[n : n + 8] for n in order])):
            model(x).square().mean().backward()
            if number % 2:
                optimizer.step()
    assert run.updates == 2
    assert graver(tmp_path / "run") == []
    batch = Transcript.open(tmp_path / "run").batch(2)
    assert torch.equal(batch["1.tensor"], rows[order[3] : order[3] + 8])


def test_what_files_hold_enters_the_initialisation(tmp_path: Path) -> None:
    saved = net().state_dict()
    torch.save(saved, tmp_path / "w.pt")
    safetensors.torch.save_file(saved, tmp_path / "w.safetensors")
    with prover.follow(tmp_path / "run", seed=1) as run:
        model = net()
        model.load_state_dict(torch.load(tmp_path / "w.pt", weights_only=True))
        loaded = safetensors.torch.load_file(tmp_path / "w.safetensors")
        model[2].load_state_dict({"weight": loaded["2.weight"], "bias": loaded["2.bias"]}, assign=True)
        before = {name: t.clone() for name, t in model.state_dict().items()}
        train(model, DataLoader(data(), batch_size=8), torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(torch.equal(before[name], t) for name, t in saved.items())
    assert run.undeclared
    assert {each.step for each in run.undeclared} == {0}
    assert graver(tmp_path / "run") == []


@pytest.mark.parametrize("kind", ["autocast", "scaler", "average", "two optimizers"])
def test_habits_of_training(tmp_path: Path, kind: str) -> None:
    with prover.follow(tmp_path / "run", seed=1, policy="calibrated") as run:
        model, other = net(), net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        second = torch.optim.Adam(other.parameters(), lr=0.1)
        average = torch.optim.swa_utils.AveragedModel(model)
        scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaler")
        for x, y in DataLoader(data(), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
                loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if kind == "average":
                average.update_parameters(model)
            if kind == "two optimizers":
                second.zero_grad()
                (other(x) - model(x).detach()).square().mean().backward()
                second.step()
    assert run.updates == 4
    assert not run.undeclared
    assert graver(tmp_path / "run") == []


@pytest.mark.finding("tape.free_input")
def test_what_an_evaluation_brings_into_training_is_named(tmp_path: Path) -> None:
    def weighted(run: Path, **options: Any) -> prover.Following:
        with prover.follow(run, seed=1, **options) as following:
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in itertools.chain(DataLoader(data(), batch_size=8), DataLoader(data(), batch_size=8)):
                model.eval()
                with torch.no_grad():
                    weights = model(x).softmax(dim=1).amax(dim=1)
                model.train()
                losses = nn.functional.cross_entropy(model(x), y, reduction="none")
                optimizer.zero_grad()
                (losses * weights).mean().backward()
                optimizer.step()
        return following

    with pytest.warns(UndeclaredInputWarning, match=r"shape \(8,\) entered step 1 undeclared at .*test_loops\.py:\d+"):
        run = weighted(tmp_path / "native")
    assert [(each.step, each.shape) for each in run.undeclared] == [(step, (8,)) for step in range(1, 9)]
    assert "(losses * weights)" in run.undeclared[0].line
    assert "weights = model(x)" in run.undeclared[0].cause
    assert set(graver(tmp_path / "native")) == {"tape.free_input"}
    assert not weighted(tmp_path / "recorded", evaluation="recorded").undeclared
    assert graver(tmp_path / "recorded") == []
