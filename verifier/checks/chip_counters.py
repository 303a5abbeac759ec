"""Do the chip's counters of work go forwards only, and does a snapshot say of its workload what they say?

Every entry and every head of a chip carries its totals over the chip's life. So a workload that leaves, is killed or
cuts the power takes nothing back; a chip whose counters do is not the one that it was, or its firmware was altered.

A head of a confidential boot has no counters: the next entry has them, and a sealed session looks at it.

A snapshot says besides what was done since its workload was attached. That follows from the counters: it is what they
have grown by since then, read at some time after the entry before and before the snapshot was signed.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import pairwise

from verifier.model.facts import LogFacts, number
from verifier.model.sessions import begins, confidential_boots, tokens_of
from weighbridge.attest.tokens import HiddenBody, Token, counters
from weighbridge.attest.work import Work
from weighbridge.core.errors import Finding


def check(log: LogFacts) -> list[Finding]:
    """Compares the counters of each entry, and of the head, with those before.

    Returns:
        At most one finding of each kind: the first entry with lower counters, the first snapshot that says something
        else, and the first entry that is new to the Verifier and has none.
    """
    tokens = tokens_of(log)
    silent = confidential_boots(log)
    said = [token for token in tokens if not _is_silent(token, silent)]
    decreased = next((found for pair in pairwise(said) if (found := _decreased(log, *pair))), None)
    return [each for each in (decreased, _differ(log, tokens), _missing(log, silent)) if each is not None]


def _is_silent(token: Token, silent: Set[int]) -> bool:
    """Whether a token has no counters for its reader because its boot is confidential."""
    return isinstance(token.work, HiddenBody) or (token.kind == "head" and token.boot_count in silent)


def _differ(log: LogFacts, tokens: list[Token]) -> Finding | None:
    begun: Work | None = None
    for earlier, token in pairwise([None, *tokens]):
        assert token is not None
        if begins(token):
            begun = counters(token)
        after = counters(token)
        before = None if earlier is None else counters(earlier)
        if token.kind != "snapshot" or begun is None or after is None or before is None:
            continue
        least, most = before - begun, after - begun
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
    before, after = counters(earlier), counters(later)
    if before is None:
        return None
    lower = ["all"] if after is None else after.decreased(before)
    if not lower:
        return None
    return Finding(
        id="chip.counters.decreased",
        message="the chip's counters of work ran backwards; its memory of its own past was tampered with",
        expected=f"at least {before.to_json()}",
        found="none" if after is None else str(after.to_json()),
        subject=_place(log, later),
        evidence={"counters": lower},
    )


def _missing(log: LogFacts, silent: Set[int]) -> Finding | None:
    for token in tokens_of(log)[log.chip.witnessed_size :]:
        if token.work is None and not _is_silent(token, silent):
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
