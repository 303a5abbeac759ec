"""Programs without a loader, followed: what they take from outside is their batch, and no way in beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prover
from prover.following.notes import UndeclaredInputWarning
from tests.prover.following.test_loops import OTHER_MACHINE, ROWS, graver, net
from weighbridge import replay
from weighbridge.core.errors import UsageError
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

LABELS = ROWS[:, :4].argmax(1)


def arrays() -> tuple[Tensor, Tensor]:
    """Data that no recorded operation made."""
    return torch.from_numpy(ROWS.copy()), torch.from_numpy(LABELS.copy())


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def slices() -> None:
    (x, y), model = arrays(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for n in (16, 0, 24, 8):
        update(optimizer, loss_of(model, x[n : n + 8], y[n : n + 8]))
        schedule.step()


def permuted() -> None:
    (x, y), model = arrays(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, rows in enumerate(torch.randperm(32).split(8)):
        noisy = x[rows]
        if number:
            noisy = noisy + 0.1 * torch.randn_like(noisy)
        update(optimizer, loss_of(model, noisy, y[rows]))


def crops_of_tokens() -> None:
    """As nanoGPT does."""
    tokens = np.random.default_rng(0).integers(0, 16, 400).astype(np.uint16)
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def get_batch() -> tuple[Tensor, Tensor]:
        places = torch.randint(len(tokens) - 8, (4,))
        rows = [tokens[place : place + 9].astype(np.int64) for place in places]
        x, y = (torch.stack([torch.from_numpy(row[shift : shift + 8]) for row in rows]) for shift in (0, 1))
        return x, y

    def loss_on(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x).view(-1, 16), y.view(-1))

    @torch.no_grad()
    def estimate() -> Tensor:
        model.eval()
        losses = torch.zeros(3)
        for number in range(3):
            losses[number] = loss_on(*get_batch()).item()
        model.train()
        return losses.mean()

    x, y = get_batch()
    for number in range(4):
        if number % 2 == 0:
            assert estimate() > 0
        for _ in range(2):
            loss = loss_on(x, y) / 2
            x, y = get_batch()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def one_row_shifted() -> None:
    """Operand and label lie on one memory."""
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, 16, (4, 4, 9)))
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for row in rows:
        update(optimizer, nn.functional.cross_entropy(model(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten()))


def without_modules() -> None:
    (x, _), w = arrays(), torch.randn(16, 1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.01)
    for n in (0, 8, 16, 24):
        update(optimizer, (x[n : n + 8] @ w).square().mean())


def evaluated_with_gradients() -> None:
    (x, y), model = arrays(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in (0, 8, 16, 24):
        model.train()
        update(optimizer, loss_of(model, x[n : n + 8], y[n : n + 8]))
        model.eval()
        assert float(loss_of(model, x, y)) > 0


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize(
    "program", [slices, permuted, crops_of_tokens, one_row_shifted, without_modules, evaluated_with_gradients]
)
def test_batches_made_by_hand_are_batches(tmp_path: Path, program: Callable[[], None]) -> None:
    """They replay elsewhere without a warning, one step for each of the optimizer's, and their lines are known."""
    with prover.follow(tmp_path / "run", seed=1) as run:
        program()
    assert run.updates == 4
    assert not run.undeclared
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [f.id for f in result.findings if f.severity != "info"] == []
    transcript = Transcript.open(tmp_path / "run")
    count = 1 if program is without_modules else 2
    for record in list(transcript.records())[1:]:
        names = [name for name, _ in Tape.decode(transcript.tape(record.tape)).batch_views]
        assert names in (["0", "1"][:count], ["0.0", "0.1", "1.0", "1.1"])
    assert len({record.tape for record in transcript.records()}) <= 5
    assert {taken.line.split(":")[0] for taken in run.taken} == {__file__}


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
def test_data_that_a_program_keeps_enter_each_time_that_they_are_used(tmp_path: Path) -> None:
    """As an agent's memories do; as state they would give each step a program of its own."""
    draw = np.random.default_rng(2)
    with prover.follow(tmp_path / "run", seed=1) as run:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        memories: list[tuple[Tensor, Tensor]] = []
        for _ in range(12):
            memories.append(
                (torch.tensor(draw.standard_normal((1, 16)).tolist()), torch.tensor([int(draw.integers(4))]))
            )
            if len(memories) >= 4:
                states, labels = zip(*(memories[n] for n in draw.choice(len(memories), 4, replace=False)), strict=True)
                update(optimizer, loss_of(model, torch.cat(states), torch.cat(labels)))
    assert run.updates == 9
    assert graver(tmp_path / "run") == []
    transcript = Transcript.open(tmp_path / "run")
    assert len({record.tape for record in transcript.records()}) <= 5


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
def test_random_batches_come_from_the_recorded_seed(tmp_path: Path) -> None:
    """They are drawn, and so nothing enters; the steps are cut all the same."""
    with prover.follow(tmp_path / "run", seed=1) as run:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.randn(8, 16)
            update(optimizer, loss_of(model, x, x[:, :4].argmax(dim=1)))
    assert run.updates == 4
    assert not run.taken
    assert graver(tmp_path / "run") == []
    assert all(not Transcript.open(tmp_path / "run").batch(step) for step in range(5))


