"""Do the chip's counters of work go forwards only, and does a snapshot say of its workload what they say?

Every entry and every head of a chip carries its totals over the chip's life. So a workload that leaves, is killed or
cuts the power takes nothing back; a chip whose counters do is not the one that it was, or its firmware was altered.

A snapshot says besides what was done since its workload was attached. That follows from the counters: it is what they
have grown by since then, read at some time after the entry before and before the snapshot was signed.
"""

from __future__ import annotations

from itertools import pairwise

from verifier.model.facts import LogFacts, number
from verifier.model.sessions import begins, tokens_of
from weighbridge.attest.tokens import Token
from weighbridge.attest.work import Work
from weighbridge.core.errors import Finding


def check(log: LogFacts) -> list[Finding]:
    """Compares the counters of each entry, and of the head, with those before.

    Returns:
        At most one finding of each kind: the first entry with lower counters, the first snapshot that says something
        else, and the first entry that is new to the Verifier and has none.
    """
    tokens = tokens_of(log)
    decreased = next((found for pair in pairwise(tokens) if (found := _decreased(log, *pair))), None)
    return [each for each in (decreased, _differ(log, tokens), _missing(log)) if each is not None]


def _differ(log: LogFacts, tokens: list[Token]) -> Finding | None:
    begun: Work | None = None
    for earlier, token in pairwise([None, *tokens]):
        assert token is not None
        if begins(token):
            begun = token.work
        if token.kind != "snapshot" or begun is None or token.work is None or earlier is None or earlier.work is None:
            continue
        least, most = earlier.work - begun, token.work - begun
        for name in ("kernels", "flops"):
            said = number(token, name)
            if not getattr(least, name) <= said <= getattr(most, name):
                return Finding(
                    id="chip.counters.differ",
                    message="the chip says of its workload what its own counters contradict; its firmware was altered",
                    expected=f"{getattr(least, name)} to {getattr(most, name)} {name} since the workload was attached",
                    found=str(said),
                    subject=_place(log, token),
                    evidence={"counter": name},
                )
    return None


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
