"""Did the chip do more work than it can in the time that it says has passed?

Interrupts come on the chip's own clock. A slowed clock means fewer snapshots, and between readings nothing in the log
contradicts it; but the chip goes on counting work. So too many kernels or FLOPs for the time mean a slowed clock, or
invented counters. At an entry no kernel is under way, so what it has counted by the next one, it did in between.
"""

from __future__ import annotations

from itertools import pairwise

from verifier.model.facts import LogFacts
from verifier.model.peak_flops import KERNELS_PER_SECOND
from verifier.model.sessions import tokens_of
from weighbridge.attest.tokens import Token, counters
from weighbridge.core.errors import Finding

TOLERANCE = 0.01
"""Share by which a quartz, and a peak that was rounded in a data sheet, may be off."""
SLACK_MS = 10
"""Uptimes are whole milliseconds, and a snapshot is signed a little after its kernels ended."""


def check(log: LogFacts, peak: float | None) -> list[Finding]:
    """Compares what the chip counted between two entries of one boot, or to its head, with what it can do in that time.

    Args:
        log: The chip's log.
        peak: The most FLOPs that it can do a second; None if that is not known. Kernels are counted in any case.

    Returns:
        At most one finding for each counter: the first place where it is impossible.
    """
    findings: dict[str, Finding] = {}
    for earlier, later in pairwise(tokens_of(log)):
        if earlier.boot_count != later.boot_count or later.kind == "boot":
            continue  # its uptime begins anew; a boot entry that does not count up is `chip_log`'s to report
        before, after = counters(earlier), counters(later)
        if before is None or after is None:
            continue  # what is hidden is compared in a sealed session
        seconds = (later.uptime_ms - earlier.uptime_ms + SLACK_MS) / 1000 * (1 + TOLERANCE)
        did = after - before
        for counter, done, rate in (("flops", did.flops, peak), ("kernels", did.kernels, KERNELS_PER_SECOND)):
            if rate is not None and done > rate * seconds:
                findings.setdefault(counter, _impossible(log, earlier, later, counter, done, rate))
    return list(findings.values())


def _impossible(log: LogFacts, earlier: Token, later: Token, counter: str, done: int, rate: float) -> Finding:
    milliseconds = later.uptime_ms - earlier.uptime_ms
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
