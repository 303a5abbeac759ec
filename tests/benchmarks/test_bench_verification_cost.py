"""What the benchmark of verification's cost makes of its measurements: arithmetic that `analysis` confirms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.detection import detection_probability_hypergeometric
from analysis.economics import replayed_fraction
from benchmarks import bench_verification_cost as bench
from benchmarks import machine, tables_inspection


def run(rate: float) -> dict[str, Any]:
    return {
        "rate": rate, "days": 30.0, "recorded_step_cpu_s": 0.5, "snapshots": {}, "findings": {}, "replays": 3,
        "replayed_steps": 20, "replay_cpu_s": 18.0, "rest_cpu_s": 6.0,
    }  # fmt: skip


MODEL: dict[str, Any] = {
    "steps": 240, "checkpoint_every": 12, "plain_step_cpu_s": 0.1, "replay_step_cpu_s": 0.4, "segment_cpu_s": 7.2,
    "runs": [run(0.05), run(0.3)],
}  # fmt: skip


def test_a_plan_costs_what_its_drawn_chips_cost_and_catches_what_it_promises() -> None:
    plans = bench.plans(MODEL)
    assert len(plans) == 2 * len(bench.PROBABILITIES)
    for plan, wanted in zip(plans, 2 * bench.PROBABILITIES, strict=True):
        due = {0.05: 1.5, 0.3: 9}[plan["rate"]]
        assert plan["cost"] == pytest.approx(plan["samples"] / bench.CHIPS * (due * 18 / 3 + 6) / (240 * 0.1))
        fewer = detection_probability_hypergeometric(
            samples=plan["samples"] - 1, flops_threshold=bench.INVOLVED * bench.CHIP_FLOPS_PER_DAY * bench.PERIOD_DAYS,
            chip_flops_per_day=bench.CHIP_FLOPS_PER_DAY, chips=bench.CHIPS, run_days=bench.PERIOD_DAYS,
            snapshot_rate_per_day=plan["rate"],
        )  # fmt: skip
        assert float(fewer) < wanted <= plan["p"]


def test_segments_are_counted_and_paid_for() -> None:
    found = bench.segments(MODEL)
    assert [(each["segments"], each["false"], each["drawn"]) for each in found] == [
        (20, 2, 6),
        (20, 2, 14),
        (20, 2, 18),
    ]
    assert [each["p"] for each in found] == pytest.approx([1 - 14 * 13 / 380, 1 - 6 * 5 / 380, 1 - 2 / 380])
    assert found[0]["cost"] == pytest.approx(6 * 7.2 / 24)


def test_larger_runs_replay_half_of_what_lies_between_checkpoints() -> None:
    """A step a minute, each snapshot replayed on its own rank: `analysis` has the same, but for half a step."""
    steps = {"big": {"milliseconds": {"plain": {"median": 10.0}, "replayed": {"median": 25.0}}}}
    rare, often = bench.larger(steps, share=0.01, rate=0.1)[::-1]
    assert rare["cost"] / often["cost"] == bench.CHECKPOINT_HOURS[1] / bench.CHECKPOINT_HOURS[0]
    fraction = replayed_fraction(
        samples=10, chips=1000, job_chips=1000, snapshots_per_chip=3, segment_steps=120, steps=30 * 24 * 60,
        ranks_replayed=1,
    )  # fmt: skip
    assert rare["cost"] == pytest.approx(2.5 * float(fraction) * 120 / 121)


def test_the_figure_and_the_table_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "FIGURE", tmp_path / "figures" / "cost.svg")
    models = {"gpt2": MODEL | {"plans": bench.plans(MODEL), "segments": bench.segments(MODEL)}}
    bench.plot(models)
    first = bench.FIGURE.read_bytes()
    assert b"<svg" in first
    bench.plot(models)
    assert bench.FIGURE.read_bytes() == first, "the same result gives the same figure"
    steps = {"big": {"milliseconds": {"plain": {"median": 10.0}, "replayed": {"median": 25.0}}}}
    result = {
        **machine.about(), "load_before": 0.0, "period_days": 30.0, "chips": bench.CHIPS, "involved": bench.INVOLVED,
        "models": models, "larger": bench.larger(steps, share=0.01, rate=0.1),
    }  # fmt: skip
    text = tables_inspection.verification_cost(result)
    assert "| gpt2, 0.3 a day | 30.0 | 3 | 20 | 24.0 | 5.0 | 18.0 | 6.0 | 1.00 |" in text
    assert "| big | 2.50 | 2 |" in text
