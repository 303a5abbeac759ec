"""The benchmark of audits measures replays that match, and notices two that have different digests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from benchmarks import bench_audits as bench
from benchmarks import machine, tables_audits
from weighbridge.execution.replay_answer import ReplayResult


def test_replays_are_measured_and_their_digests_compared(
    recordings: RecordingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support import audited

    run = recordings.get("audited", audited.record)
    with workers_here():
        found = bench.measure(run, 1)
    assert found["steps"] == 9
    result = {**machine.about(), "load_before": 0.0, "rounds": 1, "trainings": [found]}
    assert f"| 9 | {min(found['seconds']['plain']):.1f} |" in tables_audits.audits(result)
    plain = bench.replay

    def other(path: Path, **options: Any) -> ReplayResult:
        made = plain(path, **options)
        return made if options["env"] == machine.HERE else replace(made, work="00" * 32)

    monkeypatch.setattr(bench, "replay", other)
    with workers_here(), pytest.raises(RuntimeError, match="different digests"):
        bench.measure(run, 1)
    monkeypatch.setattr(bench, "replay", lambda path, **options: replace(plain(path, **options), verdict="mismatch"))
    with workers_here(), pytest.raises(RuntimeError, match="mismatch"):
        bench.measure(run, 1)
