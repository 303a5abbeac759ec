"""What a report calls chips and transcripts: short names for people, with the full identifier at hand.

A chip has the name that the registry gives it and the first digits of its UEID (`verifier.report.chip_names`). So has
a transcript, whose name its Prover chose. The page shows the full identifier when a reader points at a name, and in
the section about the chip or the transcript.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup, escape

from verifier.report.chip_names import short

_IDENTIFIER = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{34})\b")
_DIGITS = 12
_MORE_DIGITS = 20


def in_words(value: object) -> str:
    """Returns a JSON value as text for people: lists with commas, objects as "name = value"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {in_words(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(
            f"({in_words(each)})" if isinstance(each, list | Mapping) else in_words(each) for each in value
        )
    return str(value)


class Names:
    """The names of one report's chips and transcripts."""

    def __init__(self, chips: Iterable[Mapping[str, Any]], transcripts: Iterable[Mapping[str, Any]]) -> None:
        """Takes the names from a report.

        Args:
            chips: The report's `chips`; `name` is optional.
            transcripts: The report's `transcripts`.
        """
        given = {str(chip["ueid"]): str(chip.get("name") or "") for chip in chips}
        called = {ueid: short(ueid, name) for ueid, name in given.items()}
        often = Counter(called.values())
        self._names = {
            ueid: one if often[one] == 1 else f"{given[ueid]} {ueid[:_MORE_DIGITS]}".strip()
            for ueid, one in called.items()
        }
        for each in transcripts:
            digits = str(each["id"])[:_DIGITS]
            self._names[str(each["id"])] = f"{each['name']} ({digits})" if each["name"] else digits

    def of(self, identifier: str) -> str:
        """Returns the name of a chip or transcript by its identifier in hexadecimal; its first digits, if not known."""
        return self._names.get(identifier) or (short(identifier) if len(identifier) == 34 else identifier[:_DIGITS])

    def marked(self, identifier: str) -> Markup:
        """Returns the name for the page; the full identifier shows when a reader points at it."""
        return Markup('<abbr title="{}">{}</abbr>').format(identifier, self.of(identifier))

    def marked_text(self, text: object) -> Markup:
        """Returns a value of a finding as text, escaped, with names for the page in the place of known identifiers."""
        whole, parts, end = in_words(text), list[Markup](), 0
        for match in _IDENTIFIER.finditer(whole):
            if match[0] in self._names:
                parts += [escape(whole[end : match.start()]), self.marked(match[0])]
                end = match.end()
        return Markup("").join([*parts, escape(whole[end:])])
