"""Sampling that stops early, against enumeration and simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.hypergeometric import seen_probability
from analysis.sequential import (
    expected_samples,
    expected_samples_with_replacement,
    sequential_test_lines,
    sequential_test_samples,
    sequential_verdict,
)

ERRORS = {"false_alarm": 0.05, "missed": 0.1}


@given(st.integers(1, 60), st.data())
def test_mean_is_the_sum_of_the_chances_to_have_seen_nothing(chips: int, data: st.DataObject) -> None:
    involved, samples = data.draw(st.integers(0, chips)), data.draw(st.integers(0, chips))
    shown = data.draw(st.sampled_from([0.0, 1e-9, 0.25, 0.75, 1.0]))
    at = {"chips": chips, "involved": involved, "shown": shown}
    summed = sum(
        1 - float(seen_probability(population=chips, marked=involved, drawn=i, shown=shown)) for i in range(samples)
    )
    assert expected_samples(samples=samples, **at) == pytest.approx(summed, rel=1e-10)


def test_all_chips_sampled_gives_the_negative_hypergeometric_mean() -> None:
    assert expected_samples(samples=1000, chips=1000, involved=9, shown=1.0) == pytest.approx(1001 / 10, rel=1e-12)


@given(st.integers(0, 50), st.integers(1, 99))
def test_with_replacement_equals_fractions(samples: int, percent: int) -> None:
    q = Fraction(percent, 100)
    exact = sum((1 - q) ** i for i in range(samples))
    assert expected_samples_with_replacement(samples=samples, hit=percent / 100) == pytest.approx(float(exact))


def test_the_sequential_test_keeps_its_error_rates_and_its_mean() -> None:
    """Wald's bounds: errors at most alpha/(1 - beta) and beta/(1 - alpha); the means are approximate."""
    plan = {"tolerable": 0.02, "intolerable": 0.2} | ERRORS
    slope, below, above = (float(v) for v in sequential_test_lines(**plan))
    generator = np.random.default_rng(4)
    for rate, wrong, limit, mean in (
        (0.02, 1, 0.05 / 0.9, float(sequential_test_samples(**plan)[0])),
        (0.2, -1, 0.1 / 0.95, float(sequential_test_samples(**plan)[1])),
    ):
        walk = np.cumsum((generator.random((4000, 600)) < rate) - slope, axis=1)
        outcome = np.where(walk >= above, 1, np.where(walk <= -below, -1, 0))
        stop = (outcome != 0).argmax(axis=1)
        verdict = outcome[np.arange(4000), stop]
        assert np.all(verdict != 0)
        assert (verdict == wrong).mean() <= limit + 3 * math.sqrt(limit / 4000)
        assert mean <= (stop + 1).mean() <= 1.6 * mean


def test_verdicts() -> None:
    plan = {"tolerable": 0.02, "intolerable": 0.2} | ERRORS
    assert sequential_verdict(found=0, sampled=[1, 5, 50], **plan).tolist() == [0, 0, -1]
    assert sequential_verdict(found=4, sampled=5, **plan) == 1


def test_errors() -> None:
    with pytest.raises(InfeasibleError):
        expected_samples(samples=11, chips=10, involved=1, shown=1.0)
    with pytest.raises(InfeasibleError):
        expected_samples(samples=1, chips=10, involved=11, shown=1.0)
    with pytest.raises(DetectionDomainError, match="larger than tolerable"):
        sequential_test_lines(tolerable=0.2, intolerable=0.2, **ERRORS)
    with pytest.raises(DetectionDomainError, match="less than 1"):
        sequential_test_lines(tolerable=0.1, intolerable=0.2, false_alarm=0.5, missed=0.5)
    with pytest.raises(DetectionDomainError, match="found"):
        sequential_verdict(found=2, sampled=1, tolerable=0.1, intolerable=0.2, **ERRORS)
