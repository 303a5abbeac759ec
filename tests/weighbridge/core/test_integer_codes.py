"""Codes of integers: the lengths of the published code words, and no more short words than there are."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from weighbridge.core.integer_codes import delta_bits, gamma_bits, signed_bits

GAMMA = {1: "1", 2: "010", 3: "011", 4: "00100", 7: "00111", 8: "0001000"}
DELTA = {1: "1", 2: "0100", 3: "0101", 4: "01100", 8: "00100000", 16: "001010000", 17: "001010001"}
"""Code words as Elias's article has them."""


def test_lengths_are_those_of_the_code_words() -> None:
    assert {n: gamma_bits(n) for n in GAMMA} == {n: len(word) for n, word in GAMMA.items()}
    assert {n: delta_bits(n) for n in DELTA} == {n: len(word) for n, word in DELTA.items()}
    assert [signed_bits(n) for n in (0, -1, 1, -2, 2)] == [delta_bits(n) for n in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("bits", [gamma_bits, delta_bits])
def test_not_all_integers_are_cheap(bits: Callable[[int], int]) -> None:
    """Kraft's inequality: the words of a prefix code, each with the chance of its length, never exceed 1 together."""
    total = sum(Fraction(1, 2 ** bits(n)) for n in range(1, 1 << 12))
    assert Fraction(4, 5) < total < 1


def test_a_number_of_64_bits_costs_more_than_its_bits() -> None:
    assert 64 <= delta_bits((1 << 64) - 1) <= 77
    assert 64 <= signed_bits(-(1 << 63)) <= 77


@pytest.mark.parametrize("bits", [gamma_bits, delta_bits])
def test_no_code_below_one(bits: Callable[[int], int]) -> None:
    with pytest.raises(ValueError, match="from 1"):
        bits(0)
