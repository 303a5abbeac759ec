"""Contested elements: whatever two conforming devices compute, the replayer ends with the recorder's bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.float_strategies import FLOAT32_MAX, TINY, finite_values

from weighbridge.core.errors import LogError
from weighbridge.numerics.arrays import physical
from weighbridge.numerics.rounding import contested, cpu_kernels, formats, rounding_log
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import OpEntries

EDGES = [-1.0, -0.999999, -0.5, 0.0, 0.25, 0.999999, 1.0]


def ulp(value: float) -> float:
    """Spacing of float32 values around a float64."""
    return max(TINY, 2.0 ** (math.frexp(min(abs(value), FLOAT32_MAX))[1] - 24))


cases = st.tuples(
    finite_values,
    st.sampled_from([0.0, 2.0**-29, 2.0**-10, 0.1, 0.25, 0.49, 0.5, 1.0, 3.0, 100.0, 2.0**20]),
    st.sampled_from(EDGES),
    st.sampled_from(EDGES),
)
"""(exact value, bound in ulps of float32, where in the bound the recorder is, where the replayer is)"""


def inside(value: float, e: float, place: float) -> float:
    """A float64 within e of `value`."""
    x = value + place * e
    while abs(x - value) > e:  # the sum was rounded outward
        x = np.nextafter(x, value)
    return float(x)


def wide(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@settings(max_examples=400)
@given(st.lists(cases, min_size=1, max_size=60))
@example([(2.0**-149 * k / 2, w, a, b) for k in range(4) for w in (0.5, 1.0, 3.0) for a in (-1, 1) for b in (-1, 1)])
@example([(s * 2.0**128 * (1 - 2.0**-25), w, a, -a) for s in (1, -1) for w in (0.5, 1.0, 100.0) for a in (-1.0, 1.0)])
@example([(2.0**k * (1 + 2.0**-24), w, 1.0, -1.0) for k in (-149, -127, -126, 0, 1, 127) for w in (0.25, 0.5, 1.0)])
def test_a_replayer_within_the_bound_ends_with_the_recorders_bits(
    drawn: list[tuple[float, float, float, float]],
) -> None:
    """For |x - v| <= e and |y - v| <= e: follow(y, record(x)) == record(x), in values and in checksum."""
    e = [ulp(v) * w for v, w, _, _ in drawn]
    x = wide([inside(v, b, a) for (v, _, a, _), b in zip(drawn, e, strict=True)])
    y = wide([inside(v, b, c) for (v, _, _, c), b in zip(drawn, e, strict=True)])
    bound = Bound(factors=(wide(e),))
    recorded = contested.record(x, bound, 0, 0)
    log = (
        []
        if recorded.entries is None
        else rounding_log.decode(rounding_log.encode([recorded.entries]), max_entries=1000)
    )
    followed = contested.follow(y, bound, log[0] if log else None)
    assert followed.inadmissible == 0
    assert torch.equal(followed.out.view(torch.int32), recorded.out.view(torch.int32))
    assert followed.checksum == recorded.checksum
    assert formats.checksum(followed.out) == followed.checksum
    own = contested.round_plain(y)[0]
    assert followed.followed == int((own.view(torch.int32) != recorded.out.view(torch.int32)).sum())


@given(st.lists(cases, min_size=1, max_size=30), st.sampled_from([1 - 2.0**-22, 1.0, 1 + 2.0**-22]))
def test_both_sides_may_evaluate_the_bound_a_little_differently(
    drawn: list[tuple[float, float, float, float]], skew: float
) -> None:
    e = [ulp(v) * w for v, w, _, _ in drawn]
    x = wide([inside(v, b, a) for (v, _, a, _), b in zip(drawn, e, strict=True)])
    y = wide([inside(v, b, c) for (v, _, _, c), b in zip(drawn, e, strict=True)])
    recorded = contested.record(x, Bound(factors=(wide(e) * skew,)), 0, 0)
    followed = contested.follow(y, Bound(factors=(wide(e) / skew,)), recorded.entries)
    assert (followed.inadmissible, followed.checksum) == (0, recorded.checksum)


def test_the_slack_of_the_replayer_never_brings_in_a_value_with_the_same_bits() -> None:
    """Below a power of two the spacing halves: a replayer's range may hold three values where x-4e..x+4e holds two."""
    x = 1 - 2.0**-26
    e = 5 * 2.0**-28 * (1 - 2.0**-22)  # x - 4e lies just above a boundary, x + 4e just below one
    recorded = contested.record(wide([x]), Bound(absolute=e), 0, 0)
    followed = contested.follow(wide([x - 2 * e]), Bound(absolute=e), recorded.entries)
    assert followed.out.item() == recorded.out.item() == 1.0


