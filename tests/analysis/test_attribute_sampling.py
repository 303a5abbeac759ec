"""Attribute sampling of any population: the exact size by brute force, and the approximations beside it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.attribute_sampling import (
    sample_size_binomial,
    sample_size_exact,
    sample_size_iaea,
    sample_size_iaea_refined,
)
from analysis.domain import DetectionDomainError, InfeasibleError


@settings(deadline=None)
@given(st.integers(1, 150), st.data())
def test_exact_is_the_smallest_that_reaches_the_probability(population: int, data: st.DataObject) -> None:
    defects = data.draw(st.integers(1, population))
    wanted = data.draw(st.integers(1, 999)) / 1000
    brute = next(
        n
        for n in range(population + 1)
        if 1 - Fraction(math.comb(population - defects, n), math.comb(population, n))
        >= Fraction(wanted) - Fraction(1, 10**13)
    )
    assert sample_size_exact(population=population, defects=defects, probability=wanted) == brute


@settings(deadline=None)
@given(st.integers(1, 10**5), st.integers(1, 1000), st.floats(0.05, 0.99))
def test_the_iaea_formula_is_never_too_small(population: int, defects: int, wanted: float) -> None:
    at = {"population": population, "defects": min(defects, population), "probability": wanted}
    exact = float(sample_size_exact(**at))
    assert exact <= sample_size_iaea(**at)
    assert exact <= sample_size_binomial(**at)
    assert sample_size_iaea_refined(**at) <= sample_size_iaea(**at)


def test_known_sizes() -> None:
    at = {"population": 1000, "defects": 10, "probability": 0.9}
    sizes = [f(**at) for f in (sample_size_exact, sample_size_iaea, sample_size_iaea_refined, sample_size_binomial)]
    assert sizes == [205, 206, 205, 230]
    assert sample_size_iaea(population=100, defects=1, probability=0.25) == 25
    assert sample_size_binomial(population=10, defects=10, probability=0.9) == 1


def test_unrecognised_defects_need_more_and_may_be_out_of_reach() -> None:
    at = {"population": 1000, "defects": 10, "probability": 0.9}
    assert sample_size_exact(identified=0.5, **at) > 2 * sample_size_exact(**at) * 0.9
    assert sample_size_binomial(identified=0.5, **at) == math.ceil(math.log(0.1) / math.log(0.995))
    with pytest.raises(InfeasibleError, match="drawing every item"):
        sample_size_exact(identified=0.1, **at)


def test_broadcasting_and_errors() -> None:
    found = sample_size_exact(population=[100, 1000], defects=10, probability=[[0.2], [0.9]])
    assert found.shape == (2, 2)
    assert np.all(found[0] < found[1])
    with pytest.raises(DetectionDomainError, match="defects"):
        sample_size_iaea(population=10, defects=11, probability=0.9)
    with pytest.raises(DetectionDomainError, match="identified"):
        sample_size_binomial(population=10, defects=1, probability=0.9, identified=0)
