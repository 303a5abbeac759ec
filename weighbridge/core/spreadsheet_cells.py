"""Texts as cells of a CSV that a spreadsheet shows and does not execute.

Spreadsheets take a cell that begins with `=`, `+`, `-` or `@` for a formula, quoted or not, and some skip a tab or line
end before it (OWASP, "CSV Injection"). An apostrophe in front makes it a text.
"""

from __future__ import annotations

import re

_EXECUTED = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Begins what is given an apostrophe. What begins with apostrophes itself is given one more, so that none is lost."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def shown(text: str) -> str:
    """Returns a cell that shows `text`; numbers stay numbers."""
    return f"'{text}" if _EXECUTED.match(text) and not _NUMBER.fullmatch(text) else text


def meant(cell: str) -> str:
    """Returns the text that a cell shows: the inverse of `shown`. Apostrophes elsewhere stay."""
    return cell[1:] if cell.startswith("'") and _EXECUTED.match(cell[1:]) else cell
