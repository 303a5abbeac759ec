"""How many bits it takes to write an integer down: universal codes, which need no largest integer.

A count of what a Prover chose needs a price for numbers without a range. A code gives one that no choice gets below on
average: words of a prefix code cannot all be short (Kraft's inequality), so at most 2^n choices cost at most n bits.
Small integers, which honest programs choose, are cheap. Elias (Universal codeword sets and representations of the
integers, IEEE Transactions on Information Theory, 1975) describes both codes.
"""

from __future__ import annotations


def gamma_bits(number: int) -> int:
    """Returns the length of the Elias gamma code of an integer from 1: for numbers that are nearly always small.

    Raises:
        ValueError: The integer is below 1.
    """
    if number < 1:
        raise ValueError(f"{number} has no code; the code is for integers from 1")
    return 2 * number.bit_length() - 1


def delta_bits(number: int) -> int:
    """Returns the length of the Elias delta code of an integer from 1: log2 and little more, however large it is.

    Raises:
        ValueError: The integer is below 1.
    """
    if number < 1:
        raise ValueError(f"{number} has no code; the code is for integers from 1")
    return gamma_bits(number.bit_length()) + number.bit_length() - 1


def signed_bits(number: int) -> int:
    """Returns the length of the Elias delta code of any integer, counted 0, -1, 1, -2, 2, … (zig-zag)."""
    return delta_bits(2 * number + 1 if number >= 0 else -2 * number)
