"""Lengths of a specified code: how many bits it takes to write symbols down, given what was written before.

A symbol is coded in a chain of contexts, from narrow to wide. In each, a symbol that was seen there costs
log2((n + d) / c) bits and an escape to the next context log2((n + d) / d), where n symbols were coded in the context,
d of them distinct, and c of them this one; an escape from an empty context is free, as nothing else can follow. These
are the probabilities of a proper distribution over "each symbol seen, or escape", known to a reader who has read as
far. After the last context the symbol is spelled out in a prefix code. So 2 to the power of minus the lengths sums to
at most 1 over all messages, and an arithmetic coder writes a message in its length and two bits. (Escape method C of
prediction by partial matching: Moffat 1990.)

Only lengths are computed; nothing is ever written. Another implementation that follows docs/formats/chosen-bits.md
gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import log2

from weighbridge.core.integer_codes import delta_bits, signed_bits


class _Counts:
    __slots__ = ("seen", "total")

    def __init__(self) -> None:
        self.total = 0
        self.seen: dict[Hashable, int] = {}


class AdaptiveCode:
    """Contexts with what was counted in them."""

    def __init__(self) -> None:
        self._contexts: dict[Hashable, _Counts] = {}

    def bits(self, symbol: Hashable, contexts: Iterable[Hashable], spelled: Callable[[], float] | float) -> float:
        """Codes one symbol and returns its length.

        Args:
            symbol: What is coded; equal symbols must be the same to a reader (True equals 1: tag them).
            contexts: From narrow to wide.
            spelled: The length of its spelling, in bits; asked for if no context knows it.
        """
        length = 0.0
        for context in contexts:
            counts = self._contexts.get(context)
            if counts is None:
                counts = self._contexts[context] = _Counts()
            seen, total, count = counts.seen, counts.total, counts.seen.get(symbol, 0)
            counts.total = total + 1
            seen[symbol] = count + 1
            if count:
                return length + log2((total + len(seen)) / count)
            if total:
                length += log2((total + len(seen) - 1) / (len(seen) - 1))
        return length + (spelled if isinstance(spelled, float) else spelled())


def natural(number: int) -> float:
    """Returns the length of a number that is at least 0: that of the delta code of the one after it."""
    return float(delta_bits(number + 1))


def integer(number: int) -> float:
    """Returns the length of an integer."""
    return float(signed_bits(number))


def text(string: str) -> float:
    """Returns the length of a text: the number of its bytes in UTF-8, and 8 bits for each."""
    size = len(string.encode(errors="surrogatepass"))
    return natural(size) + 8.0 * size
