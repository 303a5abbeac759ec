"""Programs that are fixed before the first step: a rehearsal of the same program names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import answer, weighbridge
from torch import nn

from prover import Recorder, formulas
from weighbridge.core.errors import Finding
from weighbridge.program.tape_checks import check
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

FORMULAS = formulas.constant(1e-2) | formulas.adamw()
WHOLE, LAST = 8, 3
"""Records in a batch, and in the last one of an epoch."""


def train(path: Path, epochs: int, *, seed: int, steps: int, extra: int = 0, **options: Any) -> Path:
    """An ordinary training: Adam, dropout, a last batch that is smaller, and an evaluation after each epoch.

    Args:
        path: The transcript.
        epochs: How often the data are used.
        seed: Of everything.
        steps: Steps of an epoch.
        extra: The step of the last epoch after which another program changes the weights; 0 for none.
        options: Of the Recorder.
    """
    source = torch.Generator().manual_seed(seed)
    with Recorder(path, seed=seed, formulas=FORMULAS, **options) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 2))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        held_out = torch.randn(5, 6, generator=source)
        for epoch in range(epochs):
            for number in range(1, steps + 1):
                x = torch.randn(LAST if number == steps else WHOLE, 6, generator=source)
                with recorder.step({"x": x}):
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if epoch == epochs - 1 and number == extra:
                        with torch.no_grad():
                            next(model.parameters()).mul_(0.5)
            with recorder.step({"x": held_out}), torch.no_grad():
                model(held_out).square().mean()
    return path


def undeclared(path: Path) -> list[Finding]:
    transcript = Transcript.open(path)
    _, found = check(transcript, lambda digest: Tape.decode(transcript.tape(digest)))
    return [finding for finding in found if finding.id == "tape.undeclared"]


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short epochs."""
    return train(tmp_path_factory.mktemp("runs") / "rehearsal", 2, seed=1, steps=4)


def test_programs_of_a_rehearsal_cover_a_longer_run_with_other_seed_and_data(rehearsal: Path, tmp_path: Path) -> None:
    """The way that the README tells."""
    programs = Transcript.open(rehearsal).programs()
    run = train(tmp_path / "run", 3, seed=2, steps=6, programs=programs)
    assert undeclared(run) == []
    assert set(Transcript.open(run).programs()) == set(programs)
    assert answer("show", run)["programs"] == "fixed in the draft, before the first step"


def test_a_program_that_was_not_rehearsed_is_a_violation(rehearsal: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, seed=2, steps=4, extra=3, programs=Transcript.open(rehearsal).programs())
    (found,) = undeclared(run)
    assert (found.severity, found.evidence["first"]) == ("violation", 8)


def test_without_a_rehearsal_it_shows_when_each_program_was_first_seen(rehearsal: Path, tmp_path: Path) -> None:
    """The first step of Adam, the last batch and the evaluation are programs of their own; so is one that is late."""
    run = train(tmp_path / "run", 2, seed=2, steps=4, extra=3)
    shown, honest = answer("show", run), answer("show", rehearsal)
    assert shown["programs"] == honest["programs"] == "not fixed in the draft"
    late = {step for digest, step in shown["first in step"].items() if digest not in honest["first in step"]}
    assert late == {8}
    assert {0, 1, 2, 4, 5} <= set(honest["first in step"].values())
    assert max(honest["first in step"].values()) < 8
    assert "not fixed in the draft" in weighbridge("tape", "show", run)[1]
