"""Compiled steps of functions that decide by what an equal sign, a mode of PyTorch's or an identity does not tell."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from prover import Recorder
from prover.recording.compile_refusal import CompileError
from tests.support.compiled_programs import CHANGED, Program, Quick, recorded, same_both_ways

pytestmark = pytest.mark.filterwarnings("ignore")


class Turning(Quick):
    """Something is another before one step that would run as a program."""

    steps = CHANGED + 1

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))

    def batch(self, number: int, rows: int = 6) -> Any:
        return {**super().batch(number, rows), "turn": torch.tensor(int(number == CHANGED))}


# -- looks past the dispatcher ----------------------------------------------------------------------------------------


class InAHook(Turning):
    """PyTorch leaves all modes of functions while `Tensor.backward` runs."""

    def loss(self, batch: Any) -> Tensor:
        loss = super().loss(batch)
        loss.register_hook(lambda grad: grad * 2 if batch["turn"].numpy() == 1 else None)  # type: ignore[no-untyped-call]
        return loss


class InAHookOfGrad(InAHook):
    def function(self, batch: Any) -> None:
        parameters = list(self.model.parameters())
        for p, grad in zip(parameters, torch.autograd.grad(self.loss(batch), parameters), strict=True):
            p.grad = grad
        self.optimizer.step()
        self.optimizer.zero_grad()


class ByACallback(Turning):
    """`apply_` hands each number to Python."""

    def loss(self, batch: Any) -> Tensor:
        seen: list[int] = []

        def see(value: int) -> int:
            seen.append(value)
            return value

        batch["turn"].apply_(see)
        return super().loss(batch) * (1 + seen[0])


@pytest.mark.finding("record.compile.refused")
@pytest.mark.parametrize("kind", [InAHook, InAHookOfGrad, ByACallback], ids=lambda kind: kind.__name__)
def test_a_look_that_no_mode_sees_by_itself_is_refused(tmp_path: Path, kind: type[Program]) -> None:
    with pytest.raises(CompileError, match="looks at a result"):
        recorded(tmp_path / "run", kind, compiled=True, logs="on-demand")


# -- what is equal, or lies where another lay, and is not the same ----------------------------------------------------


class Temperature(float):
    """A number of a class of the program's."""


class Sign(Turning):
    """Decides by an attribute."""

    values: ClassVar[tuple[Any, Any]] = (0.0, -0.0)

    def more(self) -> list[Any]:
        self.value = self.values[0]
        return []

    def batch(self, number: int, rows: int = 6) -> Any:
        self.value = self.values[number == CHANGED]
        return Quick.batch(self, number, rows)

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * (math.copysign(2.0, self.value) + float(self.value))


class OwnNumber(Sign):
    values = (Temperature(0.5), Temperature(0.25))


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor


class OneOfTwo(Sign):
    """A name comes to mean another thing that was in reach before."""

    def more(self) -> list[Any]:
        self.all = [Scale(2.0), Scale(3.0)]
        self.which = self.all[0]
        return super().more()

    def batch(self, number: int, rows: int = 6) -> Any:
        self.which = self.all[number == CHANGED]
        return Quick.batch(self, number, rows)

    def loss(self, batch: Any) -> Tensor:
        return Program.loss(self, batch) * self.which.factor


class OneOfTwoModules(OneOfTwo):
    def build(self) -> nn.Module:
        layers = [nn.Linear(8, 4), nn.Linear(8, 4)]
        self.all = layers  # type: ignore[assignment]
        return nn.ModuleList(layers)

    def more(self) -> list[Any]:
        self.which = self.all[0]
        return []

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.which(batch["x"]), batch["y"])  # type: ignore[operator]


class SignOfAnArgument(Turning):
    def batch(self, number: int, rows: int = 6) -> Any:
        return {**Quick.batch(self, number, rows), "sign": -0.0 if number == CHANGED else 0.0}

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * math.copysign(2.0, batch["sign"])


class NumpyNumber(Sign):
    """Each step has another object, which may lie where an earlier one lay."""

    def batch(self, number: int, rows: int = 6) -> Any:
        self.value = None
        self.value = np.float64(0.25 if number == CHANGED else 0.5)
        return Quick.batch(self, number, rows)


