"""Longer training on fewer chips: the published ratios, and how they behave."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.domain import DetectionDomainError
from analysis.stretch import largest_fraction, stretch_limit, stretch_probability, stretch_ratio


@given(st.floats(0.01, 0.99), st.floats(1e-6, 0.999), st.floats(1, 1e6), st.floats(1, 100))
def test_stretching_helps_ever_less(p: float, b: float, k: float, more: float) -> None:
    slow = float(stretch_probability(probability=p, involved_fraction=b, stretch=k))
    slower = float(stretch_probability(probability=p, involved_fraction=b, stretch=k * more))
    limit = float(stretch_limit(probability=p, involved_fraction=b))
    assert p * (1 + 1e-12) >= slow >= slower * (1 - 1e-12)
    assert slower >= limit * (1 - 1e-12) > 0


@given(st.floats(1e-3, 0.9), st.integers(1, 40), st.integers(1, 30))
def test_it_is_what_sampling_the_stretched_run_gives(b: float, samples: int, k: int) -> None:
    wanted = 1 - (1 - b) ** samples
    if not 0 < wanted < 1 - 1e-9:
        return
    found = stretch_probability(probability=wanted, involved_fraction=b, stretch=k)
    assert found == pytest.approx(1 - (1 - b / k) ** (k * samples), rel=1e-6)


def test_the_limit_is_a_poisson_probability() -> None:
    b, s = 0.2, math.log(0.1) / math.log(0.8)
    assert stretch_limit(probability=0.9, involved_fraction=b) == pytest.approx(1 - math.exp(-b * s), rel=1e-12)
    assert stretch_limit(probability=0.9, involved_fraction=b) / 0.9 == pytest.approx(0.9700, abs=5e-5)


@pytest.mark.parametrize(("p", "b"), [(0.9, 0.307), (0.5, 0.139), (0.99, 0.661)])
def test_where_the_loss_passes_five_percent(p: float, b: float) -> None:
    found = float(largest_fraction(probability=p, stretch=100, loss=0.05))
    assert found == pytest.approx(b, abs=1e-3)
    assert stretch_ratio(probability=p, involved_fraction=found, stretch=100) == pytest.approx(0.95, abs=1e-9)


def test_a_loss_that_is_never_reached() -> None:
    assert largest_fraction(probability=0.5, stretch=1, loss=0.05) == 1.0


def test_grid_and_errors() -> None:
    grid = stretch_ratio(probability=0.9, involved_fraction=np.array([[0.5], [0.9]]), stretch=np.array([1, 100]))
    assert grid == pytest.approx(np.array([[1, 0.901], [1, 0.661]]), abs=1e-3)
    for wrong in (0.5, math.nan, -1):
        with pytest.raises(DetectionDomainError, match="stretch"):
            stretch_probability(probability=0.9, involved_fraction=0.1, stretch=wrong)
    with pytest.raises(DetectionDomainError, match="involved_fraction"):
        stretch_probability(probability=0.9, involved_fraction=1.0, stretch=2)
