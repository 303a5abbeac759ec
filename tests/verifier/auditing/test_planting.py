"""Planted transcripts: every digest is right, one step is false, and only execution finds which."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import audited
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from verifier.auditing.planting import plant
from weighbridge.core.errors import UsageError
from weighbridge.execution.replay import replay
from weighbridge.transcript.reader import Transcript


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("audited", audited.record)


def test_one_step_is_false_and_all_digests_are_right(run: Path, tmp_path: Path) -> None:
    out, key = tmp_path / "planted", audited.key(9)
    plant(run, out, 5, key)
    honest, false = Transcript.open(run), Transcript.open(out)
    assert false.manifest.public == key.public
    assert (false.steps, false.checkpoint_steps) == (honest.steps, honest.checkpoint_steps)
    changed = [step for step in range(honest.steps) if honest.step(step) != false.step(step)]
    assert changed == [5]
    with workers_here():
        found = replay(out, steps=(5, 7))
        assert replay(out, steps=(3, 5)).verdict == replay(run, steps=(5, 7)).verdict == "match"
    assert found.verdict == "mismatch"
    assert found.first_difference is not None
    assert found.first_difference["step"] == 5


def test_what_cannot_be_planted_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="9 steps"):
        plant(run, tmp_path / "out", 9, audited.key(9))
    with pytest.raises(UsageError, match="cannot copy"):
        plant(run, tmp_path, 5, audited.key(9))
