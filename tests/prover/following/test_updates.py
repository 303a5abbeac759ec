"""Programs without an optimizer, and evaluations of what is not trained itself, are followed without a warning."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import prover
from tests.prover.following.test_by_hand import arrays, loss_of, update
from tests.prover.following.test_loops import OTHER_MACHINE, data, net
from weighbridge import replay
from weighbridge.core.errors import UsageError
from weighbridge.transcript.reader import Transcript

STEPS = 7


def tensors_without_modules() -> None:
    """As in lessons on back-propagation: leaves, `p.data += -lr * p.grad`, a rate that falls once."""
    x, y = arrays()
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn((16, 8), generator=generator), torch.randn((8, 4), generator=generator)]
    for p in weights:
        p.requires_grad = True
    for step in range(STEPS):
        rows = torch.randint(0, x.shape[0], (8,), generator=generator)
        h = torch.tanh(x[rows] @ weights[0])
        loss = nn.functional.cross_entropy(h @ weights[1], y[rows])
        for p in weights:
            p.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        lr = 0.1 if step < 3 else 0.01
        for p in weights:
            p.data += -lr * p.grad  # type: ignore[operator]


def a_recurrent_net() -> None:
    """As PyTorch's word_language_model: hidden state that is carried over, `p.data.add_(p.grad, alpha=-lr)`."""
    torch.manual_seed(3)
    x, _ = arrays()
    model = nn.ModuleDict({"rnn": nn.LSTM(16, 8), "decoder": nn.Linear(8, 16)})

    def forward(part: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, hidden = model["rnn"](part, hidden)
        return model["decoder"](output), hidden

    model.train()
    hidden = (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8))
    sequence = x.view(16, 2, 16)
    for number in range(STEPS):
        part, wanted = sequence[2 * number : 2 * number + 2], sequence[2 * number + 1 : 2 * number + 3]
        model.zero_grad()
        output, hidden = forward(part, (hidden[0].detach(), hidden[1].detach()))
        nn.functional.mse_loss(output, wanted).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.5)


def slices_in_order() -> None:
    """Each step takes the slice after the last one, of a tensor that the program keeps; so do weights of classes."""
    (x, y), model = arrays(), net()
    weight = torch.from_numpy(np.linspace(0.5, 2.0, 4, dtype=np.float32))
    for number in range(STEPS):
        rows = slice(4 * number, 4 * number + 4)
        nn.functional.cross_entropy(model(x[rows]), y[rows], weight).backward()
        update_by_hand(model)


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize("program", [slices_in_order, a_recurrent_net])
def test_slices_of_data_do_not_make_a_program_of_every_step(tmp_path: Path, program: Callable[[], None]) -> None:
    """Where a slice begins is the batch's affair: steps that do the same have one tape, and the data are no state."""
    with prover.follow(tmp_path / "run", seed=1):
        program()
    transcript = Transcript.open(tmp_path / "run")
    first, second, *records, last = list(transcript.records())[1:]  # some take leave of step 0, or of the program
    assert len(records) == STEPS - 4
    assert len({record.tape for record in records}) == 1
    assert all(transcript.batch(record.step) for record in (first, second, *records, last))
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert (result.verdict, [f.id for f in result.findings if f.severity != "info"]) == ("match", [])


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize("program", [tensors_without_modules, a_recurrent_net])
def test_parameters_that_a_program_updates_itself_are_found(tmp_path: Path, program: Callable[[], None]) -> None:
    """The first update belongs to step 0, since only then is it known what is trained."""
    with prover.follow(tmp_path / "run", seed=1) as run:
        program()
    assert run.updates == STEPS - 1
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [(f.id, f.message) for f in result.findings if f.severity != "info"] == []
    names = {s for record in Transcript.open(tmp_path / "run").records() for s in [record.kind]}
    assert names == {"init", "step"}


def test_a_program_that_trains_nothing_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="no optimizer made a step, and no parameter was changed"),
        prover.follow(tmp_path / "run", seed=1),
    ):
        net()(torch.zeros(1, 16))


