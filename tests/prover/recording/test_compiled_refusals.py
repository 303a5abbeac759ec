"""Functions that cannot be compiled steps, and the reasons that are given."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prover import Recorder
from prover.recording.compile_refusal import CompileError
from tests.support.compiled_programs import CHANGED, Program, Quick, recorded
from weighbridge.transcript.reader import Transcript

pytestmark = pytest.mark.filterwarnings("ignore")


class Reads(Quick):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        return self.loss(batch).item()


class ReadsByNumPy(Quick):
    def function(self, batch: Any) -> Any:
        float(self.loss(batch).detach().numpy())
        super().function(batch)


class Counts(Quick):
    count = 0

    def function(self, batch: Any) -> Any:
        self.count += 1
        super().function(batch)


class Hidden(Quick):
    """Decides by something that no look sees."""

    def function(self, batch: Any) -> Any:
        if os.environ.get("WEIGHBRIDGE_TEST_HIDDEN") == "1":
            batch = {**batch, "x": batch["x"] * 2}
        super().function(batch)

    def after(self, number: int) -> None:
        os.environ["WEIGHBRIDGE_TEST_HIDDEN"] = str(number % 2)


class Iterates(Quick):
    numbers = itertools.count()

    def function(self, batch: Any) -> Any:
        next(self.numbers)
        super().function(batch)


class Pops(Quick):
    def function(self, batch: Any) -> Any:
        batch["z"] = 1
        super().function(batch)


class Draws(Quick):
    def function(self, batch: Any) -> Any:
        random.random()
        super().function(batch)


class SetsRate(Quick):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        self.optimizer.param_groups[0]["lr"] *= 0.9


class OwnSchedule(Quick):
    def after(self, number: int) -> None:
        self.optimizer.param_groups[0]["lr"] *= 1.0 - 0.3 * random.Random(number).random()


class OwnOptimizer(Quick):
    def optimize(self) -> torch.optim.Optimizer:
        return torch.optim.RAdam(self.model.parameters(), lr=1e-2)


class KeepsGraph(Quick):
    def function(self, batch: Any) -> Any:
        return self.loss(batch)


ONES = np.ones((6, 8), dtype=np.float32)


class TakesIn(Quick):
    def function(self, batch: Any) -> Any:
        x = batch["x"] + torch.from_numpy(ONES)
        super().function({**batch, "x": x})


class Masks(Quick):
    def function(self, batch: Any) -> Any:
        chosen = batch["y"] < 3
        super().function({"x": batch["x"][chosen], "y": batch["y"][chosen]})


class Returns(Quick):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        return self.model


class Seeds(Quick):
    def function(self, batch: Any) -> Any:
        torch.manual_seed(5)
        super().function(batch)


REFUSALS: dict[type[Program], str] = {
    ReadsByNumPy: r"looks at a result \(numpy\)",
    Iterates: "leads to a count",
    Hidden: "decides by something",
    Pops: "changes its arguments",
    Counts: r"it changes .*count; do that outside",
    Draws: "draws random numbers of Python's",
    SetsRate: "it sets a number",
    OwnSchedule: "lr of an optimizer changes from step to step by no",
    OwnOptimizer: "RAdam",
    KeepsGraph: "outlives it",
    TakesIn: "neither state nor",
    Masks: "shape of what index",
    Returns: "it returns a Sequential",
    Seeds: "it seeds",
}


@pytest.mark.finding("record.compile.refused")
@pytest.mark.parametrize("kind", REFUSALS)
def test_what_no_tape_says_is_refused_before_anything_is_done(tmp_path: Path, kind: type[Program]) -> None:
    with pytest.raises(CompileError, match=REFUSALS[kind]) as refusal:
        recorded(tmp_path / "run", kind, compiled=True, steps=7, logs="on-demand")
    assert refusal.value.reason == "record.compile.refused"


def test_a_refused_function_is_recorded_as_it_is(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=3, device="cpu") as recorder:
        program = Reads()
        recorder.attach(program.model, program.optimizer)
        step = recorder.compile(program.function)
        for number in range(6):
            try:
                step(program.batch(number))
            except CompileError:
                with recorder.step(program.batch(number)):
                    program.function(program.batch(number))
    assert Transcript.open(tmp_path / "run").steps == 7


def test_a_function_that_cannot_be_compiled_later_is_recorded_with_a_warning(tmp_path: Path) -> None:
    def reads(program: Program, number: int, recorder: Recorder) -> None:
        if number == CHANGED:
            program.loss = lambda batch: Program.loss(program, batch) * float(batch["x"].max())  # type: ignore[method-assign]

    _, step, _ = recorded(tmp_path / "run", Quick, compiled=True, steps=CHANGED + 7, disturb=reads, logs="on-demand")
    assert step is not None
    assert step.compiled == CHANGED - 3
    assert "looks at a result" in step.reason


@pytest.mark.parametrize("device", [None, "meta"])
def test_other_devices_are_refused(tmp_path: Path, device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    recorder = Recorder(tmp_path / "run", seed=3, device=device)
    with pytest.raises(CompileError, match="CPU"):
        recorder.compile(lambda batch: None)
