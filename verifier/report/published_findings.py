"""The list of published findings, which the bitmaps of an outcome's record are over.

`published_findings.txt` has the identifiers of docs/findings.md, one a line. A place in it never changes: new ones come
last, and one that no version makes any more stays. Terms of an outcome name the list by its digest.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from weighbridge.core.digests import record_digest

UNLISTED = 0
"""The place of every identifier that the list lacks."""


@lru_cache(maxsize=1)
def published() -> tuple[str, ...]:
    """Returns the identifiers; the first has place 1."""
    return tuple(files("verifier.report").joinpath("published_findings.txt").read_text(encoding="ascii").split())


def place(identifier: str) -> int:
    """Returns the place of an identifier in the bitmaps."""
    listed = published()
    return 1 + listed.index(identifier) if identifier in listed else UNLISTED


def name(place: int) -> str:
    """Returns the identifier at a place."""
    listed = published()
    return listed[place - 1] if 1 <= place <= len(listed) else "an identifier that the list lacks"


def digest() -> bytes:
    """Returns the digest by which terms name the list."""
    return record_digest("published-findings/1", list(published()))
