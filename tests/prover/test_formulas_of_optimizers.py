"""The formulas that `prover.formulas` writes down, against what PyTorch's optimizers and schedules really do."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import train
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, LRScheduler, StepLR

from prover import formulas
from prover.recorder import Recorder
from weighbridge.errors import UsageError
from weighbridge.origins import TapeValues, analyse
from weighbridge.tape import Tape
from weighbridge.transcript import Transcript

STEPS = 6
LR = 3e-3
Make = Callable[[Any], torch.optim.Optimizer]


def entered(path: Path) -> list[TapeValues]:
    transcript = Transcript.open(path)
    return list(analyse(transcript, lambda digest: Tape.decode(transcript.tape(digest))).values())


def trained(path: Path, make: Make, declared: dict[str, str]) -> int:
    """Trains a small net and returns how many values changed and were explained; none may have stayed free."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        return model, make(model.parameters())

    def step(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    torch.manual_seed(1)
    train(path, build, step, [torch.randn(3, 4) for _ in range(STEPS)], formulas=declared)
    found = entered(path)
    assert sum(values.free_values for values in found) == 0, [v.changing for v in found]
    return sum(name is not None for v in found if v.steps > 1 for name in v.changing.values())


OPTIMIZERS: list[tuple[Make, dict[str, str]]] = [
    (lambda p: torch.optim.Adam(p, lr=LR), formulas.adam()),
    (lambda p: torch.optim.Adam(p, lr=LR, amsgrad=True, betas=(0.8, 0.99)), formulas.adam(betas=(0.8, 0.99))),
    (lambda p: torch.optim.Adam(p, lr=LR), formulas.adam(t="host")),
    (lambda p: torch.optim.AdamW(p, lr=LR), formulas.adamw()),
    (lambda p: torch.optim.AdamW(p, lr=LR, foreach=True, weight_decay=0.3), formulas.adamw(weight_decay=0.3)),
    (lambda p: torch.optim.AdamW(p, lr=LR, fused=True), formulas.adamw()),
    (lambda p: torch.optim.NAdam(p, lr=LR), formulas.nadam()),
    (lambda p: torch.optim.Adagrad(p, lr=LR, lr_decay=0.1), formulas.adagrad(lr_decay=0.1)),
    (lambda p: torch.optim.Adafactor(p, lr=LR), formulas.adafactor([32, 8, 16, 2])),
]


@pytest.mark.parametrize("case", range(len(OPTIMIZERS)))
def test_optimizers_leave_no_value_free(tmp_path: Path, case: int) -> None:
    make, declared = OPTIMIZERS[case]
    assert trained(tmp_path / "run", make, formulas.constant(LR) | declared) > 0


def test_without_its_formula_a_value_is_free(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="None"):
        trained(tmp_path / "run", lambda p: torch.optim.Adam(p, lr=LR), formulas.constant(LR))


SCHEDULES: list[tuple[Callable[[Any], LRScheduler], dict[str, str]]] = [
    (lambda o: LambdaLR(o, lambda done: min(1.0, (done + 1) / 4)), formulas.warmup(LR, 4)),
    (lambda o: CosineAnnealingLR(o, 8, eta_min=1e-4), formulas.cosine_annealing(LR, 8, eta_min=1e-4)),
    (lambda o: StepLR(o, 2, gamma=0.3), formulas.step_decay(LR, 2, 0.3)),
    (lambda o: ExponentialLR(o, 0.9), formulas.step_decay(LR, 1, 0.9)),
    (
        lambda o: LambdaLR(o, lambda done: 0.5 * (1 + math.cos(math.pi * min(1, (done + 1) / 5)))),
        formulas.cosine(LR, 5),
    ),
]


@pytest.mark.parametrize("case", range(len(SCHEDULES)))
def test_schedules_leave_no_value_free(tmp_path: Path, case: int) -> None:
    schedule, declared = SCHEDULES[case]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    plan = schedule(optimizer)
    with Recorder(tmp_path / "run", seed=1, formulas=declared | formulas.sgd()) as recorder:
        recorder.attach(model, optimizer)
        for _ in range(STEPS):
            with recorder.step(batch := torch.randn(3, 4)):
                model(batch).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            plan.step()
    found = entered(tmp_path / "run")
    assert sum(values.free_values for values in found) == 0
    assert sum(len(values.changing) for values in found if values.steps > 1) > 0


def test_updates_over_several_steps_are_counted_by_t(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    declared = formulas.warmup(LR, 10, t="floor(t / 2)") | formulas.adamw(t="floor(t / 2)")
    with Recorder(tmp_path / "run", seed=1, formulas=declared) as recorder:
        recorder.attach(model, optimizer)
        for t in range(1, 9):
            with recorder.step(batch := torch.randn(3, 4)):
                (model(batch).square().sum() / 2).backward()
                if t % 2 == 0:
                    optimizer.param_groups[0]["lr"] = LR * min(1, t // 2 / 10)
                    optimizer.step()
                    optimizer.zero_grad()
    assert sum(values.free_values for values in entered(tmp_path / "run")) == 0


def test_bad_declarations_are_usage_errors() -> None:
    for call in (
        lambda: formulas.declaration({"x": "y"}, None),
        lambda: formulas.declaration({}, [b"short"]),
        lambda: formulas.declaration({}, ["ab" * 32]),  # type: ignore[list-item]
        lambda: formulas.warmup(LR, 0),
        lambda: formulas.cosine(LR, 5, warmup=5),
    ):
        with pytest.raises(UsageError):
            call()
