"""More chips for a shorter time: theorem 1 and lemma 1, with the derivative as it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.spread import lemma_1, lemma_1_slope, spread_probability

A = 8.64e19


@given(st.integers(0, 10**5), st.floats(1e20, 1e24), st.floats(1, 30), st.floats(1e-4, 10))
def test_theorem_1_shorter_on_more_chips_is_no_harder_to_see(s: int, flops: float, days: float, rate: float) -> None:
    common = {"samples": s, "flops_threshold": flops, "chip_flops_per_day": A, "chips": 10**5}
    try:
        short = spread_probability(days_per_chip=days, snapshot_rate_per_day=rate, **common)
    except InfeasibleError:
        assert flops > A * days * 10**5
        return
    assert short >= float(spread_probability(days_per_chip=30.0, snapshot_rate_per_day=rate, **common)) - 1e-12


@given(st.floats(1, 1e6), st.floats(1e-12, 1 - 1e-9))
def test_lemma_1_and_its_slope_are_never_negative(g: float, b: float) -> None:
    assert lemma_1(ratio=g, base=b) >= -1e-9 * g
    assert lemma_1_slope(ratio=g, base=b) >= -1e-15


@given(st.floats(1.5, 100), st.floats(1e-3, 0.999))
def test_the_slope_is_that_of_the_lemma(g: float, b: float) -> None:
    with mp.workdps(40):
        exact = mp.diff(lambda x: x * (1 - mp.mpf(b) ** (1 / x)) - (1 - mp.mpf(b)), mp.mpf(g))
    assert lemma_1_slope(ratio=g, base=b) == pytest.approx(float(exact), rel=1e-6, abs=1e-13)


def test_base_case_and_errors() -> None:
    assert lemma_1(ratio=1, base=0.3) == pytest.approx(0, abs=1e-15)
    for wrong in (0.9, math.inf, math.nan):
        with pytest.raises(DetectionDomainError, match="ratio"):
            lemma_1(ratio=wrong, base=0.3)
    with pytest.raises(DetectionDomainError, match="base"):
        lemma_1(ratio=2, base=1.0)
    certain = spread_probability(
        samples=1, flops_threshold=A * 30, chip_flops_per_day=A, chips=1, days_per_chip=30, snapshot_rate_per_day=1e9
    )
    assert certain == 1.0
