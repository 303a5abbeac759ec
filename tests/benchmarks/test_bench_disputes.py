"""The benchmark of disputes plays what it says, and notices a referee that rules otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.workers_here import workers_here

from benchmarks import bench_disputes as bench
from benchmarks import machine, tables_disputes
from weighbridge.execution.dispute.messages import START, Ruling, signed


def test_a_dispute_is_measured_and_its_ruling_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CHECKPOINT_EVERY", 2)
    bench.record(tmp_path / "run", 2)
    rulings: list[Ruling] = []
    plain = bench.ruling
    monkeypatch.setattr(bench, "ruling", lambda said: rulings.append(plain(said)) or rulings[-1])
    with workers_here():
        found = bench.measure(tmp_path / "run", 1)
    assert (found["steps"], found["messages"]) == (2, {"challenger": 3, "defender": 3})
    assert found["bytes"]["course"] == 64 * 3
    assert found["bytes"]["leaves"] == 32 * (found["operations"] + 2)
    assert found["bytes"]["challenger"] > found["bytes"]["leaves"] + found["bytes"]["opening"]
    result = {**machine.about(), "load_before": 0.0, "rounds": 1, "trainings": [found]}
    assert f"| 2 | {found['operations']:,} | {found['operation']} | 6 |" in tables_disputes.disputes(result)
    honest, false = rulings[-1].claims
    for claims in ([honest], [honest, (1, "admissible", *false[2:])], []):
        with pytest.raises(RuntimeError, match="lies"):
            plain(signed(START, replace(rulings[-1], claims=claims), bench.REFEREE))
    with pytest.raises(RuntimeError, match="lies"):
        plain(None)
