"""Did every interrupt lead to a snapshot, and were there as many as the chip's clock lets expect?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from scipy.special import pdtr, pdtrc

from verifier.model.facts import LogFacts, number
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED, SnapshotPolicy
from weighbridge.attest.tokens import Token
from weighbridge.core.errors import Finding, WeighbridgeError

IDLE, UNSERVED = "interrupt-idle", "interrupt-unserved"
"""The chip's own events: an interrupt found no workload; a workload was lost while one stood."""

_MS_PER_DAY = 86_400_000


def check(log: LogFacts, policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> list[Finding]:
    """Reports interrupts without a snapshot, and snapshots that came later than the firmware waits.

    A chip with a finding of this check does not count as verified: something ran on it that it could not look at.
    """
    tokens = list(_entries(log))
    return [*_unserved(log, tokens, policy), *_late(log, tokens)]


def _unserved(log: LogFacts, tokens: list[Token], policy: SnapshotPolicy) -> list[Finding]:
    unserved = sum(_name(token) == UNSERVED for token in tokens)
    if not unserved:
        return []
    asked = unserved + sum(token.kind == "snapshot" for token in tokens)
    starved = unserved > policy.unserved and unserved > policy.unserved_share * asked
    return [
        Finding(
            id="chip.interrupt.unserved",
            message="a workload was lost while an interrupt waited for a snapshot"
            + ("; it happens too often to be chance" if starved else ""),
            expected="a snapshot for each interrupt",
            found=f"{unserved} of {asked} interrupts had none",
            subject=f"chip {log.chip.ueid.hex()}",
            severity="violation" if starved else "info",
        )
    ]


def _late(log: LogFacts, tokens: list[Token]) -> list[Finding]:
    hold: int | None = None
    for token in tokens:
        if token.kind == "boot":
            hold = number(token, "hold")
        elif token.kind == "snapshot" and hold is not None and number(token, "held") > hold:
            return [
                Finding(
                    id="chip.interrupt.late",
                    message="kernels ran on after an interrupt for longer than the firmware waits",
                    expected=f"at most {hold} kernels",
                    found=f"{number(token, 'held')} kernels",
                    subject=f"chip {log.chip.ueid.hex()} entry {token.index}",
                )
            ]
    return []


def evidence(log: LogFacts) -> dict[str, Any]:
    """Counts a chip's interrupts, and says how likely so few or so many are at its rate over its uptime.

    The p-values are not evidence against the Prover: interrupts that come while one waits merge with it, and a chip
    that was allowed to be asked for interrupts has more.

    Returns:
        `snapshots`, `idle`, `unserved`: what interrupts led to; `uptime_days` over all boots, `expected` interrupts;
        `p_few` and `p_many`: the chance of no more, or no fewer, than were seen.
    """
    tokens = list(_entries(log))
    snapshots = sum(token.kind == "snapshot" for token in tokens)
    idle, unserved = (sum(_name(token) == name for token in tokens) for name in (IDLE, UNSERVED))
    days = expected = 0.0
    newest = None if isinstance(log.head, WeighbridgeError) else log.head.token
    for count, boot in groupby(tokens, key=lambda token: token.boot_count):
        entries = list(boot)
        last = entries[-1] if newest is None or newest.boot_count != count else newest
        up = last.uptime_ms / _MS_PER_DAY
        rate = number(entries[0], "rate_milli") / 1000 if entries[0].kind == "boot" else 0.0
        days, expected = days + up, expected + rate * up
    seen = snapshots + idle + unserved
    return {
        "snapshots": snapshots,
        "idle": idle,
        "unserved": unserved,
        "uptime_days": round(days, 6),
        "expected": round(expected, 6),
        "p_few": float(pdtr(seen, expected)),  # of Poisson's distribution; `scipy.stats` takes a second to import
        "p_many": float(pdtrc(seen - 1, expected)) if seen else 1.0,
    }


def _entries(log: LogFacts) -> Iterator[Token]:
    for entry in log.entries:
        if not isinstance(entry.verified, WeighbridgeError):
            yield entry.verified.token


def _name(token: Token) -> object:
    return token.body["name"] if token.kind == "event" else None
