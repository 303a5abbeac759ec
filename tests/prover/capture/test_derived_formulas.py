"""Ordinary trainings declare nothing by hand, and leave no value undeclared."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import verdict
from torch import nn
from torch.optim import lr_scheduler as schedules

from prover.capture import schedule_formulas
from prover.capture.derived_formulas import Derived
from prover.recording.recorder import Recorder
from weighbridge.program.origins import analyse
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

LR = 3e-3
STEPS = 8
Make = Callable[[Any], torch.optim.Optimizer]
Plan = Callable[[Any], Any]

SGD: Make = lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, weight_decay=1e-3)  # noqa: E731
ADAMW: Make = lambda p: torch.optim.AdamW(p, lr=LR)  # noqa: E731

OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=LR, amsgrad=True, betas=(0.8, 0.99)),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=LR, foreach=True),
    "AdamW": ADAMW,
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=LR, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=LR),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=LR, lr_decay=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=LR),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=LR),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=LR),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=LR),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=LR),
}
"""With a cosine that is stepped once in an epoch of three steps."""

SCHEDULES: dict[str, tuple[Make, Plan]] = {
    "StepLR": (SGD, lambda o: schedules.StepLR(o, 3, 0.5)),
    "MultiStepLR": (ADAMW, lambda o: schedules.MultiStepLR(o, [2, 5], 0.5)),
    "ConstantLR": (SGD, lambda o: schedules.ConstantLR(o, 0.3, 4)),
    "LinearLR": (ADAMW, lambda o: schedules.LinearLR(o, 0.25, 1.0, 5)),
    "ExponentialLR": (SGD, lambda o: schedules.ExponentialLR(o, 0.9)),
    "PolynomialLR": (ADAMW, lambda o: schedules.PolynomialLR(o, 20, 2.0)),
    "restarts": (SGD, lambda o: schedules.CosineAnnealingWarmRestarts(o, 3)),
    "one cycle, of SGD": (SGD, lambda o: schedules.OneCycleLR(o, max_lr=0.01, total_steps=9)),
    "one cycle, of AdamW": (
        ADAMW,
        lambda o: schedules.OneCycleLR(o, max_lr=0.01, total_steps=9, anneal_strategy="linear", three_phase=True),
    ),
    "in sequence": (
        ADAMW,
        lambda o: schedules.SequentialLR(
            o, [schedules.LinearLR(o, 0.1, 1.0, 4), schedules.CosineAnnealingLR(o, 9)], [4]
        ),
    ),
    "a warm-up of one's own": (SGD, lambda o: schedules.LambdaLR(o, lambda done: min(1, (done + 1) / 5))),
    "a decay of one's own": (SGD, lambda o: schedules.LambdaLR(o, lambda done: 0.95**done)),
    "on a plateau": (ADAMW, lambda o: schedules.ReduceLROnPlateau(o, factor=0.5, patience=1)),
}


def record(path: Path, make: Make, plan: Plan | None, *, epoch: int = 1, updates: int = 1, **options: Any) -> None:
    """Trains a small net, and steps its schedule once in `epoch` steps."""
    torch.manual_seed(1)
    batches = [torch.randn(3, 4) for _ in range(STEPS)]
    with Recorder(path, seed=7, **options) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
            optimizer = make(model.parameters())
        schedule = None if plan is None else plan(optimizer)
        recorder.attach(model, optimizer)
        for number, batch in enumerate(batches, 1):
            with recorder.step(batch):
                model(batch).square().sum().backward()
                if number % updates == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            if schedule is not None and number % epoch == 0:
                schedule.step(*([1.0] if isinstance(schedule, schedules.ReduceLROnPlateau) else []))


def left_open(path: Path) -> tuple[int, float]:
    """How many changing values follow from nothing declared, and the bits that lie beside formulas."""
    transcript = Transcript.open(path)
    found = analyse(transcript, lambda digest: Tape.decode(transcript.tape(digest))).values()
    return sum(each.undeclared_values for each in found), sum(sum(each.value_bits.values()) for each in found)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_numbers_of_optimizers_are_read_from_them(tmp_path: Path, name: str) -> None:
    record(tmp_path / "run", OPTIMIZERS[name], lambda o: schedules.CosineAnnealingLR(o, 9, 1e-5), epoch=3)
    assert left_open(tmp_path / "run") == (0, 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_read_from_their_schedulers(tmp_path: Path, name: str) -> None:
    record(tmp_path / "run", *SCHEDULES[name])
    assert Transcript.open(tmp_path / "run").step(STEPS).counts[0] == (3 if name == "on a plateau" else STEPS - 1)
    assert left_open(tmp_path / "run") == (0, 0)


def test_schedules_of_the_transformers_library(tmp_path: Path) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    model = nn.Linear(2, 2)
    for plan in (
        lambda o: optimization.get_constant_schedule_with_warmup(o, 3),
        lambda o: optimization.get_linear_schedule_with_warmup(o, 3, 20),
        lambda o: optimization.get_cosine_schedule_with_warmup(o, 3, 20),
        lambda o: optimization.get_cosine_with_hard_restarts_schedule_with_warmup(o, 3, 20, 2),
        lambda o: optimization.get_polynomial_decay_schedule_with_warmup(o, 3, 20),
        lambda o: optimization.get_inverse_sqrt_schedule(o, 3),
        lambda o: optimization.get_cosine_with_min_lr_schedule_with_warmup(o, 3, 20, min_lr=1e-4),
    ):
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        scheduler = plan(optimizer)
        derived = Derived([optimizer], [scheduler])
        assert {"lr", "descent", "decay", "adam_step", "adam_root"} <= set(derived.declared)
        assert derived.counts() == [0]


@pytest.mark.essential
def test_accumulated_gradients_and_epochs(tmp_path: Path) -> None:
    record(tmp_path / "run", ADAMW, lambda o: schedules.StepLR(o, 1, 0.5), epoch=4, updates=2)
    assert left_open(tmp_path / "run") == (0, 0)
    assert verdict(tmp_path / "run") == "match"


def test_a_rate_that_never_changes_needs_no_schedule(tmp_path: Path) -> None:
    record(tmp_path / "run", ADAMW, None)
    transcript = Transcript.open(tmp_path / "run")
    assert set(transcript.formulas().items) == {"lr", "adam_step", "adam_root"}
    assert all(not each.counts for each in transcript.records())
    assert left_open(tmp_path / "run") == (0, 0)


def test_what_the_program_declares_itself_is_what_counts(tmp_path: Path) -> None:
    record(tmp_path / "run", ADAMW, None, formulas={})
    assert not Transcript.open(tmp_path / "run").formulas().items
    assert left_open(tmp_path / "run")[0] > 0


def test_a_schedule_that_does_not_do_what_its_kind_does_is_not_declared(tmp_path: Path) -> None:
    """An honest one stays a warning until its formula is declared; an adversary's cannot borrow a name."""

    class Odd(schedules.StepLR):
        def get_lr(self) -> list[float | torch.Tensor]:
            return [LR * (1 + 0.1 * math.sin(self.last_epoch)) for _ in self.optimizer.param_groups]

    record(tmp_path / "run", SGD, lambda o: Odd(o, 3))
    assert not Transcript.open(tmp_path / "run").formulas().items
    assert left_open(tmp_path / "run")[0] > 0