@given(st.lists(cases, min_size=1, max_size=30))
def test_an_uncontested_element_is_not_logged_and_a_contested_one_is(
    drawn: list[tuple[float, float, float, float]],
) -> None:
    """Contested iff float32(x - 2e) != float32(x + 2e), for the e with its slack."""
    e = np.array([ulp(v) * w for v, w, _, _ in drawn])
    x = np.array([inside(v, b, a) for (v, _, a, _), b in zip(drawn, e, strict=True)])
    with np.errstate(over="ignore"):
        differs = (x - cpu_kernels.REACH * e).astype(np.float32) != (x + cpu_kernels.REACH * e).astype(np.float32)
    recorded = contested.record(torch.from_numpy(x), Bound(factors=(torch.from_numpy(e),)), 0, 0)
    logged = [] if recorded.entries is None else recorded.entries.positions.tolist()
    assert logged == np.flatnonzero(differs).tolist()


def test_widths_are_the_least_that_tell_the_candidates_apart() -> None:
    one = 1.0 + 2.0**-24  # half way between 1 and the next float32
    e = np.array([2.0**-26, 2.0**-25, 2.0**-24, 2.0**-22])  # four bounds to either side: 2^-24, 2^-23, 2^-22, 2^-20
    widths, bits = contested.encode_entries(np.full(4, one), e, np.arange(4))
    low = contested.ordered((one - 4 * e * cpu_kernels.SLACK**2).astype(np.float32))
    high = contested.ordered((one + 4 * e * cpu_kernels.SLACK**2).astype(np.float32))
    assert widths.tolist() == [max(1, int(h - lo).bit_length()) for lo, h in zip(low, high, strict=True)]
    assert bits.tolist() == [0x3F800000 % 2**w for w in widths.tolist()]


@given(st.lists(st.integers(-0x7F800000, 0x7F800000), min_size=1))
def test_ordered_integers_keep_the_order_of_floats(drawn: list[int]) -> None:
    """ordered(unordered(i)) == i, and i < j iff unordered(i) < unordered(j)."""
    i = np.array(sorted(drawn), dtype=np.int64)
    values = contested.unordered(i)
    assert (contested.ordered(values) == i).all()
    assert ((np.diff(i) > 0) == (values[1:] > values[:-1])).all()
    assert not (np.signbit(values) & (values == 0)).any()


# --- not finite -----------------------------------------------------------------------------------------------------


def test_what_is_not_finite_is_logged_whole_and_followed() -> None:
    x = wide([math.inf, -math.inf, math.nan, 1.0, math.nan])
    y = wide([-math.inf, math.nan, math.inf, 1.0, math.nan])
    recorded = contested.record(x, Bound(rel=2.0**-50), 0, 0)
    assert recorded.entries is not None
    assert recorded.entries.positions.tolist() == [0, 1, 2, 4]
    assert recorded.entries.widths.tolist() == [0, 0, 0, 0]
    assert recorded.entries.bits.tolist() == [
        0x7F800000,
        0xFF800000,
        cpu_kernels.CANONICAL_NAN,
        cpu_kernels.CANONICAL_NAN,
    ]
    followed = contested.follow(y, Bound(rel=2.0**-50), recorded.entries)
    assert (followed.inadmissible, followed.followed, followed.checksum) == (0, 3, recorded.checksum)
    assert torch.equal(followed.out.view(torch.int32), recorded.out.view(torch.int32))


def test_an_infinite_bound_logs_the_whole_value() -> None:
    bound = Bound(factors=(wide([math.inf, math.nan, 0.0]),))
    recorded = contested.record(wide([1.0, -0.0, 3.0]), bound, 0, 0)
    assert recorded.entries is not None
    assert recorded.entries.bits.tolist() == [0x3F800000, 0]
    beside = float(np.nextafter(np.float32(1.0), np.float32(2.0)))
    followed = contested.follow(wide([beside, 5e-324, 3.0]), bound, recorded.entries)
    assert followed.out.tolist() == [1.0, 0.0, 3.0]
    assert followed.inadmissible == 0


