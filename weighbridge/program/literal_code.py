"""The numbers in programs in bits: constants, and which formula gives a value that changes.

Numbers repeat themselves where programs do: the same operation takes the same constant in the same place. So a constant
is coded by its *site* first (operation and operand), then among all that are known, and a new one is spelled out: as a
short decimal (0.1, 1e-05) where that is shorter, as the last one with its sign changed, or in all its bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable
from decimal import Decimal

from weighbridge.program.adaptive_code import AdaptiveCode, integer, natural
from weighbridge.transcript.steps import Scalar

_WAYS = 2.0
_EXPLANATIONS = 9.0
"""Bits of the name of what explains a value: one of 256 formulas, a host value, or its negation."""


class LiteralCode:
    """Codes one number after another."""

    def __init__(self) -> None:
        self._code = AdaptiveCode()
        self._last: Scalar = 0
        self._before: Hashable = None

    def constant(self, value: Scalar, site: Hashable) -> float:
        """Returns the bits of a constant, given all before it.

        Args:
            value: The constant.
            site: Where the program uses it.
        """
        symbol = _symbol(value)
        contexts = (("at", site, self._before), ("at", site), ("any",))
        bits = self._code.bits(symbol, contexts, lambda: self._spelled(value))
        self._before, self._last = symbol, value
        return bits

    def explained(self, name: str, site: Hashable, hosts: int) -> float:
        """Returns the bits of which formula, or which of `hosts` host values, gives a value that changes."""
        bits = self._code.bits(("explained", name), (("by", site), ("by",)), _EXPLANATIONS)
        return bits + math.log2(max(1, hosts))

    def _spelled(self, value: Scalar) -> float:
        if isinstance(value, bool):
            return self._code.bits("flag", (("way",),), _WAYS) + 1.0
        if isinstance(value, int):
            return self._code.bits("integer", (("way",),), _WAYS) + integer(value)
        if isinstance(self._last, float) and _symbol(-self._last) == _symbol(value):
            return self._code.bits("negated", (("way",),), _WAYS)
        decimal = decimal_bits(value)
        if decimal < 64.0:
            return self._code.bits("decimal", (("way",),), _WAYS + 1.0) + decimal
        return self._code.bits("bits", (("way",),), _WAYS + 1.0) + 64.0


def decimal_bits(value: float) -> float:
    """Returns the bits of the shortest decimal that reads as a number: sign, digits, exponent."""
    if not math.isfinite(value):
        return math.inf
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    return 1.0 + natural(int("".join(map(str, digits)))) + integer(int(exponent))


def _symbol(value: Scalar) -> tuple[str, Hashable]:
    """A value as what differs from every other, whatever equals what: by type, floats by their bits."""
    if isinstance(value, bool):
        return "bool", value
    return ("int", value) if isinstance(value, int) else ("float", struct.pack("<d", value))