def test_a_function_that_has_no_formula_is_left_alone() -> None:
    optimizer, told = SGD([nn.Parameter(torch.zeros(2))]), {1: 0.5}
    for odd in (lambda done: told.get(done, 1.0), lambda done: 1 + math.sin(done)):
        assert Derived([optimizer], [schedules.LambdaLR(optimizer, odd)]).declared == {}


class Handing(torch.optim.Optimizer):
    """Hands its work to another optimizer, as Accelerate's does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups


@pytest.mark.parametrize("given", [True, False])
def test_a_schedule_may_belong_to_an_optimizer_that_hands_its_work_on(given: bool) -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(2))])
    scheduler = schedules.LambdaLR(optimizer, lambda done: 0.5**done)
    scheduler.optimizer = Handing(Handing(optimizer))
    assert Derived([optimizer], [scheduler] if given else []).declared["lr"] == f"{LR} * ((0.5 ** (count)))"


def test_groups_have_formulas_of_their_own() -> None:
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([{"params": [first], "lr": 1e-3, "weight_decay": 0.0}, {"params": [second]}], lr=1e-4)
    scheduler = schedules.ExponentialLR(optimizer, 0.5)
    declared = Derived([optimizer], [scheduler]).declared
    assert declared["lr"] == "drift(0.001 * 0.5 ** (count))"
    assert declared["lr1"] == "drift(0.0001 * 0.5 ** (count))"
    assert declared["decay"] == "1 - lr1 * 0.01"
    assert declared["adam_step1"] == "-(lr1 / (1 - 0.9 ** host))"
    assert "adam_root1" not in declared


def test_reductions_are_counted_down_to_the_least_rate() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(2))])
    plateau = schedules.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, min_lr=LR / 20)
    seen = []
    for _ in range(6):
        plateau.step(1.0)
        seen.append(schedule_formulas.reductions(plateau, LR))
    assert seen == [0, 1, 2, 3, 3, 3]
