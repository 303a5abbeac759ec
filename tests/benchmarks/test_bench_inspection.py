"""The benchmark of whole inspections still runs, and what it measures is an inspection of honest chips."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_inspection, machine, tables_inspection
from benchmarks.bench_inspection import Size


@pytest.mark.soak
def test_a_small_fleet_is_inspected(tmp_path: Path) -> None:
    for name in ("bench", "chips"):
        (tmp_path / name).mkdir()
    result = bench_inspection.measure(tmp_path / "bench", tmp_path / "chips", Size(fleet=24, samples=6, replays=1))
    assert (result["verified"], result["accusing"]) == (6, 0)
    assert (result["replayed_chips"], result["snapshots"]) == (1, {"explained": bench_inspection.SNAPSHOTS})
    assert result["entries"] > 6 * 4, "each chip has several boots, and interrupts of a month"
    assert {"reports", "logs", "replays", "report"} <= set(result["phases"])
    assert all(phase["peak_bytes"] > 0 for phase in result["phases"].values())
    assert result["phases"]["replays"]["worker_peak_bytes"] > 0
    assert result["phases"]["replays"]["workers_cpu_s"] > 0
    assert "| 6 logs read, verified, judged, kept |" in tables_inspection.inspection({**machine.about(), **result})
