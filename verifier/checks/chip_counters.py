"""Do the chip's counters of work go forwards only?

Every entry and every head of a chip carries its totals over the chip's life. So a workload that leaves, is killed or
cuts the power takes nothing back; a chip whose counters do is not the one that it was, or its firmware was altered.
"""

from __future__ import annotations

from itertools import pairwise

from verifier.model.facts import LogFacts
from verifier.model.sessions import tokens_of
from weighbridge.attest.tokens import Token
from weighbridge.core.errors import Finding


def check(log: LogFacts) -> list[Finding]:
    """Compares the counters of each entry, and of the head, with those before.

    Returns:
        At most one finding of each kind: the first entry with lower counters, and the first one that is new to the
        Verifier and has none.
    """
    decreased = next((found for pair in pairwise(tokens_of(log)) if (found := _decreased(log, *pair))), None)
    return [each for each in (decreased, _missing(log)) if each is not None]


def _decreased(log: LogFacts, earlier: Token, later: Token) -> Finding | None:
    if earlier.work is None:
        return None
    lower = ["all"] if later.work is None else later.work.decreased(earlier.work)
    if not lower:
        return None
    return Finding(
        id="chip.counters.decreased",
        message="the chip's counters of work ran backwards; its memory of its own past was tampered with",
        expected=f"at least {earlier.work.to_json()}",
        found="none" if later.work is None else str(later.work.to_json()),
        subject=_place(log, later),
        evidence={"counters": lower},
    )


def _missing(log: LogFacts) -> Finding | None:
    for token in tokens_of(log)[log.chip.witnessed_size :]:
        if token.work is None:
            return Finding(
                id="chip.counters.missing",
                message="the chip does not say how much it has worked; have newer firmware installed",
                expected="counters of work",
                found="none",
                subject=_place(log, token),
            )
    return None


def _place(log: LogFacts, token: Token) -> str:
    return f"chip {log.chip.ueid.hex()} {'head' if token.kind == 'head' else f'entry {token.index}'}"
