"""The draw of chips: reproducible, without replacement, uniform."""

from __future__ import annotations

import secrets
from collections import Counter

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from verifier.model.seeded_draw import draw
from weighbridge.core.errors import UsageError

CHIPS = [bytes([1, number]) * 9 for number in range(20)]


@given(
    st.lists(st.binary(min_size=17, max_size=33), min_size=1, max_size=30, unique=True),
    st.binary(min_size=16, max_size=64),
    st.data(),
)
def test_a_draw_is_a_prefix_of_every_longer_draw_whatever_the_order(
    chips: list[bytes], seed: bytes, data: st.DataObject
) -> None:
    samples = data.draw(st.integers(1, len(chips)))
    drawn = draw(chips, samples, seed)
    everyone = draw(data.draw(st.permutations(chips)), len(chips), seed)
    assert everyone[:samples] == drawn
    assert sorted(everyone) == sorted(chips)


def test_the_documented_recipe_recomputes_the_draw() -> None:
    seed = bytes(range(32))
    stream = blake3(b"weighbridge/sampling/1\x00" + seed).digest(8 * 40)
    numbers = iter([int.from_bytes(stream[at : at + 8], "big") for at in range(0, len(stream), 8)])
    places = sorted(CHIPS)
    for k in range(5):
        n = len(places) - k
        x = next(value for value in numbers if value < n * (2**64 // n))
        at = k + x % n
        places[k], places[at] = places[at], places[k]
    assert draw(CHIPS, 5, seed) == places[:5]


def test_the_draw_never_changes_between_releases() -> None:
    assert [ueid[1] for ueid in draw(CHIPS, 6, b"weighbridge golden")] == [18, 7, 3, 6, 10, 17]


def test_every_chip_is_drawn_about_equally_often() -> None:
    rounds = 4000
    seen = Counter(ueid for number in range(rounds) for ueid in draw(CHIPS, 3, number.to_bytes(16, "big")))
    expected = rounds * 3 / len(CHIPS)
    # Chi-square with 19 degrees of freedom: 60 is exceeded with probability 4e-6; the seeds are fixed.
    assert sum((seen[chip] - expected) ** 2 / expected for chip in CHIPS) < 60


@pytest.mark.parametrize("samples", [0, -1, 21])
def test_an_impossible_number_of_samples_is_refused(samples: int) -> None:
    with pytest.raises(UsageError, match="registered chips"):
        draw(CHIPS, samples, secrets.token_bytes(32))


def test_bad_seeds_and_doubled_chips_are_refused() -> None:
    with pytest.raises(UsageError, match="seed"):
        draw(CHIPS, 1, b"short")
    with pytest.raises(UsageError, match="twice"):
        draw([CHIPS[0], CHIPS[0]], 1, secrets.token_bytes(32))
