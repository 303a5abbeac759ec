"""The names and texts of declared formulas in bits.

Formulas resemble each other: those of two parameter groups differ in one number. So a formula is coded word by word,
each after the two before it, and one that is known as a whole by which one it is.
"""

from __future__ import annotations

import math
import re

from weighbridge.program.adaptive_code import AdaptiveCode, text

_WORDS = re.compile(r"[\w.]+|\W")
"""Splits any text without losing a character."""


class FormulaCode:
    """Codes one formula after another, of one transcript or of several."""

    def __init__(self) -> None:
        self._code = AdaptiveCode()
        self._known: set[tuple[str, str]] = set()

    def bits(self, name: str, term: str) -> float:
        """Returns the bits of a formula, given all before it.

        Args:
            name: Its name.
            term: Its text.
        """
        known, whole = len(self._known), (name, term)
        chosen = 1.0 if known else 0.0  # whether it is one of them
        if whole in self._known:
            return chosen + math.log2(known)
        self._known.add(whole)
        before: tuple[str | None, ...] = ("", "")
        for word in (*_WORDS.findall(name), None, *_WORDS.findall(term), None):
            contexts = (("after", *before), ("after", before[-1]), ("any",))
            chosen += self._code.bits(("word", word), contexts, 1.0 if word is None else 1.0 + text(word))
            before = before[-1], word
        return chosen
