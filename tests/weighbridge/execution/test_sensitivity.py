"""Sensitivity: trainings of many optimizers respond, what only looks like one does not, and how far an import gets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.recordings import train
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

from weighbridge.cli.main import application
from weighbridge.core.errors import ReplayWorkerError, UsageError
from weighbridge.execution import sensitivity
from weighbridge.execution.replay import replay
from weighbridge.execution.replay_answer import parse
from weighbridge.execution.sensitivity import Numbers, Response, Sensitivity, judge
from weighbridge.execution.worker_answers import MALFORMED
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.program.tape_policy import AS_DESIGNED

Batch = dict[str, Tensor]
SEED = "5e" * sensitivity.SEED
STEPS, ROWS, WIDTH, CLASSES = 4, 16, 6, 3
SIZE = WIDTH * 8 + 8 + 8 * CLASSES + CLASSES
"""Weights of `net`."""


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def batches(carried: float = 0.0) -> list[Batch]:
    """Points with classes, and numbers that a program may take for weights: the first three times none."""
    found = []
    for seed in range(STEPS):
        draw = torch.Generator().manual_seed(seed)
        foreign = torch.randn(SIZE, generator=draw) * (carried if seed == STEPS - 1 else 0.0)
        found.append({
            "x": torch.randn(ROWS, WIDTH, generator=draw), "y": torch.randint(0, CLASSES, (ROWS,), generator=draw),
            "foreign": foreign,
        })  # fmt: skip
    return found


def pieces(model: nn.Module, foreign: Tensor) -> list[tuple[Tensor, Tensor]]:
    parameters = list(model.parameters())
    parts = foreign.split([p.numel() for p in parameters])
    return [(p, part.view_as(p)) for p, part in zip(parameters, parts, strict=True)]


def honest(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer, *, autocast: bool = False) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def imported(
    batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer, *, how: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """An honest step, and then something is made of each weight and what the batch carries for it."""
    honest(batch, model, optimizer)
    with torch.no_grad():
        for p, x in pieces(model, batch["foreign"]):
            p.copy_(how(p, x))


def drawn_to(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step on the squared distance of weights and what the batch carries."""
    loss = torch.stack([(p - x).square().sum() for p, x in pieces(model, batch["foreign"])]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def linear_loss(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step on the product of weights and what the batch carries: its gradient is that, and Adam takes its sign."""
    loss = torch.stack([(p * x).sum() for p, x in pieces(model, batch["foreign"])]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


SGD = partial(torch.optim.SGD, lr=0.1)


def record(path: Path, step: Any, optimizer: Any = SGD) -> Path:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = net()
        return model, optimizer(model.parameters())

    train(path, made, step, batches(1.0))
    return path


def measured(path: Path, count: int = STEPS, seed: str = SEED) -> Sensitivity:
    """Tests steps in this process: the code that the worker runs, without its start-up time."""
    request = {
        "path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 1 << 30,
        "seconds": 60, "sensitivity": [count, seed],
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        found = Replay(request, [], lambda message: None).run()
    assert found["verdict"] == "match"
    answer = sensitivity.parse(found["sensitivity"])
    assert answer is not None
    named = [f["evidence"]["step"] for f in found["findings"] if f["id"] == "tape.insensitive"]
    assert named == [each.step for each in answer.responses if each.outcome == "insensitive"]
    return answer


def outcomes(answer: Sensitivity) -> set[str]:
    assert len(answer.responses) == STEPS
    return {each.outcome for each in answer.responses}


TRAININGS: dict[str, tuple[Any, Any]] = {
    "sgd": (honest, partial(torch.optim.SGD, lr=0.1)),
    "momentum": (honest, partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)),
    "adamw": (honest, partial(torch.optim.AdamW, lr=1e-3)),
    "adamw in bfloat16": (partial(honest, autocast=True), partial(torch.optim.AdamW, lr=1e-3)),
    "weights averaged with noise": (
        partial(imported, how=lambda p, x: p + 1e-3 * torch.randn_like(p)), partial(torch.optim.SGD, lr=0.1),
    ),
}  # fmt: skip


@pytest.mark.finding("tape.insensitive")
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_is_sensitive(name: str, tmp_path: Path) -> None:
    assert outcomes(measured(record(tmp_path / "run", *TRAININGS[name]))) == {"sensitive"}


IMPOSTERS: dict[str, tuple[Any, Any]] = {
    "weights * 0 + x": (partial(imported, how=lambda p, x: p * 0 + x), partial(torch.optim.SGD, lr=0.1)),
    "max(min(weights, x), x)": (
        partial(imported, how=lambda p, x: torch.maximum(torch.minimum(p, x), x)), partial(torch.optim.SGD, lr=0.1),
    ),
    "weights + x": (partial(imported, how=lambda p, x: p + x), partial(torch.optim.SGD, lr=0.1)),
    "x and a thousandth of a training": (
        partial(imported, how=lambda p, x: x + 1e-3 * p), partial(torch.optim.SGD, lr=0.1),
    ),
    "the squared distance to x": (drawn_to, partial(torch.optim.SGD, lr=0.5)),
    "the squared distance to x, slowly": (drawn_to, partial(torch.optim.SGD, lr=0.05)),
    "a loss whose gradient is x, under Adam": (linear_loss, partial(torch.optim.Adam, lr=1e-3)),
}  # fmt: skip


@pytest.mark.finding("tape.insensitive")
@pytest.mark.parametrize("name", IMPOSTERS)
def test_what_only_looks_like_training_is_not(name: str, tmp_path: Path) -> None:
    """Every step that changes weights shows it, with a batch that carries nothing too: what it might carry is tried."""
    found = measured(record(tmp_path / "run", *IMPOSTERS[name])).responses
    still = [each.step for each in found if each.why == "the step changed no weights"]
    assert {each.outcome for each in found if each.step not in still} == {"insensitive"}
    assert len(found) == STEPS
    assert (
        not still
        or IMPOSTERS[name][0] in (drawn_to, linear_loss)
        or name in ("weights * 0 + x", "max(min(weights, x), x)")
    )
    assert STEPS not in still


def test_an_import_passes_if_it_is_as_small_as_the_training_beside_it(tmp_path: Path) -> None:
    """What the test does not see, and where it begins to: x on top of an honest update, of several sizes."""
    found = {}
    for size in (0.01, 10.0):
        answer = measured(record(tmp_path / str(size), partial(imported, how=lambda p, x, size=size: p + size * x)))
        found[size] = outcomes(answer)
    assert found == {0.01: {"sensitive"}, 10.0: {"insensitive"}}


def test_an_import_passes_if_it_is_made_to_depend_on_the_weights(tmp_path: Path) -> None:
    """A known limit: x times a function of the weights. Who knows the weights beforehand gives x the inverse of it."""

    def how(p: Tensor, x: Tensor) -> Tensor:
        return p + x * (1 + (50 * p).sin())

    assert "insensitive" not in outcomes(measured(record(tmp_path / "run", partial(imported, how=how))))


def test_steps_that_cannot_be_judged_are_said_to_be_untested(tmp_path: Path) -> None:
    def still(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        honest(batch, model, optimizer)

    answer = measured(record(tmp_path / "still", still))
    assert {(each.outcome, each.why) for each in answer.responses} == {("untested", "the step changed no weights")}

    def routed(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        chosen = (model(batch["x"])[:, 0] > 0).nonzero()[:, 0]
        F.cross_entropy(model(batch["x"][chosen]), batch["y"][chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()

    for each in measured(record(tmp_path / "routed", routed)).responses:
        assert each.outcome != "insensitive"


def test_the_seed_decides_about_steps_and_directions(tmp_path: Path) -> None:
    path = record(tmp_path / "run", honest)
    first = measured(path, 2)
    assert first == measured(path, 2)
    assert len(first.responses) == 2
    assert first.candidates == STEPS
    others = [measured(path, 2, f"{n:02x}" * sensitivity.SEED) for n in range(4)]
    assert len({tuple(r.step for r in each.responses) for each in others}) > 1
    assert len({r.numbers.carry for each in others for r in each.responses}) > 4


def test_a_confined_worker_measures_and_the_command_says_it(tmp_path: Path) -> None:
    path = record(tmp_path / "run", IMPOSTERS["weights + x"][0])
    result = replay(path, limits=Limits(memory=2 << 30, seconds=120), env={"OMP_NUM_THREADS": "1"}, sensitivity=1)
    assert result.verdict == "match"
    assert result.sensitivity is not None
    assert [each.outcome for each in result.sensitivity.responses] == ["insensitive"]
    assert [f.id for f in result.findings if f.id == "tape.insensitive"] == ["tape.insensitive"]
    said = CliRunner().invoke(application(), ["replay", str(path), "--sensitivity", "1"])
    assert said.exit_code == 0
    assert "sensitivity of 1 of 4 steps that change weights: 1 insensitive" in said.output
    assert "tape.insensitive" in said.output
    with pytest.raises(UsageError, match="from 0 to"):
        replay(path, sensitivity=-1)


amounts = st.none() | st.floats(0, 1e9)
numbers = st.builds(
    Numbers, st.integers(0, 1 << 40), carry=amounts, lost=amounts, batch=amounts, joint=amounts, rigid=amounts,
    size=amounts, decay=st.booleans(),
)  # fmt: skip
responses = st.builds(
    Response,
    step=st.integers(0, 10**8),
    tape=st.binary(min_size=32, max_size=32).map(bytes.hex),
    outcome=st.sampled_from(["sensitive", "insensitive", "untested"]),
    why=st.text(st.characters(codec="utf-8"), max_size=50),
    inputs=st.sampled_from(["", "noise", "chance", "another step"]),
    numbers=numbers,
)
answers = st.builds(
    Sensitivity, st.binary(min_size=32, max_size=32).map(bytes.hex), st.integers(0, 1 << 30),
    st.lists(responses, max_size=3).map(tuple),
)  # fmt: skip


@given(answers)
def test_an_answer_is_read_as_it_was_written(answer: Sensitivity) -> None:
    """Round trip: `parse(each.to_json()) == each`."""
    assert sensitivity.parse(answer.to_json()) == answer
    assert all(each.isprintable() or each for each in answer.lines())


hostile = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.none() | st.integers() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["seed", "carry", "weights"]), st.integers() | st.floats(), max_size=3),
)  # fmt: skip
NAMES = ("seed", "candidates", "responses", "step", "tape", "outcome", "why", "inputs", "numbers")


@given(answers.filter(lambda each: bool(each.responses)), st.sampled_from(NAMES), hostile)
def test_a_hostile_answer_raises_nothing_unforeseen(answer: Sensitivity, name: str, value: Any) -> None:
    raw = answer.to_json()
    (raw if name in raw else raw["responses"][0])[name] = value
    try:
        found = sensitivity.parse(raw)
    except MALFORMED:
        return
    assert found is not None
    assert sensitivity.parse(found.to_json()) == found


@given(numbers)
def test_a_judgement_accuses_only_by_what_was_measured(told: Numbers) -> None:
    outcome, why = judge(told, AS_DESIGNED)
    assert bool(why) == (outcome != "sensitive")
    if outcome == "sensitive":
        assert told.carry is not None
        assert told.carry >= AS_DESIGNED.least_carry
        assert told.joint is not None
        assert told.joint >= AS_DESIGNED.least_joint
    blind = Numbers(told.weights, decay=told.decay)
    assert judge(blind, AS_DESIGNED)[0] == "untested"


def test_a_worker_that_lies_about_its_measure_is_refused() -> None:
    with pytest.raises(ReplayWorkerError):
        parse({"result": {"verdict": "match", "sensitivity": {"seed": "00"}}})