def test_a_log_cannot_put_numbers_where_nothing_is_finite() -> None:
    """Otherwise `full(nan)`, any rounded operation and a log would be any weights that a Prover wants."""
    for value, bound in ((math.nan, Bound()), (math.inf, Bound()), (2.0, Bound(absolute=math.inf))):
        followed = contested.follow(wide([value]), bound, entry(0, 0x3F800000))
        assert followed.inadmissible == 1
        assert torch.equal(followed.out, contested.round_plain(wide([value]))[0]) or math.isnan(value)


# --- a hostile log --------------------------------------------------------------------------------------------------


def entry(width: int, bits: int, position: int = 0) -> OpEntries:
    return OpEntries(0, 0, np.array([position]), np.array([width], dtype=np.uint8), np.array([bits], dtype=np.uint64))


@settings(max_examples=500)
@given(finite_values, st.sampled_from([0.0, 2.0**-29, 0.25, 1.0, 50.0]), st.integers(0, 255), st.integers(0, 2**64 - 1))
@example(1.0, 0.0, 0, 0x3F800000)
@example(1.0, 0.25, 63, 2**63 - 1)
@example(0.0, 1.0, 33, 2**32)
def test_no_entry_moves_a_value_out_of_its_bound(value: float, ulps: float, width: int, bits: int) -> None:
    """Whatever the log says, the result is the replayer's own rounding or lies in [round(y - 2e), round(y + 2e)]."""
    e = ulp(value) * ulps
    y = wide([value])
    followed = contested.follow(y, Bound(absolute=e), entry(width, bits))
    reach = np.array([value - cpu_kernels.REACH * e, value + cpu_kernels.REACH * e])
    with np.errstate(over="ignore"):
        low, high = contested.ordered(reach.astype(np.float32))
    result = contested.ordered(followed.out.numpy())[0]
    assert low <= result <= high
    if followed.inadmissible:
        assert torch.equal(followed.out.view(torch.int32), contested.round_plain(y)[0].view(torch.int32))
    else:
        assert width > 0
        assert (int(result) - bits) % 2 ** min(width, 40) == 0
    assert followed.checksum == formats.checksum(followed.out)


@given(st.sampled_from([math.inf, -math.inf, math.nan]), st.integers(0, 255), st.integers(0, 2**64 - 1))
@example(math.nan, 0, 0x7FC00001)
@example(math.nan, 0, 0x80000000)
@example(math.nan, 0, 0x3F800000)
@example(math.nan, 0, 0xFF800000)
@example(math.inf, 0, 2**63 | 0x3F800000)
def test_only_canonical_whole_values_replace_what_is_not_finite(value: float, width: int, bits: int) -> None:
    followed = contested.follow(wide([value]), Bound(), entry(width, bits))
    canonical = (bits >> 32) == 0 and bits != 0x80000000
    if (bits & 0x7FFFFFFF) > 0x7F800000:
        canonical = bits == cpu_kernels.CANONICAL_NAN
    admitted = width == 0 and canonical and (bits & 0x7FFFFFFF) >= 0x7F800000
    assert followed.inadmissible == int(not admitted)
    if admitted:
        assert int(followed.out.view(torch.int32).item()) & 0xFFFFFFFF == bits


@pytest.mark.parametrize("bits", [0x3F800000, 0x7F800000, cpu_kernels.CANONICAL_NAN, 0])
def test_a_whole_value_is_not_admitted_where_the_replayer_is_finite(bits: int) -> None:
    followed = contested.follow(wide([1.0]), Bound(absolute=1.0), entry(0, bits))
    assert (followed.inadmissible, followed.out.item()) == (1, 1.0)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_position_outside_the_result_is_an_error(size: int) -> None:
    with pytest.raises(LogError):
        contested.follow(torch.zeros(size, dtype=torch.float64), Bound(absolute=1.0), entry(1, 0, position=size))


# --- a bound that was too small -------------------------------------------------------------------------------------


