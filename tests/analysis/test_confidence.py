"""Bounds after k findings: against their definition, in exact fractions, and their coverage."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.confidence import clopper_pearson, hypergeometric_bounds, largest_hidden_run
from analysis.domain import DetectionDomainError, InfeasibleError


def at_most(k: int, marked: int, drawn: int, total: int) -> Fraction:
    return sum(
        (
            Fraction(math.comb(marked, j) * math.comb(total - marked, drawn - j), math.comb(total, drawn))
            for j in range(k + 1)
            if j <= drawn
        ),
        Fraction(0),
    )


@settings(deadline=None)
@given(st.integers(1, 80), st.data())
def test_hypergeometric_bounds_are_exactly_what_the_sample_does_not_contradict(total: int, data: st.DataObject) -> None:
    drawn = data.draw(st.integers(1, total))
    found = data.draw(st.integers(0, drawn))
    confidence = data.draw(st.sampled_from([0.4871, 0.9013, 0.9507, 0.9903]))  # never tied with a ratio
    tail = Fraction((1 - confidence) / 2)
    fitting = [
        m
        for m in range(found, total - (drawn - found) + 1)
        if at_most(found, m, drawn, total) > tail and 1 - at_most(found - 1, m, drawn, total) > tail
    ]
    low, high = hypergeometric_bounds(found=found, samples=drawn, chips=total, confidence=confidence)
    assert (low, high) == (min(fitting), max(fitting))


@given(st.integers(1, 60), st.data())
def test_clopper_pearson_bounds_have_exactly_the_tail_on_either_side(drawn: int, data: st.DataObject) -> None:
    found = data.draw(st.integers(0, drawn))
    low, high = (float(v) for v in clopper_pearson(found=found, samples=drawn, confidence=0.9))

    def tail(fraction: float, counts: range) -> float:
        return sum(math.comb(drawn, j) * fraction**j * (1 - fraction) ** (drawn - j) for j in counts)

    assert (low == 0) if found == 0 else tail(low, range(found, drawn + 1)) == pytest.approx(0.05, rel=1e-9)
    assert (high == 1) if found == drawn else tail(high, range(found + 1)) == pytest.approx(0.05, rel=1e-9)


def test_rule_of_three_and_large_fleets_agree() -> None:
    _, high = clopper_pearson(found=0, samples=1000, confidence=0.9)
    assert high == pytest.approx(3 / 1000, rel=5e-3)
    low, most = hypergeometric_bounds(found=3, samples=1000, chips=10**9, confidence=0.9)
    bottom, top = clopper_pearson(found=3, samples=1000, confidence=0.9)
    assert low == pytest.approx(float(bottom) * 1e9, rel=1e-4)
    assert most == pytest.approx(float(top) * 1e9, rel=1e-4)


def test_every_chip_sampled_leaves_no_doubt() -> None:
    assert hypergeometric_bounds(found=7, samples=100, chips=100, confidence=0.99) == (7, 7)


def test_the_intervals_cover_what_they_promise() -> None:
    for marked in (0, 1, 5, 50, 199):
        hits = np.random.default_rng(marked).hypergeometric(marked, 200 - marked, 40, 3000)
        table = [hypergeometric_bounds(found=k, samples=40, chips=200, confidence=0.9) for k in range(41)]
        covered = np.array([low <= marked <= high for low, high in table])[hits].mean()
        assert covered >= 0.9 - 3 * math.sqrt(0.09 / 3000)


def test_largest_hidden_run_and_broadcasting() -> None:
    _, most = hypergeometric_bounds(found=[0, 1], samples=100, chips=1000, confidence=0.8)
    flops = largest_hidden_run(chips_in_violation=most, chip_flops_per_day=2.0, run_days=30.0, snapshot=0.5)
    assert flops.tolist() == (most * 120).tolist()
    assert most[0] < most[1]


def test_errors() -> None:
    with pytest.raises(DetectionDomainError, match="found"):
        clopper_pearson(found=2, samples=1, confidence=0.9)
    with pytest.raises(InfeasibleError, match="different chips"):
        hypergeometric_bounds(found=1, samples=11, chips=10, confidence=0.9)
    with pytest.raises(DetectionDomainError, match="confidence"):
        clopper_pearson(found=0, samples=1, confidence=1.0)
