"""Compiled steps that are called with numbers: each is one of few, or the input of a step, and never an earlier one."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from prover import Recorder
from prover.recording.compile_refusal import CompileError
from prover.recording.known_structures import NUMBERS
from prover.recording.plain_arguments import names_of, numbers_apart, without_tensors
from prover.recording.structure import NotPlainError
from tests.support.compiled_programs import Arguments, Program, Quick, recorded, same_both_ways
from weighbridge.transcript.reader import Transcript

pytestmark = pytest.mark.filterwarnings("ignore")


class Scaled(Quick):
    """Its loss is multiplied by an argument, and it decides by that too."""

    numbers: tuple[Any, ...] = (0.1,)
    steps = 12

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))

    def batch(self, number: int, rows: int = 6) -> Any:
        return Arguments((super().batch(number, rows), self.number(number)))

    def number(self, number: int) -> Any:
        return self.numbers[number % len(self.numbers)]

    def function(self, batch: Any, scale: Any = None) -> Any:
        loss = self.loss(batch) * scale
        if scale > 0.15:
            loss = loss + 1
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Alternating(Scaled):
    numbers = (0.1, 0.2)


class Late(Scaled):
    """The number changes once, after calls have run as programs."""

    def number(self, number: int) -> Any:
        return 0.1 if number < 8 else 0.2


class Lookalikes(Scaled):
    """Numbers that are equal and not the same."""

    numbers = (1, 1.0, True)
    steps = 15

    def function(self, batch: Any, scale: Any = None) -> Any:
        super().function(batch, scale)
        return repr(scale)


class Zeros(Lookalikes):
    numbers = (0.0, -0.0)
    steps = 12


class Five(Scaled):
    """Five in turn, with tapes of two kinds."""

    numbers = (0.1, 0.11, 0.12, 0.2, 0.21)
    steps = 17


class Most(Scaled):
    """As many in turn as may be."""

    numbers = tuple(0.01 * (each + 1) for each in range(NUMBERS))
    steps = 2 * NUMBERS + 5


@pytest.mark.parametrize(
    ("kind", "programs"), [(Scaled, 8), (Alternating, 6), (Late, 5), (Lookalikes, 8), (Zeros, 7), (Five, 5), (Most, 3)]
)
def test_each_number_has_its_program(tmp_path: Path, kind: type[Scaled], programs: int) -> None:
    step, _ = same_both_ways(tmp_path, kind, logs="on-demand")
    assert step.compiled == programs, step.reason


class Changing(Scaled):
    """Another number in each call."""

    steps = NUMBERS + 6

    def number(self, number: int) -> Any:
        return 0.05 * (number + 1)


class TooMany(Scaled):
    """More than may take turns."""

    numbers = tuple(0.01 * (each + 1) for each in range(NUMBERS + 4))
    steps = NUMBERS + 6


class Nested(Changing):
    def number(self, number: int) -> Any:
        return {"rates": [1.0, 0.05 * (number + 1)]}

    def function(self, batch: Any, scale: Any = None) -> Any:
        return super().function(batch, scale["rates"][1])


class Counted(Changing):
    def number(self, number: int) -> Any:
        return number


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Changing, r"its argument scale is another number in each call.*pass a tensor.*torch\.tensor\(scale\)"),
        (TooMany, r"its argument scale is another number in each call, or one of more than 16 that take turns"),
        (Counted, r"its argument scale is another number in each call"),
        (Nested, r"its argument scale\['rates'\]\[1\] is another number"),
    ],
)
def test_a_number_that_always_changes_is_refused_by_name(tmp_path: Path, kind: type[Scaled], said: str) -> None:
    with pytest.raises(CompileError, match=said):
        recorded(tmp_path / "run", kind, compiled=True, logs="on-demand")


class Loosened(Changing):
    """It changes in each call from a call on by which others were programs."""

    steps = NUMBERS + 10

    def number(self, number: int) -> Any:
        return 0.1 if number < 6 else super().number(number)


def test_a_number_that_changes_after_programs_have_run_is_recorded_as_ever(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step, _ = same_both_ways(tmp_path, Loosened, logs="on-demand")
    assert step.compiled == 2
    told = [str(each.message) for each in said if "cannot be compiled" in str(each.message)]
    assert len(told) == 1
    assert "its argument scale is another number" in told[0]


def test_the_last_call_says_which_number_was_another(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, Late, steps=9, logs="on-demand")
    assert step.reason == "its argument scale is another number than it was"


class AsTensor(Changing):
    """As the message says: the number is an input of the step."""

    def number(self, number: int) -> Any:
        return torch.tensor(0.05 * (number + 1))

    def function(self, batch: Any, scale: Any = None) -> Any:
        loss = self.loss(batch) * scale
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("logs", ["full", "on-demand"])
def test_a_number_in_a_tensor_is_an_input_of_the_step(tmp_path: Path, logs: str) -> None:
    step, _ = same_both_ways(tmp_path, AsTensor, logs=logs)
    assert step.compiled == AsTensor.steps - 3, step.reason
    transcript = Transcript.open(tmp_path / "compiled" / "run")
    entered = [transcript.batch(n)["1"].item() for n in range(1, AsTensor.steps + 1)]
    assert entered == [torch.tensor(0.05 * (n + 1)).item() for n in range(AsTensor.steps)]


def rate_of(number: int) -> float:
    """What a schedule sets before a step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for _ in range(number):
        optimizer.step()
        schedule.step()
    return float(optimizer.param_groups[0]["lr"])


