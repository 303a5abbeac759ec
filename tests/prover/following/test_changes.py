"""What is not recorded is noticed while a program is followed, or refused with what to do."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import prover
from tests.prover.following.test_loops import data, graver, loss_of, net, train
from weighbridge.core.errors import StateChangedError, UsageError
from weighbridge.transcript.reader import Transcript


class Tampering(Dataset[Any]):
    """A data set that changes a weight while it loads a record."""

    def __init__(self) -> None:
        self.rows, self.array = data(), np.zeros(1, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        if number == 16:
            self.array *= 2
        return self.rows[number]


def tampered(moment: str, rows: Tampering) -> None:
    """Trains, and changes memory in the second step or before it."""
    model = net()
    idle = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), idle], lr=0.1)
    array, idle_array = np.from_dlpack(model[2].bias.detach()), np.from_dlpack(idle.detach())  # type: ignore[arg-type]
    if moment == "while loading":
        rows.array = array
    for number, (x, y) in enumerate(DataLoader(rows, batch_size=8)):
        loss_of(model, x, y).backward()
        if number == 1 and moment == "before the optimizer":
            idle_array *= 2
        optimizer.step()
        optimizer.zero_grad()
        if number == 1 and moment == "after the optimizer":
            array *= 2
        if number == 1 and moment == "on the batch":
            ctypes.memset(x.data_ptr(), 0, 8)


@pytest.mark.finding("record.state.changed")
@pytest.mark.parametrize("moment", ["after the optimizer", "while loading", "before the optimizer", "on the batch"])
def test_a_change_by_no_operation_ends_the_recording(tmp_path: Path, moment: str) -> None:
    """Wherever it falls; the transcript ends with the step before, which replays, and the program may go on."""
    with prover.follow(tmp_path / "run", seed=1) as run:
        with pytest.raises(StateChangedError, match="by PyTorch's operations"):
            tampered(moment, Tampering())
        assert run.failed
        model = net()
        train(model, DataLoader(data(), batch_size=8), torch.optim.SGD(model.parameters(), lr=0.1))
    transcript = Transcript.open(tmp_path / "run")
    assert not transcript.manifest.complete
    assert transcript.steps == (3 if moment == "while loading" else 2)
    assert graver(tmp_path / "run") == []


def test_arrays_of_recorded_memory_are_read_only(tmp_path: Path) -> None:
    with prover.follow(tmp_path / "run", seed=1):
        model = net()
        with pytest.raises(ValueError, match="read-only"):
            model[2].bias.detach().numpy()[:] = 1
        torch.from_numpy(np.zeros(3)).numpy()[:] = 1
        train(model, DataLoader(data(), batch_size=8), torch.optim.SGD(model.parameters(), lr=0.1))
    assert graver(tmp_path / "run") == []


def without_forward(run: prover.Following) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones(parameter.shape)
    optimizer.step()


def in_another_thread(run: prover.Following) -> None:
    model, errors = net(), []

    def work() -> None:
        try:
            train(model, DataLoader(data(), batch_size=8), torch.optim.SGD(model.parameters(), lr=0.1))
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise errors[0]


def nothing(run: prover.Following) -> None:
    net()


def twice(run: prover.Following) -> None:
    prover.follow(run.path.parent / "second")


def one_memory_written(run: prover.Following) -> None:
    rows: Tensor = data().tensors[0]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, x in enumerate(run.batches(rows[n : n + 8] for n in range(0, 32, 8))):
        model(x.mul_(2)).square().mean().backward()
        if number % 2:
            optimizer.step()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (without_forward, r"run\.batches"),
        (in_another_thread, "another thread"),
        (nothing, "nothing was trained"),
        (twice, "followed already"),
        (one_memory_written, r"\.clone\(\)"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_what_to_do(
    tmp_path: Path, program: Callable[[prover.Following], None], reason: str
) -> None:
    with pytest.raises(Exception, match=reason), prover.follow(tmp_path / "run", seed=1) as run:
        program(run)
    assert not Transcript.open(tmp_path / "run").manifest.complete


def test_a_program_that_fails_leaves_its_whole_steps(tmp_path: Path) -> None:
    def fail() -> None:
        with prover.follow(tmp_path / "run", seed=1):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for number, (x, y) in enumerate(DataLoader(data(), batch_size=8)):
                1 / (2 - number)
                train(model, [(x, y)], optimizer)

    with pytest.raises(ZeroDivisionError):
        fail()
    transcript = Transcript.open(tmp_path / "run")
    assert not transcript.manifest.complete
    assert transcript.steps == 3
    assert graver(tmp_path / "run") == []
