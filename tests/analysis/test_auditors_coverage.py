"""Coverage by several auditors: the least union, and probabilities, each against enumeration or simulation."""

from __future__ import annotations

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.coverage import least_union, paid_off, seen_by_independent_draws, seen_in_sample
from analysis.domain import DetectionDomainError, InfeasibleError
from analysis.hypergeometric import seen_probability


@given(st.lists(st.sets(st.integers(0, 6), max_size=7), max_size=5), st.data())
def test_the_least_union_is_that_of_every_group(taken: list[set[int]], data: st.DataObject) -> None:
    honest = data.draw(st.integers(0, len(taken)))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=7, max_size=7))
    groups = [set(chain.from_iterable(group)) for group in combinations(taken, honest)]
    assert least_union(taken, honest) == min(len(each) for each in groups)
    assert least_union(taken, honest, sizes) == min(sum(sizes[segment] for segment in each) for each in groups)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 12))
def test_segments_held_by_more_than_the_dishonest_are_all_covered(auditors: int, copies: int, segments: int) -> None:
    """Each segment is held by `copies` auditors: if these are more than can be dishonest, every group covers it all."""
    copies = min(copies, auditors)
    taken: list[set[int]] = [set() for _ in range(auditors)]
    for segment in range(segments):
        for place in range(copies):
            taken[(segment + place) % auditors].add(segment)
    for honest in range(auditors + 1):
        covered = least_union(taken, honest)
        assert covered == segments if auditors - honest < copies else covered < segments or segments < auditors


def test_auditors_that_share_everything_cover_no_more_than_one() -> None:
    assert least_union([{0, 1}, {0, 1}, {0, 1}], 2) == 2
    assert least_union([{0, 1}, set(), {2}], 1) == 0
    assert least_union([], 0) == 0


def test_independent_draws_by_enumeration() -> None:
    """Three auditors draw two of five segments each; every outcome is as likely as any other."""
    draws = list(combinations(range(5), 2))
    outcomes = list(product(draws, repeat=3))
    hit = sum(any(0 in each for each in outcome) for outcome in outcomes) / len(outcomes)
    assert seen_by_independent_draws(taken=2 / 5, honest=3) == pytest.approx(hit, abs=1e-12)


def test_independent_draws_by_simulation() -> None:
    random = np.random.default_rng(5)
    drawn = random.random((20_000, 4, 1)) < 0.3
    assert seen_by_independent_draws(taken=0.3, honest=4) == pytest.approx(drawn.any(axis=1).mean(), abs=0.015)


def test_independent_draws_at_the_ends() -> None:
    assert seen_by_independent_draws(taken=[0, 1, 1, 0.5], honest=[3, 1, 0, 0]).tolist() == [0, 1, 0, 0]
    assert seen_by_independent_draws(taken=1e-12, honest=1) == pytest.approx(1e-12, rel=1e-9)


@given(st.integers(1, 8), st.data())
def test_a_sample_by_enumeration(segments: int, data: st.DataObject) -> None:
    bad, replayed = data.draw(st.integers(0, segments)), data.draw(st.integers(0, segments))
    samples = list(combinations(range(segments), replayed))
    hit = sum(any(each < bad for each in sample) for sample in samples) / len(samples)
    assert seen_in_sample(segments=segments, bad=bad, replayed=replayed) == pytest.approx(hit, abs=1e-12)
    general = seen_probability(population=segments, marked=bad, drawn=replayed, shown=1)
    assert seen_in_sample(segments=segments, bad=bad, replayed=replayed) == pytest.approx(float(general), abs=1e-9)


@given(st.lists(st.sets(st.integers(0, 4), max_size=3), max_size=4))
def test_whom_a_prover_has_to_pay_by_enumeration(holders: list[set[int]]) -> None:
    """The smallest group of auditors without whom each bad segment is held by no auditor."""
    groups = (set(group) for size in range(6) for group in combinations(range(5), size))
    assert paid_off(holders) == next(len(group) for group in groups if all(each <= group for each in holders))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="3 of 2"):
        least_union([{0}, {1}], 3)
    with pytest.raises(DetectionDomainError, match="no size"):
        least_union([{2}], 1, [1, 1])
    with pytest.raises(DetectionDomainError, match="more than"):
        least_union([{0}] * 40, 20)
    with pytest.raises(InfeasibleError, match="5 of 4"):
        seen_in_sample(segments=4, bad=5, replayed=1)
    with pytest.raises(DetectionDomainError, match="between 0 and 1"):
        seen_by_independent_draws(taken=1.5, honest=1)
