"""Counts of rounding logs by shape: recorded as the script records them, and what the committed ones say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.benchmark_results import log_sizes
from analysis.economics import Shape as Counted
from analysis.economics import fit_counts
from benchmarks.bench_shapes import POLICIES, SHAPES, Shape, measure

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_a_recorded_shape_is_counted_as_the_committed_fit_says() -> None:
    found = measure(Shape(layers=1, width=64, heads=2, context=32, rows=1, vocabulary=64), "fp32 strict")
    _, sizes = log_sizes(RESULTS)
    rows = sizes["fp32 strict"]
    fit = fit_counts([row.shape for row in rows], [row.elements for row in rows])
    per_step = found["rounded"] / found["steps"]
    shape = Counted(found["parameters"], 1, 64, 2, 32, 64, 32)
    assert fit.of(shape) == pytest.approx(per_step, rel=0.1)
    assert 0 < found["logged"] < 0.01 * found["rounded"]
    assert found["log_bytes"] > 0


def test_every_shape_was_measured() -> None:
    precisions = json.loads((RESULTS / "shapes.json").read_text())["precisions"]
    assert set(precisions) == set(POLICIES)
    for rows in precisions.values():
        assert [Shape(**{name: row[name] for name in Shape.__dataclass_fields__}) for row in rows] == list(SHAPES)
