"""Did the chip do more work than it can in the time that it says has passed?

Interrupts come on the chip's own clock. A slowed clock means fewer snapshots, and between readings nothing in the log
contradicts it; but the chip goes on counting work. So too many kernels or FLOPs for the time mean a slowed clock, or
invented counters.
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.model.facts import LogFacts, number
from verifier.model.peak_flops import KERNELS_PER_SECOND
from weighbridge.attest.tokens import Token
from weighbridge.core.errors import Finding, WeighbridgeError

TOLERANCE = 0.01
"""Share by which a quartz, and a peak that was rounded in a data sheet, may be off."""
SLACK_MS = 10
"""Uptimes are whole milliseconds, and a snapshot is signed a little after its kernels ended."""


def check(log: LogFacts, peak: float | None) -> list[Finding]:
    """Compares what the chip counted between two snapshots of one boot with what it can do in that time.

    Args:
        log: The chip's log.
        peak: The most FLOPs that it can do a second; None if that is not known. Kernels are counted in any case.

    Returns:
        At most one finding for each counter: the first place where it is impossible.
    """
    findings: dict[str, Finding] = {}
    for earlier, later in _stretches(log):
        began = 0 if earlier is None else earlier.uptime_ms
        seconds = (later.uptime_ms - began + SLACK_MS) / 1000 * (1 + TOLERANCE)
        for counter, rate in (("flops", peak), ("kernels", KERNELS_PER_SECOND)):
            done = _done(earlier, later, counter)
            if rate is not None and done > rate * seconds:
                findings.setdefault(counter, _impossible(log, earlier, later, counter, done, rate))
    return list(findings.values())


def _stretches(log: LogFacts) -> Iterator[tuple[Token | None, Token]]:
    """Yields each snapshot with the one before it in the same boot; None before the first."""
    before: Token | None = None
    for entry in log.entries:
        if isinstance(entry.verified, WeighbridgeError):
            continue
        token = entry.verified.token
        if token.kind == "boot":
            before = None
        elif token.kind == "snapshot":
            yield (before if before is not None and before.boot_count == token.boot_count else None), token
            before = token


def _done(earlier: Token | None, later: Token, counter: str) -> int:
    """What was done at least. Counters begin anew with each workload, so a lower number is all of a new one."""
    now, then = number(later, counter), 0 if earlier is None else number(earlier, counter)
    return now - then if now >= then else now


def _impossible(log: LogFacts, earlier: Token | None, later: Token, counter: str, done: int, rate: float) -> Finding:
    milliseconds = later.uptime_ms - (0 if earlier is None else earlier.uptime_ms)
    unit = "FLOPs" if counter == "flops" else "kernels"
    return Finding(
        id="chip.work.impossible",
        message=f"the chip counted more {unit} than it can do in the time that its clock says has passed; "
        "its clock was slowed, or its counter made up",
        expected=f"at most {rate * milliseconds / 1000:.3g} {unit} in {milliseconds / 1000:.3f} s",
        found=f"{done} {unit}",
        subject=f"chip {log.chip.ueid.hex()} entry {later.index}",
        evidence={"counter": counter, "done": done, "milliseconds": milliseconds, "peak": rate},
    )
