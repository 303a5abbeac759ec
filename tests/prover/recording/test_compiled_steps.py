"""Steps that run as programs while they are recorded: the transcript is the one of the same steps one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from prover import Recorder
from tests.support.compiled_programs import (
    Accumulating,
    Autocast,
    Brain,
    Checkpointed,
    Gpt2,
    GradientsStay,
    Images,
    Program,
    Quick,
    Warming,
    Wild,
    content,
    recorded,
    same_both_ways,
)

pytestmark = pytest.mark.filterwarnings("ignore")

KINDS = (Program, Images, GradientsStay, Accumulating, Autocast, Brain, Wild, Warming, Checkpointed, Gpt2)

ESSENTIAL = {(Program, "full"), (Images, "on-demand"), (Autocast, "on-demand")}


@pytest.mark.parametrize(
    ("kind", "logs"),
    [
        pytest.param(kind, logs, marks=[pytest.mark.essential] if (kind, logs) in ESSENTIAL else [])
        for kind in KINDS
        for logs in ("full", "on-demand")
    ],
)
def test_compiled_steps_leave_the_transcript_and_the_python_of_plain_ones(
    tmp_path: Path, kind: type[Program], logs: str
) -> None:
    step, _ = same_both_ways(tmp_path, kind, logs=logs)
    assert step.compiled >= 2, step.reason
    assert step.recorded + step.compiled == kind.steps


class Shuffled(Images):
    """Its batches are drawn outside of steps from the generator that steps with dropout would draw from."""

    def batch(self, number: int, rows: int = 4) -> Any:
        return super().batch(int(torch.randint(1000, ())), rows)


def test_draws_between_steps_go_on_as_they_would(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, Shuffled, logs="on-demand")
    assert step.compiled >= 3, step.reason


def test_every_structure_has_a_program_of_its_own(tmp_path: Path) -> None:
    def turns(program: Program, number: int, recorder: Recorder) -> Any:
        return program.batch(number, rows=6 if number % 2 else 4)

    step, _ = same_both_ways(tmp_path, Quick, disturb=turns, steps=10, logs="on-demand")
    assert step.compiled == 5, step.reason


@pytest.mark.parametrize("logs", ["full", "on-demand"])
def test_a_recording_of_compiled_steps_goes_on_after_a_crash(tmp_path: Path, logs: str) -> None:
    recorded(tmp_path / "plain" / "run", Program, compiled=False, logs=logs, steps=14)
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path / "again" / "run", Program, compiled=True, logs=logs, steps=14, resume=True, stop=7)
    _, step, _ = recorded(tmp_path / "again" / "run", Program, compiled=True, logs=logs, steps=14, resume=True)
    assert step is not None
    assert step.compiled
    again = content(tmp_path / "again" / "run")
    assert again.pop("resumptions.cbor")
    assert again == content(tmp_path / "plain" / "run")
