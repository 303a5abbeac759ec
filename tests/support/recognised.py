"""Recorded trainings whose steps are recognised in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.recordings import Build, Step, replay_here, train

from prover.capture.claimed_training import ClaimedTraining
from weighbridge.execution.recognition.outcome import Summary, parse
from weighbridge.transcript.training_claims import Claims


def recognised(path: Path, build: Build, step: Step, batches: Iterable[Any], **options: Any) -> Summary:
    """Records a training, replays it, and recognises all of its steps."""
    train(path, build, step, batches, **options)
    return of(path)


def of(path: Path) -> Summary:
    """Recognises all steps of a recording."""
    result = replay_here(path, recognise=1 << 10)
    assert result["verdict"] == "match", (result["first_difference"], result["findings"])
    summary = Summary([parse(each) for each in result["recognised"]])
    assert summary.steps
    return summary


def reasons(summary: Summary) -> str:
    """All that is not recognised."""
    return "\n".join(reason for step in summary.steps for reason in step.reasons)


def claiming(monkeypatch: pytest.MonkeyPatch, change: Callable[[Claims], Claims]) -> None:
    """From here on, a Recorder writes other claims than it knows to be true."""
    true = ClaimedTraining.claims

    def false(self: ClaimedTraining) -> Claims | None:
        claims = true(self)
        return None if claims is None else change(claims)

    monkeypatch.setattr(ClaimedTraining, "claims", false)