def bad_bound(count: int, distance: float = 5.0) -> tuple[torch.Tensor, Bound, list[int], torch.Tensor]:
    """`count` elements whose replayed value lies `distance` bounds below a boundary that the recorder was above."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000).astype(np.float32).astype(np.float64)
    e = np.abs(x) * 2.0**-40
    at = rng.choice(4000, size=count, replace=False)
    middle = x[at] + np.spacing(x[at].astype(np.float32)).astype(np.float64) / 2
    y, recorder = x.copy(), x.copy()
    y[at] = middle - np.sign(x[at]) * distance * e[at]
    recorder[at] = middle + np.sign(x[at]) * distance * e[at]
    return torch.from_numpy(y), Bound(factors=(torch.from_numpy(e),)), at.tolist(), torch.from_numpy(recorder)


@pytest.mark.parametrize("count", [1, 2, 15, 16])
def test_up_to_sixteen_flips_within_eight_bounds_are_explained(count: int) -> None:
    y, bound, _, recorder = bad_bound(count)
    wanted = contested.record(recorder, bound, 0, 0)
    assert wanted.entries is None, "the recorder's own bound did not call these contested"
    own = contested.follow(y, bound, None)
    assert own.checksum != wanted.checksum
    assert contested.explainable(y, bound, None, own.out, wanted.checksum, own.checksum)


@pytest.mark.parametrize(("count", "distance"), [(17, 5.0), (1, 9.0), (3, 40.0)])
def test_more_or_farther_flips_are_not(count: int, distance: float) -> None:
    y, bound, _, recorder = bad_bound(count, distance=distance)
    wanted = contested.round_plain(recorder)[1]
    own = contested.follow(y, bound, None)
    assert own.checksum != wanted
    assert not contested.explainable(y, bound, None, own.out, wanted, own.checksum)


def test_a_flip_that_the_log_already_decided_does_not_explain_anything() -> None:
    y, bound, at, recorder = bad_bound(1)
    wanted = contested.round_plain(recorder)[1]
    own = contested.round_plain(y)
    held = entry(1, int(contested.ordered(own[0].numpy())[at[0]]) & 1, position=at[0])
    assert contested.explainable(y, bound, None, own[0], wanted, own[1])
    assert not contested.explainable(y, bound, held, own[0], wanted, own[1])


def test_flips_of_elements_of_very_different_size_are_found_among_many_candidates() -> None:
    """Candidates are taken by distance in units of their own bound, not by absolute distance."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(500).astype(np.float32) * 2.0 ** rng.integers(-60, 60, 500)).astype(np.float32)
    middle = x.astype(np.float64) + np.spacing(x).astype(np.float64) / 2
    e = np.abs(middle) * 2.0**-40
    place = np.full(500, 7.0)  # everything is a candidate, just
    flipped = rng.choice(500, size=3, replace=False)
    place[flipped] = 2.5
    y = middle - np.sign(x) * place * e
    recorder = y.copy()
    recorder[flipped] = (middle + np.sign(x) * place * e)[flipped]
    bound = Bound(factors=(torch.from_numpy(e),))
    wanted = contested.round_plain(torch.from_numpy(recorder))[1]
    own = contested.round_plain(torch.from_numpy(y))
    assert contested.explainable(torch.from_numpy(y), bound, None, own[0], wanted, own[1])


# --- layout ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), max_size=4).map(tuple), st.randoms(use_true_random=False))
def test_laying_out_changes_memory_and_not_values(shape: tuple[int, ...], random: Random) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)
    x = torch.arange(math.prod(shape), dtype=torch.float64).view(shape).permute(order)
    assert physical.is_dense(x) or x.numel() == 0
    strides = physical.dense_strides(x.shape, None)
    laid = physical.lay_out(x, strides)
    assert laid.stride() == strides
    assert torch.equal(laid, x)
    assert torch.equal(physical.flat(laid), x.reshape(-1))
    assert physical.dense_strides(x.shape, x.stride()) in (x.stride(), strides)


@pytest.mark.parametrize(
    "view",
    [lambda t: t[::2], lambda t: t[:, :1], lambda t: t[:1].expand(3, 4), lambda t: t.flip(0)[:, 1:]],
    ids=["rows", "column", "expanded", "part"],
)
def test_gaps_and_overlaps_are_not_dense(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.arange(16.0, dtype=torch.float64).view(4, 4)
    part = view(x)
    assert not physical.is_dense(part)
    laid = physical.lay_out(part, physical.dense_strides(part.shape, part.stride()))
    assert physical.is_dense(laid)
    assert torch.equal(laid, part)
