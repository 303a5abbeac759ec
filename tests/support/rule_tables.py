"""Rules that a test registers end with it: transcripts of other tests name the table that they were made under."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weighbridge.numerics import custom, overload_cache, rule_table
from weighbridge.numerics.flops import counts


@contextmanager
def restored() -> Iterator[None]:
    """Puts the tables back as they were."""
    before, decomposed, counted = dict(rule_table.RULES), dict(custom.TABLE), dict(counts._OWN)
    try:
        yield
    finally:
        rule_table.RULES.clear()
        rule_table.RULES.update(before)
        custom.TABLE.clear()
        custom.TABLE.update(decomposed)
        counts._OWN.clear()
        counts._OWN.update(counted)
        overload_cache.forget()
