"""Did the chip's clock run? Interrupts come on it, so a paused clock means fewer snapshots."""

from __future__ import annotations

from verifier.model.facts import LogFacts
from weighbridge.core.errors import Finding, WeighbridgeError

TOLERANCE = 0.01
"""How much slower than the Verifier's clock it may run: far more than a quartz does."""
SLACK_MS = 60_000
"""For the time that a call takes, and clocks that are set now and then."""


def check(log: LogFacts) -> list[Finding]:
    """Compares how far the chip's clock went since the last contact with how far the Verifier's did.

    A clock that runs faster costs the chip's user more snapshots, and simulated chips do so on purpose.
    """
    if isinstance(log.head, WeighbridgeError) or not log.held.read_ms or log.head.token.kind != "head":
        return []
    gone, here = log.head.token.time_ms - log.held.chip_ms, log.read_ms - log.held.read_ms
    if gone >= here * (1 - TOLERANCE) - SLACK_MS:
        return []
    return [
        Finding(
            id="chip.clock.slow",
            message="the chip's clock stood still or was set back since the last contact, so interrupts were left out",
            expected=f"about {here / 1000:.0f} s",
            found=f"{gone / 1000:.0f} s",
            subject=f"chip {log.chip.ueid.hex()}",
        )
    ]
