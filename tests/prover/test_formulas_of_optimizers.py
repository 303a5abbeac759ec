"""The formulas that `prover.formulas` writes down, against what PyTorch's optimizers and schedules really do."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recordings import train, verdict
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    StepLR,
)

from prover import formulas
from prover.capture.substitution import Substitution
from prover.recording.recorder import Recorder
from weighbridge.core.errors import UsageError
from weighbridge.program.origins import TapeValues, analyse
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

STEPS = 6
LR = 3e-3
Make = Callable[[Any], torch.optim.Optimizer]


def entered(path: Path) -> list[TapeValues]:
    transcript = Transcript.open(path)
    return list(analyse(transcript, lambda digest: Tape.decode(transcript.tape(digest))).values())


def trained(path: Path, make: Make, declared: dict[str, str]) -> int:
    """Trains a small net and returns how many values changed and were explained; none may have stayed undeclared."""

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
    assert sum(values.undeclared_values for values in found) == 0, [v.changing for v in found]
    assert not any(values.value_bits for values in found), [v.value_bits for v in found]
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
def test_optimizers_leave_no_value_undeclared(tmp_path: Path, case: int) -> None:
    make, declared = OPTIMIZERS[case]
    assert trained(tmp_path / "run", make, formulas.constant(LR) | declared) > 0


def test_without_its_formula_a_value_is_undeclared(tmp_path: Path) -> None:
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
    (
        lambda o: LambdaLR(
            o, lambda done: (done + 1) / 3 if done < 2 else 0.5 * (1 + math.cos(math.pi * (done - 2) / 6))
        ),
        formulas.cosine(LR, 9, warmup=3),
    ),
    (
        lambda o: LinearLR(o, start_factor=0.25, total_iters=5),
        {"lr": f"drift({LR!r} * (0.25 + 0.75 * min(1, (t - 1) / 5)))"},
    ),
    (
        lambda o: OneCycleLR(o, max_lr=LR, total_steps=12, cycle_momentum=False),
        {
            "low": f"{LR!r} / 25",
            "least": "low / 10000",
            "up": f"low + ({LR!r} - low) / 2 * (1 + cos(pi * (1 - (t - 1) / 2.6)))",
            "lr": f"up if t - 1 <= 2.6 else least + ({LR!r} - least) / 2 * (1 + cos(pi * (t - 3.6) / 8.4))",
        },
    ),
]


def scheduled(path: Path, case: int, decoupled: bool = False) -> list[TapeValues]:
    """Trains with a schedule and returns what entered."""
    schedule, declared = SCHEDULES[case]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    kind = torch.optim.AdamW if decoupled else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=LR)
    plan = schedule(optimizer)
    with Recorder(path, seed=1, formulas=declared | (formulas.adamw() if decoupled else formulas.sgd())) as recorder:
        recorder.attach(model, optimizer)
        for _ in range(STEPS):
            with recorder.step(batch := torch.randn(3, 4)):
                model(batch).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            plan.step()
    return entered(path)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("case", range(len(SCHEDULES)))
def test_schedules_leave_no_value_undeclared(tmp_path: Path, case: int, decoupled: bool) -> None:
    """Nor one that lies beside its formula: every value has its formula's bits, whatever the schedule's recurrence."""
    found = scheduled(tmp_path / "run", case, decoupled)
    assert verdict(tmp_path / "run") == "match"
    assert sum(values.undeclared_values for values in found) == 0
    assert not any(values.value_bits for values in found), [v.value_bits for v in found]
    assert sum(len(values.changing) for values in found if values.steps > 1) > 0


def test_a_recorder_that_substitutes_nothing_is_charged_for_roundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is undeclared in transcripts of earlier Recorders; a few bits for each value beside its formula's."""
    monkeypatch.setattr(Substitution, "value", lambda self, place, value: value)
    found = scheduled(tmp_path / "run", 1)
    assert sum(values.undeclared_values for values in found) == 0
    charged = [bits for values in found for bits in values.value_bits.values()]
    assert charged
    assert all(4 < bits < 4 * 16 for bits in charged)  # four parameters


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
    assert sum(values.undeclared_values for values in entered(tmp_path / "run")) == 0


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
