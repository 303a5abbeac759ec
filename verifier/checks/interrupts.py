"""Did every interrupt lead to a snapshot, and were there as many as the chip's clock lets expect?

An interrupt is durable before the workload hears of it. If the chip loses its power while one stands, the next boot's
entry says so (`unserved`). A reboot that has nothing to do with interrupts seldom falls into the short time in which
one stands, so a chip that reboots there more often than chance explains is rebooted by who sees the interrupts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

from scipy.special import bdtrc, pdtr, pdtrc

from verifier.checks.chip_clock import anchored
from verifier.model.facts import LogFacts, number
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED, SnapshotPolicy
from weighbridge.attest.tokens import HiddenBody, Token, event_name, shown
from weighbridge.core.errors import Finding, WeighbridgeError

IDLE, UNSERVED = "interrupt-idle", "interrupt-unserved"
"""The chip's own events: an interrupt found no workload; a workload was lost while one stood."""

STANDING_S = 60.0
"""How long an interrupt stands at most: the kernels of its hold, and the hashing of all memory."""
REBOOT_CHANCE = 1e-6
"""Reboots at interrupts that are less likely than this are a finding: as often, at most, an honest chip has one."""

_MS_PER_DAY = 86_400_000
_S_PER_DAY = 86_400.0


def check(log: LogFacts, policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> list[Finding]:
    """Reports interrupts without a snapshot, and snapshots that came later than the firmware waits.

    A chip with a finding of this check does not count as verified: something ran on it that it could not look at.
    """
    tokens = list(_entries(log))
    return [*_unserved(log, tokens, policy), *_timed(log, tokens), *_late(log, tokens)]


def _unserved(log: LogFacts, tokens: list[Token], policy: SnapshotPolicy) -> list[Finding]:
    unserved = sum(map(_is_unserved, tokens))
    if not unserved:
        return []
    asked = unserved + sum(token.kind == "snapshot" for token in tokens)
    starved = unserved > policy.unserved and unserved > policy.unserved_share * asked
    return [
        Finding(
            id="chip.interrupt.unserved",
            message="a workload, or the chip's power, was lost while an interrupt waited for a snapshot"
            + ("; it happens too often to be chance" if starved else ""),
            expected="a snapshot for each interrupt",
            found=f"{unserved} of {asked} interrupts had none",
            subject=f"chip {log.chip.ueid.hex()}",
            severity="violation" if starved else "info",
        )
    ]


def _timed(log: LogFacts, tokens: list[Token]) -> list[Finding]:
    reboots, cut, chance = _reboots(tokens)
    if chance >= REBOOT_CHANCE:
        return []
    return [
        Finding(
            id="chip.reboot.timed",
            message="the chip loses its power while an interrupt waits far more often than by chance",
            expected=f"reboots that do not know of interrupts (chance of so many: {chance:.2g})",
            found=f"{cut} of {reboots} reboots fell on an interrupt",
            subject=f"chip {log.chip.ueid.hex()}",
            severity="warning",
            evidence={"p_reboots": chance},
        )
    ]


def _reboots(tokens: list[Token]) -> tuple[int, int, float]:
    """Counts reboots, those that fell on an interrupt, and says how likely no fewer of these are by chance.

    A moment that does not depend on interrupts falls on one that stands with at most the chance `STANDING_S` times
    their rate. The binomial tail with the largest such chance of any boot is therefore at least the true one.
    """
    boots = [token for token in tokens if token.kind == "boot"]
    after = [
        (earlier, later)
        for earlier, later in pairwise(boots)
        if "unserved" in shown(later) and later.boot_count == earlier.boot_count + 1
    ]
    cut = sum(shown(later)["unserved"] is True for _, later in after)
    if not cut:
        return len(after), 0, 1.0
    chance = max(min(1.0, _per_second(earlier) * STANDING_S) for earlier, _ in after)
    return len(after), cut, float(bdtrc(cut - 1, len(after), chance))


def _per_second(boot: Token) -> float:
    """Interrupts per second of the Verifier's clock, by what a boot entry says."""
    speed = number(boot, "clock_milli") / 1000 if "clock_milli" in shown(boot) else 1.0
    return number(boot, "rate_milli") / 1000 * speed / _S_PER_DAY


def _late(log: LogFacts, tokens: list[Token]) -> list[Finding]:
    hold: int | None = None
    for token in tokens:
        if token.kind == "boot":
            hold = number(token, "hold")
        elif token.kind != "snapshot" or isinstance(token.body, HiddenBody):
            continue  # what is hidden is looked at in a sealed session
        elif hold is not None and number(token, "held") > hold:
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

    Uptime counts as far as it is anchored (`chip_clock`): from one head of a boot that a Verifier or its witness asked
    for to another. The chip's own word for the rest proves nothing.

    Returns:
        `snapshots`, `idle`, `unserved`: what interrupts led to; `uptime_days` by the chip's log, from one entry, or
        head, of a boot to another; `anchored_days` of them, and the interrupts `expected` in these; `p_few` and
        `p_many`: the chance of no more, or no fewer, than there were in these; `reboots`, `reboots_at_interrupts`, and
        `p_reboots`: the chance of no fewer of these.
    """
    tokens = list(_entries(log))
    heads = [] if isinstance(log.head, WeighbridgeError) else [log.head.token]
    up = 0
    for _, boot in groupby([*tokens, *heads], key=lambda token: token.boot_count):
        entries = list(boot)
        up += entries[-1].uptime_ms - entries[0].uptime_ms
    rates = {token.boot_count: number(token, "rate_milli") / 1000 for token in tokens if token.kind == "boot"}
    days = expected = 0.0
    seen = 0
    for stretch in anchored(log):
        length = stretch.uptime_ms / _MS_PER_DAY
        days, expected = days + length, expected + rates.get(stretch.first.boot_count, 0.0) * length
        inside = range(number(stretch.first, "size"), number(stretch.last, "size"))
        seen += sum(_is_interrupt(token) for token in tokens if token.index in inside)
    reboots, cut, chance = _reboots(tokens)
    return {
        "snapshots": sum(token.kind == "snapshot" for token in tokens),
        "idle": sum(event_name(token) == IDLE for token in tokens),
        "unserved": sum(map(_is_unserved, tokens)),
        "uptime_days": round(up / _MS_PER_DAY, 6),
        "anchored_days": round(days, 6),
        "expected": round(expected, 6),
        "p_few": float(pdtr(seen, expected)),  # of Poisson's distribution; `scipy.stats` takes a second to import
        "p_many": float(pdtrc(seen - 1, expected)) if seen else 1.0,
        "reboots": reboots,
        "reboots_at_interrupts": cut,
        "p_reboots": chance,
    }


def _entries(log: LogFacts) -> Iterator[Token]:
    for entry in log.entries:
        if not isinstance(entry.verified, WeighbridgeError):
            yield entry.verified.token


def _is_interrupt(token: Token) -> bool:
    """Whether an entry tells of an interrupt of the boot that it is of."""
    return token.kind == "snapshot" or event_name(token) in (IDLE, UNSERVED)


def _is_unserved(token: Token) -> bool:
    """Whether an entry says of an interrupt that it led to no snapshot."""
    return event_name(token) == UNSERVED or (token.kind == "boot" and shown(token).get("unserved") is True)
