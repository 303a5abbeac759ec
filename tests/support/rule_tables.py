"""Rules that a test registers end with it: transcripts of other tests name the table that they were made under."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weighbridge.numerics import custom, memo, rules


@contextmanager
def restored() -> Iterator[None]:
    """Puts the tables back as they were."""
    before, decomposed = dict(rules.RULES), dict(custom.TABLE)
    try:
        yield
    finally:
        rules.RULES.clear()
        rules.RULES.update(before)
        custom.TABLE.clear()
        custom.TABLE.update(decomposed)
        memo.forget()
