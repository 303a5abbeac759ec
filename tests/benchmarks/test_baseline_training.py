"""Training and auditing by the published method: an honest auditor agrees, a changed log does not go unnoticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import machine
from benchmarks.baselines import ternary
from benchmarks.baselines.hooks import Hooks
from benchmarks.baselines.threshold import Comparison, Values, pivots
from benchmarks.baselines.training import Auditor, Party, Trainer, digests, update
from benchmarks.models import Step
from weighbridge.core.errors import LogError


class Residual(nn.Module):
    """A block that adds in place, as many residual networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.LayerNorm(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        out += x
        return out


def build() -> Step:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 8), Residual(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def batch(number: int) -> dict[str, torch.Tensor]:
        random = np.random.RandomState(number)
        return {"x": torch.from_numpy(random.randn(4, 8)), "y": torch.from_numpy(random.randint(0, 3, 4))}

    return Step(model, optimizer, batch, lambda b: nn.functional.cross_entropy(model(b["x"]), b["y"])).to(torch.float64)


def step(party: Party) -> dict[str, str]:
    made = build()
    hooks = Hooks(made.model, party)
    update(made, hooks, made.batch(0))
    hooks.detach()
    return digests(made.model)


def test_an_honest_auditor_agrees() -> None:
    trainer = Trainer()
    trained = step(trainer)
    auditor = Auditor(bytes(trainer.log))
    assert step(auditor) == trained
    auditor.finish()
    assert trainer.near > trainer.elements // 4
    assert trained != step(lambda wide, kind: wide.clone())


def test_only_what_modules_make_is_rounded() -> None:
    seen: list[str] = []
    trainer = Trainer(observe=lambda kind, wide: seen.append(kind))
    made = build()
    hooks = Hooks(made.model, trainer)
    made.loss(made.batch(0))
    assert seen == ["Linear", "Linear", "ReLU", "LayerNorm", "Linear"]
    assert hooks.last is not None
    assert torch.equal(hooks.last.float().double(), hooks.last)
    hooks.round_gradient_of_logits()
    hooks.last.sum().backward()  # type: ignore[no-untyped-call]
    first = ["logits.backward", "Linear.backward", "LayerNorm.backward", "ReLU.backward", "Linear.backward"]
    assert seen[5:] == first  # the batch needs no gradient, so the first layer passes none back
    gradient = next(made.model.parameters()).grad
    assert gradient is not None
    assert not torch.equal(gradient.float().double(), gradient)


def test_a_changed_element_is_noticed() -> None:
    trainer = Trainer()
    trained = step(trainer)
    codes = ternary.decode(bytes(trainer.log[: ternary.size(32)]), 32).copy()
    position = int(np.flatnonzero(codes != ternary.CLEAR)[0])
    codes[position] = ternary.UP if codes[position] == ternary.DOWN else ternary.DOWN
    auditor = Auditor(ternary.encode(codes) + bytes(trainer.log[ternary.size(32) :]))
    assert step(auditor) != trained
    assert auditor.moved >= 1


def test_other_weights_are_noticed() -> None:
    trainer = Trainer()
    trained = step(trainer)
    made = build()
    with torch.no_grad():
        next(made.model.parameters())[0, 0] += 2.0**-20
    hooks = Hooks(made.model, Auditor(bytes(trainer.log)))
    update(made, hooks, made.batch(0))
    assert digests(made.model) != trained


def test_a_log_of_another_length_is_refused() -> None:
    trainer = Trainer()
    step(trainer)
    with pytest.raises(LogError):
        step(Auditor(bytes(trainer.log[:-1])))
    longer = Auditor(bytes(trainer.log) + b"\x00")
    step(longer)
    with pytest.raises(LogError):
        longer.finish()


def test_measured_bands_cover_what_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "values"
    step(Trainer(observe=Values(path)))
    same = Comparison(path)
    step(Trainer(observe=same))
    assert set(same.widths.values()) == {0.0}
    far = Comparison(path)
    step(Trainer(observe=lambda kind, wide: far(kind, wide * (1 + 2.0**-30))))
    assert 0 < far.widths["Linear"] <= 2.0**-6
    found = pivots(far.widths, same.widths, {"Linear": 7.0})
    assert found["Linear"] == 0.0
    assert found["LayerNorm"] == 0.5 - far.widths["LayerNorm"]


def test_values_that_end_early_are_refused(tmp_path: Path) -> None:
    (tmp_path / "values").write_bytes(bytes(8))
    with pytest.raises(LogError):
        step(Trainer(observe=Comparison(tmp_path / "values")))


@pytest.mark.slow
def test_an_auditor_with_another_instruction_set(tmp_path: Path) -> None:
    shared = ("--model", "perceptron", "--steps", "2", "--directory", str(tmp_path))
    trained = machine.ask("benchmarks.baselines.training", "train", *shared, environment=machine.HERE)
    audited = machine.ask("benchmarks.baselines.training", "audit", *shared, environment=machine.SSE2)
    assert trained["states"] == audited["states"]
    assert trained["bytes"] == sum(f.stat().st_size for f in tmp_path.glob("*.log")) >= trained["elements"] / 5
    assert json.dumps(trained["states"][0]) != json.dumps(trained["states"][1])