def accumulated(run: Path, x: Tensor, y: Tensor, commitment: DataCommitment) -> None:
    with prover.follow(run, seed=1, data=commitment):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, n in enumerate((0, 8, 16, 24)):
            loss_of(model, x[n : n + 8], y[n : n + 8]).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.finding("data.record.differs")
def test_they_are_held_to_a_commitment(tmp_path: Path) -> None:
    """Micro-batches too, which a backward pass tells apart; one number that is not as committed to is noticed."""
    x, y = arrays()
    commitment = DataCommitment.over(({"0": a, "1": b} for a, b in zip(x, y, strict=True)), range(32))
    accumulated(tmp_path / "run", x, y, commitment)
    assert graver(tmp_path / "run") == []
    records = list(Transcript.open(tmp_path / "run").records())
    assert [record.records for record in records[1:]] == [list(range(16)), list(range(16, 32))]
    x[20, 3] += 1
    with pytest.raises(UsageError, match="record 20 in step 2"):
        accumulated(tmp_path / "other", x, y, commitment)


def copied(model: nn.Sequential, other: Tensor) -> None:
    model[0].weight.copy_(other)


def added(model: nn.Sequential, other: Tensor) -> None:
    model[0].weight.add_(other)


def by_way_of_a_product(model: nn.Sequential, other: Tensor) -> None:
    model[0].weight.copy_(other * torch.ones_like(other))


@pytest.mark.finding("tape.overwrite", "tape.free_input", "tape.no_gradient")
@pytest.mark.filterwarnings("ignore::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize(
    ("way", "found"),
    [
        (copied, {"tape.overwrite", "tape.free_input"}),
        (added, {"tape.no_gradient", "tape.free_input"}),
        (by_way_of_a_product, {"tape.overwrite", "tape.free_input"}),
    ],
)
def test_weights_do_not_come_in_as_a_batch(
    tmp_path: Path, way: Callable[[nn.Sequential, Tensor], None], found: set[str]
) -> None:
    """What an operation writes into the model is undeclared, and what goes around the loss is told of in any case."""
    with prover.follow(tmp_path / "run", seed=1):
        (x, y), model = arrays(), net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for n in (0, 8, 16, 24):
            update(optimizer, loss_of(model, x[n : n + 8], y[n : n + 8]))
            if n == 8:
                with torch.no_grad():
                    way(model, torch.from_numpy(ROWS[:8] + 1))
    assert set(graver(tmp_path / "run")) == found


def test_weights_that_are_added_as_data_are_not_what_was_committed_to(tmp_path: Path) -> None:
    """A sum of weights and data is what any loss begins with, so what data are is for a commitment to say."""
    x, y = arrays()
    commitment = DataCommitment.over(({"0": a, "1": b} for a, b in zip(x, y, strict=True)), range(32))
    with prover.follow(tmp_path / "run", seed=1, data=commitment) as run:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        update(optimizer, loss_of(model, x[:8], y[:8]))
        loss = loss_of(model, x[8:16], y[8:16])
        with torch.no_grad():
            model[0].weight.copy_(model[0].weight + torch.from_numpy(ROWS[:8] + 1))
        update(optimizer, loss)
        with pytest.raises(UsageError, match=r"data\.record\.differs|step 2"):
            loss_of(model, x[16:24], y[16:24])
        assert run.failed


def beside_a_loader(path: Path) -> prover.Following:
    with prover.follow(path, seed=1) as run:
        (x, y), model, beside = arrays(), net(), torch.from_numpy(ROWS[:9, :4].copy())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8):
            update(optimizer, loss_of(model, *batch) + (model(batch[0]) * beside[:8]).mean())
    return run


@pytest.mark.finding("tape.free_input")
def test_a_program_with_a_loader_takes_nothing_else_for_a_batch(tmp_path: Path) -> None:
    with pytest.warns(UndeclaredInputWarning, match="undeclared"):
        run = beside_a_loader(tmp_path / "run")
    assert not run.taken
    assert set(graver(tmp_path / "run")) == {"tape.free_input"}