class NearRate(Alternating):
    """A number that is one step of float64 beside the rate that the schedule comes to at step 10."""

    numbers = (math.nextafter(rate_of(10), 1), 0.3)
    steps = 12

    def more(self) -> list[Any]:
        return [torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)]


def test_a_number_that_comes_near_a_formula_is_recorded_as_in_a_plain_step(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, NearRate, logs="on-demand")
    assert step.compiled >= 3, step.reason


class Rows(dict[str, Tensor]):
    """A batch with a number beside its tensors."""

    scale: float


class Listed(list[Tensor]):
    scale: float


class Attribute(Late):
    """The number is an attribute of the batch."""

    def batch(self, number: int, rows: int = 6) -> Any:
        batch = self.made(super().batch(number, rows)[0])
        self.holder(batch).scale = self.number(number)
        return batch

    def made(self, batch: dict[str, Tensor]) -> Any:
        return Rows(batch)

    def holder(self, batch: Any) -> Any:
        return batch

    def function(self, batch: Any, scale: Any = None) -> Any:
        parts = batch if isinstance(batch, dict) else dict(zip("xy", batch, strict=True))
        return super().function(parts, self.holder(batch).scale)


class OfList(Attribute):
    def made(self, batch: dict[str, Tensor]) -> Any:
        return Listed([batch["x"], batch["y"]])


class Slotted(dict[str, Tensor]):
    __slots__ = ("scale",)
    scale: float


class OfSlots(Attribute):
    def made(self, batch: dict[str, Tensor]) -> Any:
        return Slotted(batch)


class OfTensor(Attribute):
    def made(self, batch: dict[str, Tensor]) -> Any:
        return batch

    def holder(self, batch: Any) -> Any:
        return batch["x"]


@pytest.mark.parametrize("kind", [Attribute, OfList, OfSlots, OfTensor])
def test_a_number_beside_the_items_of_an_argument_is_one_of_its_numbers(tmp_path: Path, kind: type[Scaled]) -> None:
    step, _ = same_both_ways(tmp_path, kind, logs="on-demand")
    assert step.compiled == 5, step.reason


class OfNumpy(Changing):
    def number(self, number: int) -> Any:
        return np.float64(0.1)


def test_what_cannot_be_compared_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"its argument scale is a float64 of numpy; pass tensors"):
        recorded(tmp_path / "run", OfNumpy, compiled=True, logs="on-demand")


def test_a_refused_number_leaves_a_transcript_of_the_calls_before(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=3, device="cpu") as recorder:
        with recorder.initialisation():
            program: Program = Changing()
        recorder.attach(program.model, program.optimizer)
        step = recorder.compile(program.function)
        for number in range(NUMBERS + 4):
            step(*program.batch(number))
        with pytest.raises(CompileError):
            step(*program.batch(NUMBERS + 4))
        with recorder.step(batch := program.batch(NUMBERS + 4)):
            program.function(*batch)
    assert Transcript.open(tmp_path / "run").steps == NUMBERS + 6


# -- what is compared --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Slots:
    x: Tensor
    rate: float


def parts(*args: Any) -> list[Any]:
    return without_tensors(args, ["batch", "*rest"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        (None, "None"),
        ({"a": {}, "b": 1}, {"a": {"b": 1}}),
        ([[], 1], [[1]]),
        ({1: 0}, {True: 0}),
        ([1], (1,)),
        (math.nan, -math.nan),
        (1 << 5000, (1 << 5000) + 1),
    ],
)
def test_other_arguments_are_other_parts(one: Any, other: Any) -> None:
    assert parts(one) == parts(one)
    assert parts(one) != parts(other)


def test_private_notes_that_cannot_be_compared_are_left_out() -> None:
    one, other, circle = Rows(x=torch.ones(1)), Rows(x=torch.ones(1)), Rows()
    assert parts(one) == parts(other)
    one._notes = object()  # type: ignore[attr-defined]
    assert parts(one) == parts(other)
    one._notes = 2  # type: ignore[attr-defined]
    assert parts(one) != parts(other)
    one.notes = object()  # type: ignore[attr-defined]
    with pytest.raises(NotPlainError, match=r"its argument batch\.notes is a object of builtins"):
        parts(one)
    circle.circle = circle  # type: ignore[attr-defined]
    with pytest.raises(NotPlainError, match="nested deeper than 32"):
        parts(circle)


def test_a_number_that_is_none_is_itself() -> None:
    assert parts(float("nan")) == parts(float("nan"))


def test_a_number_knows_its_place() -> None:
    one = parts({"x": torch.ones(2)}, Slots(torch.ones(1), 0.5), [1, 2])
    other = parts({"x": torch.ones(2)}, Slots(torch.ones(1), 0.25), [1, 3])
    at = numbers_apart(one, other)
    assert at is not None
    assert [one[index].place for index in at] == ["rest[0].rate", "rest[1][1]"]
    assert numbers_apart(one, one[:-1]) is None
    assert numbers_apart(parts("a"), parts("b")) is None


def test_names_are_those_of_the_parameters() -> None:
    def function(batch: Any, /, rate: float, *others: int, key: int = 0) -> None: ...

    assert names_of(function) == ["batch", "rate", "*others"]
    assert names_of(max) == []
    with pytest.raises(NotPlainError, match="its argument number 1 is a complex of builtins"):
        without_tensors((1, 2j))