def update_by_hand(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p -= 0.1 * p.grad
            p.grad = None


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize("early", [False, True], ids=["in the model", "before it"])
def test_the_first_batch_of_a_loader_is_no_part_of_the_initialisation(tmp_path: Path, early: bool) -> None:
    """Wherever it is used first."""
    with prover.follow(tmp_path / "run", seed=1) as run:
        model = net()
        for rows, labels in DataLoader(data(), batch_size=8):
            rows = rows.view(-1, 16) / 2 if early else rows
            loss_of(model, rows, labels).backward()
            update_by_hand(model)
    transcript = Transcript.open(tmp_path / "run")
    assert run.updates == transcript.steps - 1 == 4
    assert not transcript.batch(0)
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [f.id for f in result.findings if f.severity != "info"] == []


def calls_a_model() -> None:
    model = net()
    for rows, _ in DataLoader(data(), batch_size=8):
        model(rows)


def test_a_loop_that_trains_nothing_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="no optimizer made a step, and no parameter was changed"),
        prover.follow(tmp_path / "run", seed=1),
    ):
        calls_a_model()


def tried_on_a_batch() -> nn.Module:
    """As in notebooks: `model(next(iter(loader))[0]).shape`."""
    model = net()
    rows, _ = next(iter(DataLoader(data(), batch_size=8)))
    assert model(rows).shape == (8, 4)
    return model


def looked_at_and_kept() -> nn.Module:
    """Tensors of a data set, of which a variable keeps some, and what came of them; the loss is printed."""
    model = net()
    x, y = arrays()
    rows = torch.randint(0, x.shape[0], (8,)).tolist()
    KEPT.append(loss_of(model, x[rows], y[rows]))
    assert KEPT[0].item() > 0
    KEPT.append(x[rows])
    return model


KEPT: list[Tensor] = []


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize("program", [tried_on_a_batch, looked_at_and_kept])
def test_a_model_is_tried_before_its_optimizer_is_made(tmp_path: Path, program: Callable[[], nn.Module]) -> None:
    """What it is tried on is fed to the initialisation, and chooses nothing."""
    KEPT.clear()
    with prover.follow(tmp_path / "run", seed=1):
        model = program()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for rows, labels in DataLoader(data(), batch_size=8):
            update(optimizer, loss_of(model, rows, labels))
    transcript = Transcript.open(tmp_path / "run")
    assert {**transcript.batch(0), **transcript.undeclared(0)}
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [(f.id, f.message) for f in result.findings if f.id != "data.not_precommitted"] == []
    assert result.chosen["batch"]["step"] > 0
    assert "origin" not in result.chosen


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
def test_an_average_is_evaluated_while_the_model_stays_in_training_mode(tmp_path: Path) -> None:
    with prover.follow(tmp_path / "run", seed=1) as run:
        model = net()
        average = copy.deepcopy(model).eval().requires_grad_(False)
        x, y = arrays()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(2):
            model.train()
            for rows, labels in DataLoader(data(), batch_size=8):
                update(optimizer, loss_of(model, rows, labels))
                with torch.no_grad():
                    for kept, p in zip(average.parameters(), model.parameters(), strict=True):
                        kept.lerp_(p, 0.1)
            with torch.no_grad():
                assert 0 <= float((average(x).argmax(1) == y).float().mean()) <= 1
    assert not run.undeclared
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [f.id for f in result.findings if f.severity != "info"] == []


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
def test_several_models_are_trained_one_after_the_other(tmp_path: Path) -> None:
    """As in a cross-validation, with evaluations on tensors and the best state restored."""
    with prover.follow(tmp_path / "run", seed=1) as run:
        x, y = arrays()
        for fold in range(2):
            model = net()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            best = copy.deepcopy(model.state_dict())
            for _ in range(2):
                model.train()
                for rows, labels in DataLoader(data(), batch_size=8, shuffle=True):
                    update(optimizer, loss_of(model, rows, labels))
                model.eval()
                with torch.no_grad():
                    assert loss_of(model, x[fold * 8 :], y[fold * 8 :]) > 0
                best = copy.deepcopy(model.state_dict())
            model.load_state_dict(best)
    assert not run.undeclared
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [(f.id, f.message) for f in result.findings if f.severity != "info"] == []


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
def test_weights_of_classes_belong_to_the_initialisation(tmp_path: Path) -> None:
    """They are counted from the data, and lie in the loss."""
    with prover.follow(tmp_path / "run", seed=1) as run:
        _, y = arrays()
        counts = 1.0 / (1 + torch.bincount(y, minlength=4)).float()
        model, criterion = net(), nn.CrossEntropyLoss(weight=counts / counts.sum() * 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows, labels in DataLoader(data(), batch_size=8):
            update(optimizer, criterion(model(rows), labels))
    assert not [each for each in run.undeclared if each.step]
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [f.id for f in result.findings if f.severity != "info"] == []
