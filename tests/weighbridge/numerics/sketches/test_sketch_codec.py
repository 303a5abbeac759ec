"""The codec of the experiment on sketches finds what differs, or says that it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.numerics.sketches import fields, remainders
from weighbridge.numerics.sketches.codec import Capacity, FailedError, make, recover

Array = npt.NDArray[Any]
LIMIT = 0x7F80
EXAMPLES = settings(max_examples=40, deadline=None)


def outputs(seed: int, elements: int, near: int, far: int) -> tuple[Array, Array, Array, Array, Array, Array]:
    """An output as two machines round it, and the second one's candidates: recorded, own, candidates, low, high, up."""
    random = np.random.default_rng(seed)
    theirs = random.integers(-LIMIT, LIMIT + 1, elements)
    own = theirs.copy()
    chosen = random.permutation(elements)
    one, more = chosen[:near], chosen[near : near + far]
    own[one] = np.clip(own[one] + random.choice([-1, 1], len(one)), -LIMIT, LIMIT)
    own[more] = random.integers(-LIMIT, LIMIT + 1, len(more))
    at = np.sort(chosen[: max(near + far, elements // 2)])
    low, high = np.minimum(own, theirs)[at], np.maximum(own, theirs)[at]
    return theirs.astype(np.int16), own.astype(np.int16), at, low, high, (theirs > own)[at]


@EXAMPLES
@given(st.integers(0, 1 << 32), st.integers(1, 5000), st.integers(0, 9), st.integers(0, 3))
def test_whatever_differs_within_the_capacity_is_found(seed: int, elements: int, near: int, far: int) -> None:
    near, far = min(near, elements), min(far, max(0, elements - near))
    theirs, own, at, low, high, up = outputs(seed, elements, near, far)
    sketch = make(theirs, Capacity(12, 3))
    positions, values = recover(sketch, own, at, low, high, up)
    assert positions.tolist() == np.flatnonzero(theirs != own).tolist()
    assert values.tolist() == theirs[positions].tolist()


@EXAMPLES
@given(st.integers(0, 1 << 32), st.integers(1, 3000), st.integers(0, 5))
def test_the_second_stage_alone_finds_positions_and_values(seed: int, elements: int, count: int) -> None:
    theirs, own, at, low, high, up = outputs(seed, elements, 0, min(count, elements))
    positions, values = recover(make(theirs, Capacity(0, 5)), own, at, low, high, up)
    assert positions.tolist() == np.flatnonzero(theirs != own).tolist()
    assert values.tolist() == theirs[positions].tolist()


@EXAMPLES
@given(st.integers(0, 1 << 32), st.integers(1, 900), st.sampled_from([1, 3, 12]), st.sampled_from([10, 20]))
def test_remainders_have_the_power_sums_of_their_positions(
    seed: int, elements: int, capacity: int, degree: int
) -> None:
    values = np.random.default_rng(seed).integers(-(1 << 15), 1 << 15, elements).astype(np.int16)
    first, planes = remainders.divide(values, degree, capacity, capacity)
    f = fields.field(degree)
    for bit, found in ((0, first), (7, planes[7]), (15, planes[15])):
        where = np.flatnonzero(values.view(np.uint16) >> bit & 1)
        sums = [int(np.bitwise_xor.reduce(f.power[where * j % f.order], initial=0)) for j in range(1, 2 * capacity + 1)]
        assert remainders.power_sums(found, degree, capacity).tolist() == sums


def test_more_differences_than_the_capacity_are_no_answer() -> None:
    for seed in range(20):
        theirs, own, at, low, high, up = outputs(seed, 4000, 12, 0)
        with pytest.raises(FailedError, match=r"differ|contested"):
            recover(make(theirs, Capacity(6, 2)), own, at, low, high, up)


def test_a_recorded_value_that_the_replayer_could_not_have_rounded_to_is_no_answer() -> None:
    theirs, own, at, low, high, up = outputs(3, 4000, 3, 0)
    forged = theirs.copy()
    outside = np.setdiff1d(np.arange(4000), at)[:1]
    forged[outside] ^= 1
    with pytest.raises(FailedError, match="not all contested"):
        recover(make(forged, Capacity(8, 2)), own, at, low, high, up)
    forged = theirs.copy()
    forged[at[:1]] = np.where(theirs[at[:1]] > 0, theirs[at[:1]] - 1000, theirs[at[:1]] + 1000)
    with pytest.raises(FailedError, match="could not have rounded to"):
        recover(make(forged, Capacity(8, 2)), own, at, low, high, up)


@EXAMPLES
@given(st.integers(0, 1 << 32), st.integers(1, 9), st.integers(0, 3), st.booleans(), st.booleans())
def test_what_is_found_has_the_sketch_or_is_no_answer(
    seed: int, near: int, far: int, first: bool, second: bool
) -> None:
    """Stages of two outputs, or a word that was changed: a solution that explains only one of both is none."""
    theirs, own, at, low, high, up = outputs(seed, 600, near, far)
    other = outputs(seed, 600, near, far + 1)[0] if first else theirs
    sketch = replace(make(theirs, Capacity(12, 4)), values=make(other, Capacity(9, 4)).values)
    if second:
        sketch.values[seed % 8] ^= 1 + seed % 0xFFFF
    low, high = np.full_like(low, -LIMIT), np.full_like(high, LIMIT)
    try:
        positions, values = recover(sketch, own, at, low, high, up)
    except FailedError:
        assert first or second, "an honest sketch is followed"
        return
    own[positions] = values
    found = make(own, Capacity(12, 4))
    assert (found.parities.tolist(), found.values.tolist()) == (sketch.parities.tolist(), sketch.values.tolist())


def test_a_sketch_says_how_large_it_is() -> None:
    sketch = make(np.zeros(70_000, dtype=np.int16), Capacity(10, 3))
    assert sketch.bits == 17 * 10 + 17 * 6 + 24


def test_a_field_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="from 4 to 22"):
        fields.field(23)
