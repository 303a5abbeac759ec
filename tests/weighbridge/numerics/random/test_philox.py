"""Philox against its published vectors, and the variates made of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri

from weighbridge.numerics.random import philox

VECTORS = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""(key, counter, result) of philox4x32-10 in the known-answer file of Random123."""

u64 = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]))


@pytest.mark.parametrize(("key", "counter", "result"), VECTORS)
def test_published_vectors(key: tuple[int, int], counter: tuple[int, int, int, int], result: tuple[int, ...]) -> None:
    assert philox.block(key, counter) == result


@pytest.mark.parametrize(("key", "counter", "result"), VECTORS[:1])
def test_the_compiled_generator_gives_the_published_vector(
    key: tuple[int, int], counter: tuple[int, int, int, int], result: tuple[int, ...]
) -> None:
    assert tuple(philox.words(0, 0, 0, 4).tolist()) == result


@given(u64, st.integers(0, 0xFFFF), u64, st.integers(0, 70))
def test_the_compiled_generator_is_the_reference(seed: int, stream: int, counter: int, count: int) -> None:
    """Word w of a draw is word w mod 4 of the block with counter (w div 4, stream << 16, draw low, draw high)."""
    expected: list[int] = []
    for index in range((count + 3) // 4):
        block = (index, stream << 16, counter & 0xFFFFFFFF, counter >> 32)
        expected += philox.block((seed & 0xFFFFFFFF, seed >> 32), block)
    assert philox.words(seed, stream, counter, count).tolist() == expected[:count]


def test_draws_with_other_keys_have_nothing_in_common() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (1 << 32, 0, 0), (0, 1, 0), (0, 1 << 12, 0), (0, 0, 1), (0, 0, 1 << 32)]
    draws = [philox.words(*key, 1000) for key in keys]
    for i, first in enumerate(draws):
        for second in draws[:i]:
            assert not (first == second).any()


def test_wide_words_are_two_words_each() -> None:
    low = philox.words(5, 0, 9, 10).astype(np.uint64)
    assert philox.wide_words(5, 0, 9, 5).tolist() == (low[0::2] | low[1::2] << np.uint64(32)).tolist()


def test_units_are_multiples_below_one() -> None:
    edge = np.array([0, 255, 256, 2**32 - 1], dtype=np.uint32)
    assert philox.unit_float32(edge).tolist() == [0.0, 0.0, 2.0**-24, 1 - 2.0**-24]
    wide = np.array([0, 2**11 - 1, 2**11, 2**64 - 1], dtype=np.uint64)
    assert philox.unit_float64(wide).tolist() == [0.0, 0.0, 2.0**-53, 1 - 2.0**-53]


WORDS = np.concatenate(
    [
        philox.words(1, 0, 0, 20_000),
        np.array([0, 1, 2, 3, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF], dtype=np.uint32),
        (np.uint64(1) << np.arange(32, dtype=np.uint64)).astype(np.uint32),  # the edges of the octaves
        ((np.uint64(1) << np.arange(1, 33, dtype=np.uint64)) - np.uint64(1)).astype(np.uint32),
    ]
)


def tails() -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Tail probability (2m + 1) / 2^33 of each word's lower 31 bits, and whether the variate is below zero."""
    m = (WORDS & np.uint32(0x7FFFFFFF)).astype(np.float64)
    return (2 * m + 1) / 2.0**33, WORDS >> np.uint32(31) == 1


def test_normal_variates_invert_the_distribution() -> None:
    tail, below = tails()
    exact = np.where(below, ndtri(tail), -ndtri(tail))
    error = np.abs(philox.normal_float32(WORDS) - exact)
    assert (error <= 2.5e-7 * np.maximum(1, np.abs(exact))).all()


def test_normal_variates_are_one_multiplication_and_one_addition_at_a_time() -> None:
    """Bit-equal to NumPy, which has no fused multiply-add: a compiler that fused would change the last bits of some."""
    table = philox.normal_table()
    m = ((WORDS.astype(np.uint64) & np.uint64(0x7FFFFFFF)) << np.uint64(1)) | np.uint64(1)
    octave = 31 - np.floor(np.log2(m.astype(np.float64))).astype(np.int64)
    m = (m << octave.astype(np.uint64)) & np.uint64(0xFFFFFFFF)
    rows = table[octave * philox.PIECES + ((m >> np.uint64(27)) & np.uint64(15)).astype(np.int64)]
    t = (m & np.uint64(0x07FFFFFF)).astype(np.float64) * 2.0**-27
    z = rows[:, philox.DEGREE].copy()
    for d in range(philox.DEGREE - 1, -1, -1):
        z = z * t
        z = z + rows[:, d]
    expected = np.where(WORDS >> np.uint32(31) == 0, -z, z).astype(np.float32)
    assert (philox.normal_float32(WORDS).view(np.uint32) == expected.view(np.uint32)).all()


def test_normal_variates_are_normal() -> None:
    z = philox.normal_float32(philox.words(11, 0, 3, 200_000)).astype(np.float64)
    assert abs(z.mean()) < 5 / np.sqrt(z.size)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / z.size)
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / z.size)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert stats.kstest(philox.unit_float32(philox.words(11, 0, 4, 200_000)), "uniform").pvalue > 1e-4


def test_a_word_and_its_complement_of_sign_are_mirror_images() -> None:
    w = philox.words(2, 0, 0, 1000)
    assert (philox.normal_float32(w) == -philox.normal_float32(w ^ np.uint32(0x80000000))).all()
