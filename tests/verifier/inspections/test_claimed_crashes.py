"""A Prover says that its run crashed and was resumed, so that it may show one moment of it at every interrupt."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import clean_runs
from support.exactly import alone
from support.forging import resign
from support.recording_store import RecordingStore
from support.written_chips import Bench

from weighbridge.transcript.resumption_notes import Resumption, encode
from weighbridge.transcript.writer import RESUMPTIONS


@pytest.fixture(scope="module")
def run(recordings: RecordingStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual honest run, which says that it crashed in its last step and was recomputed from the first."""
    path = clean_runs.honest(recordings, tmp_path_factory.mktemp("runs") / "run")
    (path / RESUMPTIONS).write_bytes(encode([Resumption(clean_runs.STEPS, 0)]))
    resign(path)
    return path


@pytest.mark.finding("snapshot.restarts")
def test_the_same_moment_at_every_interrupt_is_asked_about(bench: Bench, run: Path) -> None:
    chip = bench.written().told(run)
    for _ in range(5):
        chip.saw(run, 2, 5)
    alone(bench.inspected(run.parent, chip), "snapshot.restarts")


def test_a_run_that_did_crash_is_believed(bench: Bench, run: Path) -> None:
    chip = bench.written().told(run)
    for step, op in [(1, 5), (2, 5), (3, 5), (1, 5), (2, 5), (3, 5), (clean_runs.END, 0)]:
        chip.saw(run, step, op)
    assert bench.inspected(run.parent, chip)["findings"] == []
