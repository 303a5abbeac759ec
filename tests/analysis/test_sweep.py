"""Grids of scenarios, and the places in them that cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.detection import samples_needed
from analysis.domain import DetectionDomainError, FloatArray, InfeasibleError
from analysis.sweep import axis, evaluate, grid


def test_axes() -> None:
    assert axis("1,2.5,1e3").tolist() == [1, 2.5, 1000]
    assert axis("1:3:5").tolist() == [1, 1.5, 2, 2.5, 3]
    assert axis("1:100:3:log").tolist() == pytest.approx([1, 10, 100])


@pytest.mark.parametrize(
    "text",
    ["", "a", "1:2", "1:2:x", "1:2:1", "1:2:3:lin", "1:2:3:log:log", "0:1:3:log", "1:inf:3", "1:2:1000001", "1,,2"],
)
def test_no_axes(text: str) -> None:
    with pytest.raises(DetectionDomainError):
        axis(text)


@given(st.text(max_size=30))
def test_any_text_is_an_axis_or_a_domain_error(text: str) -> None:
    try:
        values = axis(text)
    except DetectionDomainError:
        return
    assert values.ndim == 1
    assert values.size > 0


def test_grid_order_and_size() -> None:
    points = grid({"x": axis("1,2"), "y": axis("10,20,30")})
    assert points["x"].tolist() == [1, 1, 1, 2, 2, 2]
    assert points["y"].tolist() == [10, 20, 30, 10, 20, 30]
    with pytest.raises(DetectionDomainError, match="too many"):
        grid({"x": np.ones(1001), "y": np.ones(1000)})


def needed(chips: FloatArray, rate: FloatArray) -> FloatArray:
    return samples_needed(
        probability=0.9, flops_threshold=5.76e23, chip_flops_per_day=8.64e19, chips=chips, run_days=30.0,
        period_days=30.0, snapshot_rate_per_day=rate,
    )  # fmt: skip


def test_infeasible_points_are_empty_and_the_others_exact() -> None:
    points = grid({"chips": axis("100,200,1e3,1e5"), "rate": axis("0.1,1")})
    found = evaluate(needed, points)
    for place, (chips, rate) in enumerate(zip(points["chips"], points["rate"], strict=True)):
        if chips < 223:
            assert math.isnan(found[place])
        else:
            assert found[place] == float(needed(chips, rate))


def test_wrong_values_and_nothing_feasible_are_errors() -> None:
    with pytest.raises(DetectionDomainError, match="snapshot_rate_per_day"):
        evaluate(needed, grid({"chips": axis("100,1e5"), "rate": axis("0.1,-1")}))
    with pytest.raises(InfeasibleError, match="no run of"):
        evaluate(needed, grid({"chips": axis("100,200"), "rate": axis("0.1,1")}))