class Inferred(Turning):
    """Decides by what a batch's tensor is, beside its shape."""

    def batch(self, number: int, rows: int = 6) -> Any:
        with torch.inference_mode(number == CHANGED):
            return {**Quick.batch(self, number, rows), "turn": torch.zeros(1)}

    def loss(self, batch: Any) -> Tensor:
        copy = {**batch, "x": batch["x"].clone(), "y": batch["y"].clone()}
        return super().loss(copy) * (3.0 if batch["x"].is_inference() else 2.0)


@pytest.mark.parametrize(
    "kind",
    [Sign, OwnNumber, OneOfTwo, OneOfTwoModules, SignOfAnArgument, NumpyNumber, Inferred],
    ids=lambda kind: kind.__name__,
)
def test_another_number_is_another_beginning(tmp_path: Path, kind: type[Program]) -> None:
    step, _ = same_both_ways(tmp_path, kind, logs="on-demand")
    assert step.compiled > 0, step.reason
    assert step.reason, "the last call was recorded as ever"


# -- what no attribute of the program shows ---------------------------------------------------------------------------

SETTINGS = types.ModuleType("settings")
SETTINGS.__dict__.update(__file__=str(Path(__file__).with_name("settings.py")), OPTIONS={"factor": 2.0})


class InAModule(Turning):
    """A container in a module of the program's."""

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * float(SETTINGS.OPTIONS["factor"])


class InARange(Turning):
    """Another range, which may lie where the one before it lay."""

    def more(self) -> list[Any]:
        self.range: Any = range(2)
        return []

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * len(self.range)


def other_range(program: Any) -> None:
    program.range = None
    program.range = range(3)


def halve(optimizer: torch.optim.Optimizer, *given: Any) -> None:
    with torch.no_grad():
        for p in optimizer.param_groups[0]["params"]:
            p.mul_(0.5)


TURNS: dict[type[Program], tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    InAModule: (
        lambda program: SETTINGS.OPTIONS.update(factor=3.0), lambda made: SETTINGS.OPTIONS.update(factor=2.0)
    ),
    InARange: (other_range, lambda made: None),
    Turning: (
        lambda program: register_optimizer_step_post_hook(halve),
        lambda hook: hook.remove()
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TURNS, ids=["module", "range", "hook of all optimizers"])
def test_what_no_attribute_shows_is_noticed(tmp_path: Path, kind: type[Program]) -> None:
    turn, back = TURNS[kind]
    made: list[Any] = []

    def disturb(program: Program, number: int, recorder: Recorder) -> None:
        if not number and made:
            back(made.pop())  # after the recording that was made first
        if number == CHANGED:
            made.append(turn(program))

    try:
        step, _ = same_both_ways(tmp_path, kind, disturb=disturb, logs="on-demand")
    finally:
        back(made.pop())
    assert step.compiled > 0, step.reason
    assert step.reason, "the last call was recorded as ever"


# -- what was tried, and is foreseen -----------------------------------------------------------------------------------


class Odd(Turning):
    """Reads what one read leads to, overlapping memory, changed copies, a negative zero and what is no number."""

    turns = "00100101001"
    steps = len(turns)

    def batch(self, number: int, rows: int = 6) -> Any:
        turn = int(self.turns[number])
        m = torch.tensor([turn, 3, turn + 1, 1])
        signs = torch.tensor([-0.0, math.nan] if turn else [0.0, 1.0])
        return {**Quick.batch(self, number, rows), "m": m, "n": m[1:3], "o": m[:1].expand(4), "signs": signs}

    def loss(self, batch: Any) -> Tensor:
        copy = batch["m"].clone()
        copy.view(2, 2)[0].add_(1)
        at = int(batch["n"][int(copy[0]) - 1])
        zero, other = (each.item() for each in batch["signs"])
        factor = math.copysign(2.0, zero) * (3.0 if other != other else 1.0)
        overlaps = bool(batch["o"].sum() > 2)
        batch["n"].add_(1)  # what was read is changed after that
        return super().loss(batch) * (factor + at + 10 * overlaps)


def test_odd_reads_make_no_other_transcript(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, Odd, logs="on-demand")
    assert step.compiled > 4, step.reason
